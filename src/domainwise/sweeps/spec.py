"""What a sweep is: the datasets and methods it compares, how often, and what all of its runs share."""

import dataclasses
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from domainwise.errors import DomainwiseError, unknown
from domainwise.selection import SELECTIONS
from domainwise.storage.files import write_atomically
from domainwise.training import RunConfig

# Fields of RunConfig that all runs of a sweep share.
SHARED = (
    "network",
    "weights",
    "batch_norm",
    "augment",
    "dataset_options",
    "train_domains",
    "steps",
    "record_every",
    "batch_size",
    "dropout",
    "evaluate",
    "precision",
)
_WIDENED = ("datasets", "algorithms", "selection", "draws", "trials")


@dataclass(frozen=True)
class SweepSpec:
    """A comparison of `algorithms` on `datasets`.

    Args:
        selection: names of `SELECTIONS`; the sweep makes the runs that these need.
        draws: of the hyperparameters for each trial; the first is the defaults.
        trials: repetitions with other seeds.
        space: to draw from; see `domainwise.hparams.read_space`.
        test_domains: the only ones to leave out in turn; all where none is named.
        hparams: values that are not drawn, for the methods that have them.
        settings: fields of `RunConfig` that all runs share.
    """

    datasets: tuple[str, ...]
    algorithms: tuple[str, ...]
    selection: tuple[str, ...] = ("training_domain",)
    draws: int = 1
    trials: int = 1
    space: str = "domainbed"
    test_domains: tuple[str, ...] = ()
    hparams: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("datasets", "algorithms", "selection"):
            given = getattr(self, name)
            if not given:
                raise DomainwiseError(f"a sweep needs at least one of {name}")
            if len(set(given)) < len(given):
                raise DomainwiseError(f"{name} names one twice: {', '.join(given)}")
        for name in ("draws", "trials"):
            if getattr(self, name) < 1:
                raise DomainwiseError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in self.selection:
            if name not in SELECTIONS:
                raise unknown("selection", name, SELECTIONS)
        for name in self.settings:
            if name not in SHARED:
                raise unknown("setting of a sweep", name, SHARED)

    def config(self, dataset: str, algorithm: str, **settings: Any) -> RunConfig:
        """A run's config, with what all runs share."""
        return RunConfig.of(**{**self.settings, "dataset": dataset, "algorithm": algorithm, **settings})

    def as_toml(self) -> str:
        return as_toml(dataclasses.asdict(self))

    def claim(self, file: Path) -> None:
        """Write the spec into `file`, unless that was begun with something that is not a part of it."""
        if file.exists():
            self._check_holds(read_spec(file), file.parent)
        write_atomically(file, self.as_toml().encode())

    def _check_holds(self, begun: Mapping[str, Any], folder: Path) -> None:
        mine = tomllib.loads(self.as_toml())
        for name in (item.name for item in dataclasses.fields(self)):
            old, new = begun.get(name), mine.get(name)
            if name in _WIDENED and isinstance(old, list) and isinstance(new, list):
                is_held = set(old) <= set(new)
            elif name in _WIDENED and isinstance(old, int) and isinstance(new, int):
                is_held = old <= new
            else:
                is_held = old == new
            if not is_held:
                raise DomainwiseError(
                    f"the sweep in {folder} was begun with {name} {_shown(old)}, not {_shown(new)}; "
                    "choose another --output, or give what it was begun with"
                )


def read_spec(file: Path) -> Mapping[str, Any]:
    """What a sweep was begun with, as plain values."""
    try:
        return tomllib.loads(file.read_text())
    except FileNotFoundError as error:
        raise DomainwiseError(f"there is no sweep in {file.parent}: it has no {file.name}") from error
    except (OSError, ValueError) as error:
        raise DomainwiseError(f"{file} cannot be read: {error}") from error


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def as_toml(values: Mapping[str, Any]) -> str:
    """A line a value; mappings inside become tables of one line. None is left out: TOML has no word for it."""
    return "".join(f"{_key(name)} = {_value(value)}\n" for name, value in values.items() if value is not None)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(name)} = {_value(each)}" for name, each in value.items() if each is not None)
        return f"{{{inside}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    # A string of JSON is one of TOML, but for the character 127, which only TOML wants escaped.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    is_bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if is_bare else json.dumps(name, ensure_ascii=False)
