"""Hyperparameters of a method as a frozen dataclass: default, help, search distribution and bounds of each field."""

import dataclasses
import functools
import operator
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, Union, get_args, get_origin, get_type_hints

from domainwise.errors import DomainwiseError, unknown_choice

if TYPE_CHECKING:
    from numpy.random import RandomState


class Distribution(Protocol):
    """A distribution that a search draws one value from, with numpy's legacy generator as in DomainBed."""

    def draw(self, random: "RandomState") -> Any: ...


def largest(value: float) -> float:
    """Return the largest number of the value's type that is safe to compute with in 32 bits."""
    return 2**31 - 1 if isinstance(value, int) else 1e30


def _check_range(*ends: float) -> None:
    """Raise an error for a range that no number can be drawn from."""
    for end in ends:
        if not abs(end) <= largest(float(end)):
            raise DomainwiseError(f"a search range must end at most at {largest(1.0):g}, got {end:g}")


@dataclass(frozen=True)
class Uniform:
    """U(low, high), truncated to an integer if `whole`."""

    low: float
    high: float
    whole: bool = False

    def __post_init__(self) -> None:
        _check_range(self.low, self.high)

    def __str__(self) -> str:
        return f"{'int ' if self.whole else ''}U({self.low:g}, {self.high:g})"

    def draw(self, random: "RandomState") -> float:
        value = float(random.uniform(self.low, self.high))
        return int(value) if self.whole else value


@dataclass(frozen=True)
class Power:
    """base ** U(low, high), truncated to an integer if `whole`."""

    base: float
    low: float
    high: float
    whole: bool = False

    def __post_init__(self) -> None:
        if not self.base > 0:
            raise DomainwiseError(f"the base of a power must be above 0, got {self.base:g}")
        try:
            _check_range(self.base**self.low, self.base**self.high)
        except OverflowError:
            raise DomainwiseError(f"{self} is beyond the largest number") from None

    def __str__(self) -> str:
        return f"{'int ' if self.whole else ''}{self.base:g}^U({self.low:g}, {self.high:g})"

    def draw(self, random: "RandomState") -> float:
        value = float(self.base ** random.uniform(self.low, self.high))
        return int(value) if self.whole else value


@dataclass(frozen=True)
class Choice:
    """One of the options, with equal probability."""

    options: tuple[Any, ...]

    def __str__(self) -> str:
        return " or ".join(map(str, self.options))

    def draw(self, random: "RandomState") -> Any:
        return self.options[random.choice(len(self.options))]


def hparam(
    default: Any,
    *,
    help: str,
    search: Distribution | None = None,
    key: str | None = None,
    low: float | None = None,
    above: float | None = None,
    high: float | None = None,
    is_newer: bool = False,
) -> Any:
    """Return a dataclass field for one hyperparameter.

    Args:
        default: Default value.
        help: One line that explains the hyperparameter.
        search: Distribution that a search draws the value from. None: a search keeps the default.
        key: DomainBed's name, which seeds the draw, if it differs from the field's name.
        low, above, high: Valid values are at least `low`, greater than `above` and at most `high`.
        is_newer: Run folders have names from before there was this hyperparameter; its default does not change them.
    """
    limits = {"low": low, "above": above, "high": high}
    metadata = {"help": help, "search": search, "key": key, **limits, "is_newer": is_newer}
    return dataclasses.field(default=default, metadata=metadata)


# DomainBed's datasets, for methods whose settings depend on them.
MNIST_DATASETS = ("colored_mnist", "rotated_mnist")
PHOTO_DATASETS = ("pacs", "vlcs", "office_home", "terra_incognita", "domainnet")


@dataclass(frozen=True)
class DatasetSetting:
    """Default and search distribution that a hyperparameter of a method, or `batch_size`, has on some datasets."""

    name: str
    default: Any
    search: Distribution
    datasets: tuple[str, ...]


