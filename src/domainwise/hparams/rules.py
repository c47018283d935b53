"""Search spaces written down in TOML: the paper's, and a user's own.

base = "domainbed"                # what no rule names is drawn as there; without it, nothing else is

[[rule]]                          # a later rule wins
datasets = ["pacs", "vlcs"]       # without: all
algorithms = ["mat"]              # without: all
lr = 5e-5                         # always this value
epsilon = {power = [10, -1, 2]}   # 10 ** U(-1, 2)
count = {uniform = [5, 20], whole = true, default = 10}
dropout = {choice = [0.0, 0.1, 0.5]}
"""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from domainwise.errors import DomainwiseError, unknown
from domainwise.hparams.distributions import Choice, Distribution, Power, Uniform
from domainwise.hparams.space import RUN_SETTINGS, Searched, Space, Task, domainbed

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
