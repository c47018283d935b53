"""What a sweep draws for a method on a dataset, and by which rule.

A value depends on the seed of the draw, the trial's and the hyperparameter's own name, so that one more hyperparameter
changes no other. Draw 0 is the defaults. In the space `domainbed` names, ranges and so values are DomainBed's.
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from domainwise.errors import DomainwiseError, unknown
from domainwise.hparams.fields import Choice, Distribution, Hparams, Power, Uniform
from domainwise.seeds import seed_hash


@dataclass(frozen=True)
class Searched:
    """One value of a search: of `distribution`, drawn by `key`; `default` in draw 0, where that is not the method's."""

    distribution: Distribution
    key: str
    default: Any = None


@dataclass(frozen=True)
class Task:
    """Whom a search is for: a method on a dataset. `suited` are ranges that suit the data better than the method's."""

    algorithm: str
    hparams: type[Hparams]
    dataset: str
    suited: Mapping[str, Distribution]


# From a task to the values that are searched, by name.
Space = Callable[[Task], dict[str, Searched]]

# A run has these beside its method's hyperparameters.
RUN_SETTINGS: Mapping[str, Searched] = {
    "batch_size": Searched(Power(2, 3, 5.5, whole=True), "batch_size"),
    "dropout": Searched(Choice((0.0, 0.1, 0.5)), "resnet_dropout"),
}


def domainbed(task: Task) -> dict[str, Searched]:
    """The ranges that stand beside the methods' defaults, but for those that the dataset replaces."""
    fields = task.hparams.names().items()
    searched = {
        name: Searched(field.metadata["search"], field.metadata["key"] or name)
        for name, field in fields
        if "search" in field.metadata
    }
    searched = {**RUN_SETTINGS, **searched}
    return {name: Searched(task.suited.get(name, each.distribution), each.key) for name, each in searched.items()}


def drawn(searched: Mapping[str, Searched], hparams_seed: int, trial_seed: int) -> dict[str, Any]:
    """The values of one draw; what keeps its default is not among them."""
    if hparams_seed == 0:
        return {name: each.default for name, each in searched.items() if each.default is not None}
    seed = seed_hash(hparams_seed, trial_seed)
    return {
        name: each.distribution.draw(np.random.RandomState(seed_hash(seed, each.key)))
        for name, each in searched.items()
    }


_SPACES = Path(__file__).parent / "spaces"
SPACES = ("domainbed", *sorted(file.stem for file in _SPACES.glob("*.toml")))
_ROUTE = ("datasets", "algorithms")


def read_space(name: str) -> Space:
    """A space by its name, or from a TOML file."""
    if name == "domainbed":
        return domainbed
    if name in SPACES:
        return _ruled(_SPACES / f"{name}.toml", name)
    if not name.endswith(".toml"):
        raise unknown("search space", name, SPACES, f"{', '.join(SPACES)}, or a file.toml")
    return _ruled(Path(name), name)


@dataclass(frozen=True)
class _Rule:
    """Which tasks it is for, None for any, and what it says of them."""

    datasets: list[str] | None
    algorithms: list[str] | None
    searched: dict[str, Searched]

    def is_for(self, task: Task) -> bool:
        return (self.datasets is None or task.dataset in self.datasets) and (
            self.algorithms is None or task.algorithm in self.algorithms
        )


def _ruled(file: Path, name: str) -> Space:
    try:
        content = tomllib.loads(file.read_text())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DomainwiseError(f"the search space {file} cannot be read: {reason}") from error
    for key in content:
        if key not in ("base", "rule"):
            raise unknown(f"entry of {file}", key, ("base", "rule"))
    base = content.get("base")
    if base not in (None, "domainbed"):
        raise DomainwiseError(f"base in {file} can only be 'domainbed', not {base!r}")
    given = content.get("rule", [])
    if not isinstance(given, list) or not given:
        raise DomainwiseError(f"{file} has no rule: it needs at least one [[rule]]")
    rules = [_rule(each, f"rule {number} of {file}") for number, each in enumerate(given, start=1)]

    def space(task: Task) -> dict[str, Searched]:
        searched = domainbed(task) if base else {}
        fitting = [rule for rule in rules if rule.is_for(task)]
        if not fitting and not base:
            raise DomainwiseError(f"the search space {name} says nothing of {task.algorithm} on {task.dataset}")
        for rule in fitting:
            searched |= rule.searched
        allowed = (*RUN_SETTINGS, *task.hparams.names())
        for each in searched:
            if each not in allowed:
                raise unknown(f"hyperparameter of {task.algorithm} in {file}", each, allowed)
        return searched

    return space


def _rule(given: Any, where: str) -> _Rule:
    if not isinstance(given, dict):
        raise DomainwiseError(f"{where} must be a table, [[rule]]")
    for name in _ROUTE:
        if name in given and not isinstance(given[name], list):
            raise DomainwiseError(f"{name} in {where} must be a list of names, not {given[name]!r}")
    searched = {name: _searched(name, value, where) for name, value in given.items() if name not in _ROUTE}
    return _Rule(given.get("datasets"), given.get("algorithms"), searched)


def _searched(name: str, value: Any, where: str) -> Searched:
    if not isinstance(value, dict):
        return Searched(Choice((value,)), name, default=value)
    settings = {**value}
    default, whole = settings.pop("default", None), settings.pop("whole", False)
    if len(settings) != 1 or next(iter(settings)) not in _DISTRIBUTIONS:
        raise DomainwiseError(f"{name} in {where} must be drawn by one of {', '.join(_DISTRIBUTIONS)}, not {value}")
    ((kind, numbers),) = settings.items()
    try:
        return Searched(_DISTRIBUTIONS[kind](numbers, whole), name, default)
    except (TypeError, ValueError) as error:
        raise DomainwiseError(f"{name} in {where} cannot be drawn by {kind} = {numbers}: {error}") from error


def _uniform(numbers: Any, whole: bool) -> Distribution:
    low, high = map(float, numbers)
    return Uniform(low, high, whole=whole)


def _power(numbers: Any, whole: bool) -> Distribution:
    base, low, high = map(float, numbers)
    return Power(base, low, high, whole=whole)


def _choice(options: Any, whole: bool) -> Distribution:
    if not isinstance(options, list) or not options:
        raise TypeError("it takes a list of options")
    return Choice(tuple(map(int, options)) if whole else tuple(options))


_DISTRIBUTIONS: Mapping[str, Callable[[Any, bool], Distribution]] = {
    "uniform": _uniform,
    "power": _power,
    "choice": _choice,
}
