"""`SweepSpec`: the datasets and methods that a sweep compares, how often, and the settings that all its runs share."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from domainwise.errors import DomainwiseError, unknown_choice
from domainwise.selection import SELECTIONS
from domainwise.storage.sweep_folder import SweepFolder
from domainwise.training.config import RunConfig

SHARED_SETTINGS = tuple(field.name for field in dataclasses.fields(RunConfig) if field.metadata["is_shared"])
# Where and how runs compute; the sweep itself sets `output`.
PLACEMENT_SETTINGS = tuple(
    field.name
    for field in dataclasses.fields(RunConfig)
    if not field.metadata["is_identity"] and field.name != "output"
)
# A sweep folder also takes a sweep with more of these.
_EXTENSIBLE = ("datasets", "algorithms", "selection", "draws", "trials")


@dataclass(frozen=True)
class SweepSpec:
    """A comparison of `algorithms` on `datasets`.

    Args:
        selection: names in `SELECTIONS`; the sweep plans the runs that these rules need.
        draws: hyperparameter draws per trial; the first is the defaults.
        trials: repetitions with different seeds.
        space: search space, see `domainwise.hparams.read_space`.
        test_domains: hold out only these in turn (default: all).
        hparams: fixed values, for the methods that have them.
        settings: fields of `RunConfig` that all runs share.
    """

    datasets: tuple[str, ...]
    algorithms: tuple[str, ...]
    selection: tuple[str, ...] = ("training_domain",)
    draws: int = 1
    trials: int = 1
    space: str = "domainbed"
    test_domains: tuple[str, ...] = ()
    hparams: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("datasets", "algorithms", "selection"):
            values = getattr(self, name)
            if not values:
                raise DomainwiseError(f"no {name} given; a sweep needs at least one")
            if len(set(values)) < len(values):
                raise DomainwiseError(f"duplicate entries in {name}: {', '.join(values)}")
        for name in ("draws", "trials"):
            if getattr(self, name) < 1:
                raise DomainwiseError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in self.selection:
            if name not in SELECTIONS:
                raise unknown_choice("selection", name, SELECTIONS)
        for name in self.settings:
            if name not in SHARED_SETTINGS:
                raise unknown_choice("sweep setting", name, SHARED_SETTINGS)

    def make_config(self, dataset: str, algorithm: str, **settings: Any) -> RunConfig:
        """Return the config of one run, with the shared settings."""
        return RunConfig.of(**{**self.settings, "dataset": dataset, "algorithm": algorithm, **settings})

    def as_plain(self) -> dict[str, Any]:
        """Return the spec as values that TOML can hold; TOML has no None."""
        plain: dict[str, Any] = _to_plain(dataclasses.asdict(self))
        return plain

    def claim(self, folder: SweepFolder) -> None:
        """Write the spec into the folder, or check that what the folder was started with is a part of it."""
        if folder.spec_file.exists():
            self._check_extends(folder.read_spec(), folder.path)
        folder.write_spec(self.as_plain())

    def _check_extends(self, stored: Mapping[str, Any], folder: Path) -> None:
        plain = self.as_plain()
        for name in (field.name for field in dataclasses.fields(self)):
            old, new = stored.get(name), plain.get(name)
            if name in _EXTENSIBLE and isinstance(old, list) and isinstance(new, list):
                is_extended = set(old) <= set(new)
            elif name in _EXTENSIBLE and isinstance(old, int) and isinstance(new, int):
                is_extended = old <= new
            else:
                is_extended = old == new
            if not is_extended:
                raise DomainwiseError(
                    f"the sweep in {folder} was started with {name} {_format(old)}, not {_format(new)}; "
                    "choose another --output, or repeat the original options"
                )


def _to_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _to_plain(each) for name, each in value.items() if each is not None}
    if isinstance(value, list | tuple):
        return [_to_plain(each) for each in value]
    return value if isinstance(value, bool | int | float) else str(value)


def _format(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