@dataclass(frozen=True)
class Hparams:
    """The hyperparameters that every method has. Methods add their own fields in a frozen subclass.

    `VARIANTS` maps each value of the field `variant` to the settings it implies. `BY_DATASET` has the defaults and
    distributions that are the method's own on some datasets; they replace those of the dataset. Values given explicitly
    take precedence.
    """

    VARIANTS: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    BY_DATASET: ClassVar[tuple[DatasetSetting, ...]] = ()

    lr: float = hparam(5e-5, help="Learning rate of Adam.", search=Power(10, -5, -3.5))
    weight_decay: float = hparam(0.0, help="Weight decay of Adam.", search=Power(10, -6, -2))

    def __post_init__(self) -> None:
        for name, field in self.fields().items():
            _check_bounds(name, getattr(self, name), field.metadata)

    @classmethod
    def build(cls, dataset_defaults: Mapping[str, Any] | None = None, /, **values: Any) -> Self:
        """Return validated hyperparameters: the values given, those implied by their variant, and the defaults.

        Args:
            dataset_defaults: Values that replace the defaults of the fields, but not what the variant implies.
            values: Hyperparameters by name.
        """
        hints = _evaluate_hints(cls)
        _check_names(values, cls.fields())
        values = {name: _check_type(name, value, hints[name]) for name, value in values.items()}
        return cls(**{**(dataset_defaults or {}), **cls.imply(values), **values})

    @classmethod
    def imply(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the defaults that follow from the values given, such as those of their variant."""
        fields = cls.fields()
        return cls.VARIANTS.get(values.get("variant", fields["variant"].default), {}) if "variant" in fields else {}

    @classmethod
    def complete(cls, stored: Mapping[str, Any]) -> dict[str, Any]:
        """Return the hyperparameters of a stored run, with the defaults of fields that it is older than.

        A field's own default is what a method did before it had the field; variants may imply something newer.
        """
        return {**{name: field.default for name, field in cls.fields().items()}, **stored}

    @classmethod
    def without_newer(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values without the defaults of hyperparameters that are newer than the names of run folders."""
        newer = {name: field.default for name, field in cls.fields().items() if field.metadata["is_newer"]}
        return {name: value for name, value in values.items() if name not in newer or value != newer[name]}

    @classmethod
    def fields(cls) -> dict[str, dataclasses.Field[Any]]:
        """Return the fields by name; their metadata has the keywords of `hparam`."""
        return {field.name: field for field in dataclasses.fields(cls)}

    @classmethod
    def parse(cls, text: Mapping[str, str]) -> dict[str, Any]:
        """Convert values from the command line to the types of their fields."""
        hints = _evaluate_hints(cls)
        _check_names(text, cls.fields())
        return {name: _parse_value(name, value, hints[name]) for name, value in text.items()}

    @classmethod
    def for_dataset(cls, dataset: str) -> dict[str, DatasetSetting]:
        """Return the settings that are the method's own on this dataset, by name."""
        return {setting.name: setting for setting in cls.BY_DATASET if dataset in setting.datasets}

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


# A sweep builds the same few classes thousands of times.
_evaluate_hints: Callable[[type], dict[str, Any]] = functools.cache(get_type_hints)
_BOUNDS = {"low": (operator.ge, "at least"), "above": (operator.gt, "greater than"), "high": (operator.le, "at most")}


def _check_names(values: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    for name in values:
        if name not in fields:
            raise unknown_choice("hyperparameter", name, fields)


def _check_bounds(name: str, value: Any, metadata: Mapping[str, Any]) -> None:
    if not isinstance(value, int | float):
        return
    bounds = {key: metadata[key] for key in _BOUNDS if metadata.get(key) is not None}
    is_too_large = not abs(value) <= largest(value)
    if is_too_large or not all(_BOUNDS[key][0](value, bound) for key, bound in bounds.items()):
        if is_too_large:
            bounds.setdefault("high", largest(value))
        limits = " and ".join(f"{_BOUNDS[key][1]} {bound:g}" for key, bound in bounds.items())
        raise DomainwiseError(f"hyperparameter {name} must be {limits}, got {value}")


def _alternatives(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _check_type(name: str, value: Any, hint: Any) -> Any:
    for kind in _alternatives(hint):
        if get_origin(kind) is Literal:
            if value in get_args(kind):
                return value
        elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
        elif isinstance(value, kind) and isinstance(value, bool) == (kind is bool):
            return value
    raise DomainwiseError(f"hyperparameter {name} must be {_describe_type(hint)}, got {value!r}")


def _parse_value(name: str, text: str, hint: Any) -> Any:
    for kind in _alternatives(hint):
        if get_origin(kind) is Literal and text in get_args(kind):
            return text
        if kind is type(None) and text.lower() == "none":
            return None
        if kind is bool and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
        if kind is str:
            return text
    raise DomainwiseError(f"hyperparameter {name} must be {_describe_type(hint)}, got {text!r}")


def _describe_type(hint: Any) -> str:
    names = {float: "a number", int: "an integer", bool: "true or false", str: "a string", type(None): "none"}
    parts = [
        f"one of {', '.join(map(repr, get_args(kind)))}" if get_origin(kind) is Literal else names.get(kind, str(kind))
        for kind in _alternatives(hint)
    ]
    return " or ".join(parts)
