"""`SweepSpec`: the datasets and methods that a sweep compares, how often, and the settings that all its runs share."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from domainwise.errors import DomainwiseError, unknown_choice
from domainwise.selection import SELECTIONS
from domainwise.storage.sweep_folder import SweepFolder
from domainwise.training.config import RunConfig, lower_method

if TYPE_CHECKING:
    from domainwise.hparams import Hparams

Search = Literal["random", "race"]
SHARED_SETTINGS = tuple(field.name for field in dataclasses.fields(RunConfig) if field.metadata["is_shared"])
# Where and how runs compute; the sweep itself sets `output`.
PLACEMENT_SETTINGS = tuple(
    field.name
    for field in dataclasses.fields(RunConfig)
    if not field.metadata["is_identity"] and field.metadata["is_option"] and field.name != "output"
)
# A sweep folder also takes a sweep with more of these.
_EXTENSIBLE = ("datasets", "algorithms", "selection", "draws", "trials")
# A race has compared its draws by its rules, and stopped some of them; other draws or rules would need those as well.
_RACE_EXTENSIBLE = ("datasets", "algorithms", "trials")
# The rules that score a run by itself and without the test domain.
_RACE_SELECTIONS = ("training_domain", "one_standard_error", "attacked_holdout", "ood_validation")
# The attack by which `attacked_holdout` selects: hardly visible, and the same whatever the size of the images.
DEFAULT_ATTACK_RADIUS = "2/255 rms"


@dataclass(frozen=True)
class SweepSpec:
    """A comparison of `algorithms` on `datasets`.

    Args:
        selection: names in `SELECTIONS`; the sweep plans the runs that these rules need.
        draws: hyperparameter draws per trial; the first is the defaults.
        grid: values by hyperparameter. The draws are then the points of the grid, the last name varying fastest, with
            the defaults for all other hyperparameters. A method takes part with the names that it has; without any, it
            has one draw.
        trials: repetitions with different seeds.
        space: search space, see `domainwise.hparams.read_space`.
        test_domains: hold out only these in turn (default: all).
        hparams: fixed values, for the methods that have them.
        settings: fields of `RunConfig` that all runs share.
        until_decided: trials are added depending on results, so that these are judged by a sequential test.
        search: `random` trains all draws to the end; `race` stops those that fall behind early, see
            `domainwise.sweeps.race`.
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
    grid: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    until_decided: bool = False
    search: Search = "random"

    def __post_init__(self) -> None:
        object.__setattr__(self, "algorithms", tuple(map(lower_method, self.algorithms)))
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
        self._check_grid()
        self._check_search()
        # Written down even if it is the default: the runs of a sweep must never differ in it.
        settings = {"seeding": "common", **self.settings}
        if "attacked_holdout" in self.selection and settings.get("attack_radius") is None:
            settings["attack_radius"] = DEFAULT_ATTACK_RADIUS
        object.__setattr__(self, "settings", settings)

    def _check_grid(self) -> None:
        if self.grid and self.draws > 1:
            raise DomainwiseError("draws and a grid cannot be used together: every point of the grid is one draw")
        for name, values in self.grid.items():
            listed = ", ".join(map(str, values))
            if not values:
                raise DomainwiseError(f"the grid has no values for {name}; it needs at least one")
            if len(set(values)) < len(values):
                raise DomainwiseError(f"duplicate values in the grid for {name}: {listed}")
            if name in self.hparams:
                raise DomainwiseError(f"{name} is both fixed ({self.hparams[name]}) and in the grid ({listed})")

    def _check_search(self) -> None:
        if self.search not in get_args(Search):
            raise unknown_choice("search", self.search, get_args(Search))
        if self.search == "random":
            return
        if self.draws < 2 and not self.grid:
            raise DomainwiseError("a race needs at least 2 draws or a grid")
        for name in self.selection:
            if name not in _RACE_SELECTIONS:
                raise DomainwiseError(
                    f"draws cannot race for selection {name}, which looks at other runs or at the test domain; choose "
                    f"from {', '.join(_RACE_SELECTIONS)}"
                )

    def make_config(self, dataset: str, algorithm: str, **settings: Any) -> RunConfig:
        """Return the config of one run, with the shared settings."""
        return RunConfig.of(**{**self.settings, "dataset": dataset, "algorithm": algorithm, **settings})

    def hparams_class(self, algorithm: str) -> "type[Hparams]":
        return self.make_config(self.datasets[0], algorithm).algorithm_class().Hparams

    def list_draws(self, algorithm: str) -> list[dict[str, Any]]:
        """Return the values that each draw of a method takes from the grid; without a grid, `draws` times none."""
        return list_points(self._own_grid(algorithm)) if self.grid else [{} for _ in range(self.draws)]

    def count_draws(self, algorithm: str) -> int:
        """Return the length of `list_draws`, which may be more than fits into memory."""
        return math.prod(map(len, self._own_grid(algorithm).values())) if self.grid else self.draws

    def _own_grid(self, algorithm: str) -> dict[str, tuple[Any, ...]]:
        fields = self.hparams_class(algorithm).fields()
        return {name: values for name, values in self.grid.items() if name in fields}

    def as_plain(self) -> dict[str, Any]:
        """Return the spec as values that TOML can hold; TOML has no None."""
        plain: dict[str, Any] = _to_plain(dataclasses.asdict(self))
        if not self.grid:
            del plain["grid"]  # sweeps without one stay what they were before there were grids
        if self.search == "random":
            del plain["search"]
        if not self.until_decided:
            del plain["until_decided"]
        return plain

    def claim(self, folder: SweepFolder) -> None:
        """Write the spec into the folder, or check that what the folder was started with is a part of it."""
        if folder.spec_file.exists():
            self._check_extends(folder.read_spec(), folder.path)
        folder.write_spec(self.as_plain())

    def _check_extends(self, stored: Mapping[str, Any], folder: Path) -> None:
        omitted = {"search": "random", "until_decided": False}
        stored, plain = {**omitted, **stored}, {**omitted, **self.as_plain()}
        # Once trials have depended on results, they always have.
        extensible = (*(_RACE_EXTENSIBLE if self.search == "race" else _EXTENSIBLE), "until_decided")
        # Setting by setting, so that the error names the one that differs.
        names = [name for each in (stored, plain) for name in each.get("settings", {})]
        stored, plain = ({**each.get("settings", {}), **each} for each in (stored, plain))
        names += [field.name for field in dataclasses.fields(self) if field.name != "settings"]
        for name in names:
            old, new = stored.get(name), plain.get(name)
            if name in extensible and isinstance(old, list) and isinstance(new, list):
                is_extended = set(old) <= set(new)
            elif name == "grid" and self.search == "random" and isinstance(old, dict) and isinstance(new, dict):
                points = list_points(old)
                is_extended = list_points(new)[: len(points)] == points  # the runs are numbered by their point
            elif name in extensible and isinstance(old, int) and isinstance(new, int):
                is_extended = old <= new
            else:
                is_extended = old == new
            if not is_extended:
                hint = (
                    "" if name in extensible or name not in _EXTENSIBLE else f", and a race takes no other {name} later"
                )
                raise DomainwiseError(
                    f"the sweep in {folder} was started with {name} {_format(old)}, not {_format(new)}{hint}; "
                    "choose another --output, or repeat the original options"
                )


def list_points(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return the points of a grid in order, the last name varying fastest; an empty grid has one."""
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def _to_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _to_plain(each) for name, each in value.items() if each is not None}
    if isinstance(value, list | tuple):
        return [_to_plain(each) for each in value]
    return value if isinstance(value, bool | int | float) else str(value)


def _format(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "none"
    if isinstance(value, dict) and all(isinstance(each, list) for each in value.values()):
        return " ".join(f"{name}={','.join(map(str, each))}" for name, each in value.items()) or "none"
    return "none" if value is None else str(value)
