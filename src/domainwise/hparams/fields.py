"""What a search draws values from, by the legacy generator of numpy that DomainBed uses."""

import dataclasses
import math
import operator
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self, Union, get_args, get_origin, get_type_hints

import numpy as np

from domainwise.errors import DomainwiseError, unknown


class Distribution(Protocol):
    """What a search draws a value from."""

    def draw(self, random: np.random.RandomState) -> Any: ...


@dataclass(frozen=True)
class Uniform:
    """U(low, high), cut down to a whole number where `whole`."""

    low: float
    high: float
    whole: bool = False

    def __str__(self) -> str:
        return _worded(f"U({self.low:g}, {self.high:g})", self.whole)

    def draw(self, random: np.random.RandomState) -> float:
        value = float(random.uniform(self.low, self.high))
        return int(value) if self.whole else value


@dataclass(frozen=True)
class Power:
    """base ** U(low, high), cut down to a whole number where `whole`."""

    base: float
    low: float
    high: float
    whole: bool = False

    def __str__(self) -> str:
        return _worded(f"{self.base:g}^U({self.low:g}, {self.high:g})", self.whole)

    def draw(self, random: np.random.RandomState) -> float:
        value = float(self.base ** random.uniform(self.low, self.high))
        return int(value) if self.whole else value


@dataclass(frozen=True)
class Choice:
    """One of the options, all alike."""

    options: tuple[Any, ...]

    def __str__(self) -> str:
        return " or ".join(map(str, self.options))

    def draw(self, random: np.random.RandomState) -> Any:
        return self.options[random.choice(len(self.options))]


def _worded(distribution: str, whole: bool) -> str:
    return f"int {distribution}" if whole else distribution


def searched(default: Any, distribution: Distribution, key: str | None = None, **bounds: float) -> Any:
    """A dataclass field with its default, the distribution that a search draws it from, and bounds as in `bounded`.

    Args:
        key: its name in DomainBed, which draws by it; None where it has none or the same.
    """
    return dataclasses.field(default=default, metadata={"search": distribution, "key": key, **bounds})


def bounded(default: Any, **bounds: float) -> Any:
    """A dataclass field whose value is at least `low`, more than `above`, at most `high`: those that are given."""
    return dataclasses.field(default=default, metadata=bounds)


@dataclass(frozen=True)
class Hparams:
    """What every method has. A method adds its own fields in a frozen subclass.

    `VARIANTS` names settings that go together: choosing `variant` sets them, and any given by itself wins.
    """

    VARIANTS: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    lr: float = searched(5e-5, Power(10, -5, -3.5))
    weight_decay: float = searched(0.0, Power(10, -6, -2))

    def __post_init__(self) -> None:
        for name, field in self.names().items():
            _check_bounds(name, getattr(self, name), field.metadata)

    @classmethod
    def of(cls, **given: Any) -> Self:
        """The hyperparameters with `given` values, those of their variant, and defaults for the rest."""
        hints = get_type_hints(cls)
        names = cls.names()
        for name in given:
            if name not in names:
                raise unknown("hyperparameter", name, names)
        values = {name: _checked(name, value, hints[name]) for name, value in given.items()}
        if "variant" in names:
            variant = values.get("variant", names["variant"].default)
            values = {**cls.VARIANTS.get(variant, {}), **values}
        return cls(**values)

    @classmethod
    def names(cls) -> dict[str, dataclasses.Field[Any]]:
        return {field.name: field for field in dataclasses.fields(cls)}

    @classmethod
    def parse(cls, text: Mapping[str, str]) -> dict[str, Any]:
        """Values from the words of a command line, each read as its field's type."""
        hints, names = get_type_hints(cls), cls.names()
        for name in text:
            if name not in names:
                raise unknown("hyperparameter", name, names)
        return {name: _parsed(name, word, hints[name]) for name, word in text.items()}

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


_BOUNDS = {"low": (operator.ge, "at least"), "above": (operator.gt, "above"), "high": (operator.le, "at most")}


def _check_bounds(name: str, value: Any, metadata: Mapping[str, Any]) -> None:
    bounds = {key: metadata[key] for key in _BOUNDS if key in metadata}
    if value is None or not bounds:
        return
    if not math.isfinite(value) or not all(_BOUNDS[key][0](value, bound) for key, bound in bounds.items()):
        limits = " and ".join(f"{_BOUNDS[key][1]} {bound:g}" for key, bound in bounds.items())
        raise DomainwiseError(f"{name} must be {limits}, not {value}")


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _checked(name: str, value: Any, hint: Any) -> Any:
    for kind in _alternatives(hint):
        if get_origin(kind) is Literal:
            if value in get_args(kind):
                return value
        elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        elif isinstance(value, kind) and isinstance(value, bool) == (kind is bool):
            return value
    raise DomainwiseError(f"hyperparameter {name} must be {_described(hint)}, not {value!r}")


def _parsed(name: str, word: str, hint: Any) -> Any:
    for kind in _alternatives(hint):
        if get_origin(kind) is Literal and word in get_args(kind):
            return word
        if kind is type(None) and word.lower() == "none":
            return None
        if kind is bool and word.lower() in ("true", "false"):
            return word.lower() == "true"
        if kind in (int, float):
            try:
                return kind(word)
            except ValueError:
                continue
        if kind is str:
            return word
    raise DomainwiseError(f"hyperparameter {name} must be {_described(hint)}, not {word!r}")


def _described(hint: Any) -> str:
    words = {float: "a number", int: "a whole number", bool: "true or false", str: "a word", type(None): "none"}
    parts = [
        ", ".join(map(repr, get_args(kind))) if get_origin(kind) is Literal else words.get(kind, str(kind))
        for kind in _alternatives(hint)
    ]
    return " or ".join(parts)
