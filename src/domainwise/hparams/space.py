"""Search spaces: which values a sweep draws for a method on a dataset, and from which distributions.

Each value depends on the draw, the trial and the hyperparameter's own name, so adding a hyperparameter changes no other
value. Draw 0 is the defaults. In the space `domainbed`, names, ranges and therefore values are DomainBed's.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from domainwise.errors import DomainwiseError, unknown_choice
from domainwise.hparams.fields import Choice, Distribution, Hparams, Power, Uniform
from domainwise.seeds import seed_hash


@dataclass(frozen=True)
class SearchDimension:
    """One value of a search: its distribution, and the key that seeds its draws.

    Args:
        default: Value in draw 0, if it is not the method's default.
    """

    distribution: Distribution
    key: str
    default: Any = None


@dataclass(frozen=True)
class SearchTask:
    """The method and dataset that a search is for.

    Args:
        dataset_ranges: Distributions that replace the method's own on this dataset.
    """

    algorithm: str
    hparams: type[Hparams]
    dataset: str
    dataset_ranges: Mapping[str, Distribution]


# Maps a task to its search dimensions, by name.
Space = Callable[[SearchTask], dict[str, SearchDimension]]

# The settings of a run that are searched in addition to the method's hyperparameters.
RUN_SETTINGS: Mapping[str, SearchDimension] = {
    "batch_size": SearchDimension(Power(2, 3, 5.5, whole=True), "batch_size"),
    "dropout": SearchDimension(Choice((0.0, 0.1, 0.5)), "resnet_dropout"),
}


def domainbed(task: SearchTask) -> dict[str, SearchDimension]:
    """Return the ranges declared in the method's `Hparams`: those for the dataset, else the dataset's, else its own."""
    dimensions = dict(RUN_SETTINGS)
    for name, field in task.hparams.fields().items():
        # A user's own method may have plain dataclass fields, without metadata.
        if (distribution := field.metadata.get("search")) is not None:
            dimensions[name] = SearchDimension(distribution, field.metadata.get("key") or name)
    own = {name: setting.search for name, setting in task.hparams.for_dataset(task.dataset).items()}
    ranges = {**task.dataset_ranges, **own}
    return {
        name: SearchDimension(ranges.get(name, dimension.distribution), dimension.key)
        for name, dimension in dimensions.items()
    }


def draw_hparams(dimensions: Mapping[str, SearchDimension], hparams_seed: int, trial_seed: int) -> dict[str, Any]:
    """Draw one value per dimension. Draw 0 contains only the values that differ from the method's defaults."""
    if hparams_seed == 0:
        return {name: each.default for name, each in dimensions.items() if each.default is not None}
    from numpy.random import RandomState

    seed = seed_hash(hparams_seed, trial_seed)
    return {name: each.distribution.draw(RandomState(seed_hash(seed, each.key))) for name, each in dimensions.items()}


_SPACES = Path(__file__).parent / "spaces"
SPACES = ("domainbed", *sorted(file.stem for file in _SPACES.glob("*.toml")))
_SELECTORS = ("datasets", "algorithms")


def read_space(name: str) -> Space:
    """Return a search space by name, or read it from a TOML file.

    `paper:pacs` is the space that `paper` has for PACS, on any dataset.
    """
    base, _, dataset = name.partition(":")
    if base in SPACES and dataset:
        space = read_space(base)
        return lambda task: space(replace(task, dataset=dataset))
    if name == "domainbed":
        return domainbed
    if name in SPACES:
        return _read_packaged(name)
    if not name.endswith(".toml"):
        raise unknown_choice("search space", name, SPACES, f"{', '.join(SPACES)}, or a .toml file")
    return _read_rules(Path(name), name)


@cache
def _read_packaged(name: str) -> Space:
    return _read_rules(_SPACES / f"{name}.toml", name)


@dataclass(frozen=True)
class _Rule:
    """Search dimensions for the given datasets and methods; None means all."""

    datasets: list[str] | None
    algorithms: list[str] | None
    dimensions: dict[str, SearchDimension]

    def matches(self, task: SearchTask) -> bool:
        return (self.datasets is None or task.dataset in self.datasets) and (
            self.algorithms is None or task.algorithm in self.algorithms
        )


def _read_rules(file: Path, name: str) -> Space:
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DomainwiseError(f"search space {file} could not be read: {reason}") from error
    for key in content:
        if key not in ("base", "rule"):
            raise unknown_choice(f"entry in {file}", key, ("base", "rule"))
    base = content.get("base")
    if base not in (None, "domainbed"):
        raise DomainwiseError(f"base in {file} must be 'domainbed', got {base!r}")
    tables = content.get("rule", [])
    if not isinstance(tables, list) or not tables:
        raise DomainwiseError(f"{file} has no rules; expected at least one [[rule]]")
    rules = [_parse_rule(table, f"rule {number} of {file}") for number, table in enumerate(tables, start=1)]

    def space(task: SearchTask) -> dict[str, SearchDimension]:
        dimensions = domainbed(task) if base else {}
        matching = [rule for rule in rules if rule.matches(task)]
        if not matching and not base:
            raise DomainwiseError(f"search space {name} has no rule for {task.algorithm} on {task.dataset}")
        for rule in matching:
            dimensions |= rule.dimensions
        choices = (*RUN_SETTINGS, *task.hparams.fields())
        for each in dimensions:
            if each not in choices:
                raise unknown_choice(f"hyperparameter of {task.algorithm} in {file}", each, choices)
        return dimensions

    return space


def _parse_rule(table: Any, where: str) -> _Rule:
    if not isinstance(table, dict):
        raise DomainwiseError(f"{where} must be a table, [[rule]]")
    for name in _SELECTORS:
        if name in table and not isinstance(table[name], list):
            raise DomainwiseError(f"{name} in {where} must be a list of names, got {table[name]!r}")
    dimensions = {name: _parse_dimension(name, value, where) for name, value in table.items() if name not in _SELECTORS}
    return _Rule(table.get("datasets"), table.get("algorithms"), dimensions)


def _parse_dimension(name: str, value: Any, where: str) -> SearchDimension:
    if not isinstance(value, dict):
        return SearchDimension(Choice((value,)), name, default=value)
    settings = {**value}
    default, whole = settings.pop("default", None), settings.pop("whole", False)
    if len(settings) != 1 or next(iter(settings)) not in _DISTRIBUTIONS:
        raise DomainwiseError(f"{name} in {where} must have exactly one of {', '.join(_DISTRIBUTIONS)}, got {value}")
    ((kind, numbers),) = settings.items()
    try:
        return SearchDimension(_DISTRIBUTIONS[kind](numbers, whole), name, default)
    except (TypeError, ValueError) as error:
        raise DomainwiseError(f"{name} in {where} has an invalid distribution {kind} = {numbers}: {error}") from error


def _parse_uniform(numbers: Any, whole: bool) -> Distribution:
    low, high = map(float, numbers)
    return Uniform(low, high, whole=whole)


def _parse_power(numbers: Any, whole: bool) -> Distribution:
    base, low, high = map(float, numbers)
    return Power(base, low, high, whole=whole)


def _parse_choice(options: Any, whole: bool) -> Distribution:
    if not isinstance(options, list) or not options:
        raise TypeError("expected a non-empty list of options")
    return Choice(tuple(map(int, options)) if whole else tuple(options))


_DISTRIBUTIONS: Mapping[str, Callable[[Any, bool], Distribution]] = {
    "uniform": _parse_uniform,
    "power": _parse_power,
    "choice": _parse_choice,
}
