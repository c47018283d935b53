"""Recipes and scales: a table or figure of the paper as runs and claims, read from TOML, and what its runs cost."""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from domainwise.errors import DomainwiseError, unknown_choice

_FOLDER = Path(__file__).parent
# What is built from a recipe's runs; `theory` and `memory` have none.
Kind = Literal["table", "settings", "radius", "shift", "threats", "ranks", "gradcam", "theory", "memory"]
# Datasets that share the settings `photo` of a scale.
PHOTO = ("pacs", "office_home", "vlcs", "nico")


@dataclass(frozen=True)
class Row:
    """One row of a table: a method with fixed hyperparameters.

    Args:
        label: name of the method in the table of a shift (default: the algorithm).
        settings: fields of `RunConfig` that differ from those of other rows.
        varied: the hyperparameters in which the row differs from its siblings, the one to plot against first.
        paper: the setting or column of this row in the paper's table, if the method has several.
        space: search space for the other hyperparameters.
        keep_perturbations: save the perturbation at every record.
    """

    name: str
    algorithm: str
    label: str = ""
    hparams: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    varied: tuple[str, ...] = ()
    paper: str = ""
    space: str = "paper"
    keep_perturbations: bool = False

    @property
    def method(self) -> str:
        return self.label or self.algorithm

    @property
    def setting(self) -> tuple[str, float] | None:
        """The name and value of the varied hyperparameter, if there is one."""
        return (self.varied[0], float(self.hparams[self.varied[0]])) if self.varied else None


@dataclass(frozen=True)
class Block:
    """Datasets with the same protocol.

    Args:
        draws: hyperparameter draws at full scale; 1 means the defaults only.
        test_domains, train_domains: as for a sweep.
    """

    datasets: tuple[str, ...]
    selection: str
    draws: int = 1
    test_domains: tuple[str, ...] = ()
    train_domains: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """A claim of the paper: the row `better` has a higher accuracy than the row `worse` on `datasets` (default: all).

    Args:
        needs_all: the claim is about the average over the datasets, so a subset of them cannot decide it.
    """

    text: str
    better: str
    worse: str
    datasets: tuple[str, ...] = ()
    needs_all: bool = False


@dataclass(frozen=True)
class Recipe:
    """One table or figure.

    Args:
        key: name of its file, such as `table_1`.
        name: descriptive name, such as `at_against_erm`.
        numbers: its numbers in the paper; empty for what the paper does not have.
        published: number of the table whose values are shown next to ours.
        margin: largest difference without practical importance, in points (default: 1).
        gallery: test domain on which the page shows Grad-CAM, perturbations and attacks of the selected models.
    """

    key: str
    name: str
    about: str
    numbers: tuple[str, ...] = ()
    kind: Kind = "table"
    published: int | None = None
    note: str = ""
    gallery: str = ""
    margin: float | None = None
    rows: tuple[Row, ...] = ()
    blocks: tuple[Block, ...] = ()
    claims: tuple[Claim, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that `find_recipe` accepts: the key, the descriptive name and the numbers in the paper."""
        return tuple(dict.fromkeys((self.key, self.name, *map(_normalize, self.numbers))))

    @property
    def title(self) -> str:
        return f"{', '.join(self.numbers)}: {self.about}" if self.numbers else self.about

    @property
    def datasets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for block in self.blocks for name in block.datasets))


@cache
def load_recipes() -> Mapping[str, Recipe]:
    """Load every recipe by its key: tables, figures and sections as the paper numbers them, then the others."""
    recipes = [_read_recipe(file) for file in (_FOLDER / "recipes").glob("*.toml")]
    return {recipe.key: recipe for recipe in sorted(recipes, key=_sort_key)}


def list_paper_recipes() -> list[Recipe]:
    """Return the recipes of the paper's tables and figures."""
    return [recipe for recipe in load_recipes().values() if recipe.numbers]


def find_recipe(name: str) -> Recipe:
    """Return the recipe with this key, name or number; `Figure 5` is the same as `figure_5`."""
    for recipe in load_recipes().values():
        if _normalize(name) in recipe.names:
            return recipe
    names = [each for recipe in load_recipes().values() for each in recipe.names]
    raise unknown_choice("recipe", name, names, "see `domainwise reproduce --list`")


def _normalize(name: str) -> str:
    return name.strip().lower().replace(" ", "_")


def _sort_key(recipe: Recipe) -> tuple[bool, str, int]:
    kind, _, number = recipe.key.rpartition("_")
    group = {"table": "1", "figure": "2"}.get(kind, f"3{recipe.key}")
    return not recipe.numbers, group, int(number) if number.isdecimal() else 0


def _read_recipe(file: Path) -> Recipe:
    content = tomllib.loads(file.read_text(encoding="utf-8"))
    parts = {name: content.pop(name, []) for name in ("row", "block", "claim")}
    try:
        recipe = Recipe(
            key=file.stem,
            rows=tuple(row for table in parts["row"] for row in _parse_rows(table)),
            blocks=tuple(Block(**_freeze(table)) for table in parts["block"]),
            claims=tuple(Claim(**_freeze(table)) for table in parts["claim"]),
            **_freeze(content),
        )
    except TypeError as error:
        raise DomainwiseError(f"recipe {file} could not be read: {error}") from error
    _check_recipe(recipe)
    return recipe


def _parse_rows(table: Mapping[str, Any]) -> list[Row]:
    """Return one row per value of `vary`, whose lists belong together; the first one fills `{}` in the texts."""
    row = Row(**{name: value for name, value in table.items() if name != "vary"})
    lists = table.get("vary")
    if lists is None:
        return [row]
    return [vary_row(replace(row, varied=tuple(lists)), values) for values in zip(*lists.values(), strict=True)]


def vary_row(row: Row, values: Sequence[Any]) -> Row:
    """Return the row with these values of its varied hyperparameters."""
    hparams = {**row.hparams, **dict(zip(row.varied, values, strict=True))}
    return replace(row, name=row.name.format(values[0]), paper=row.paper.format(values[0]), hparams=hparams)


def _freeze(table: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}


def _check_recipe(recipe: Recipe) -> None:
    if recipe.kind not in get_args(Kind):
        raise unknown_choice(f"kind of recipe {recipe.key}", recipe.kind, get_args(Kind))
    names = [row.name for row in recipe.rows]
    for claim in recipe.claims:
        for row in (claim.better, claim.worse):
            if row not in names:
                raise unknown_choice(f"row of recipe {recipe.key}", row, names)


@dataclass(frozen=True)
class Scale:
    """Settings of a recipe's runs.

    Args:
        trials: repetitions with different seeds.
        draws: hyperparameter draws; None for what the recipe asks for.
        is_one_cell: run each method on the first dataset only, with only its first domain held out.
        cost: seconds on one core for the updates and the evaluations of one ERM run, by dataset or `photo`.
        settings: fields of `RunConfig` by dataset or `photo`; `image_size` is an option of the dataset.
        first_trial: seed of the first trial.
    """

    name: str
    about: str
    trials: int
    draws: int | None
    is_one_cell: bool
    cost: Mapping[str, Sequence[float]]
    settings: Mapping[str, Mapping[str, Any]]
    first_trial: int = 0

    def __post_init__(self) -> None:
        for name in ("trials", "draws"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise DomainwiseError(f"{name} must be at least 1, got {value}")

    def get_settings(self, dataset: str) -> dict[str, Any]:
        """Return the settings of runs on this dataset; a dataset without settings of its own has photographs."""
        shared = self.settings.get("photo", {}) if dataset in PHOTO or dataset not in self.settings else {}
        return {**shared, **self.settings.get(dataset, {})}

    def select_blocks(self, recipe: Recipe) -> tuple[Block, ...]:
        """Return the blocks of the recipe that run at this scale."""
        if not self.is_one_cell:
            return recipe.blocks
        return tuple(replace(block, datasets=block.datasets[:1]) for block in recipe.blocks[:1])


@cache
def load_scales() -> Mapping[str, Scale]:
    """Load every scale by its name."""
    content = tomllib.loads((_FOLDER / "scales.toml").read_text(encoding="utf-8"))
    return {name: _parse_scale(name, table) for name, table in content.items()}


def find_scale(name: str, trials: int | None = None, draws: int | None = None) -> Scale:
    """Return the scale of this name, with another number of trials or hyperparameter draws if they are given."""
    if name not in load_scales():
        raise unknown_choice("scale", name, load_scales())
    scale = load_scales()[name]
    return replace(
        scale,
        trials=scale.trials if trials is None else trials,
        draws=scale.draws if draws is None else draws,
    )


def _parse_scale(name: str, table: Mapping[str, Any]) -> Scale:
    return Scale(
        name=name,
        about=table["about"],
        trials=table["trials"],
        draws=table.get("draws"),
        is_one_cell=table.get("is_one_cell", False),
        cost=table.get("cost", {}),
        settings={key: value for key, value in table.items() if isinstance(value, dict) and key != "cost"},
    )


# Time of an update relative to ERM's, measured by `benchmarks/method_cost.py`; 1 for all other methods.
_UPDATE_COST = {
    "at": 1.6,
    "uat": 1.4,
    "mat": 1.6,
    "ldat": 1.6,
    "mixup": 1.1,
    "sagnet": 2.5,
    "andmask": 1.2,
    "ncdg": 8.1,
}
# Number of domains that are held out in turn.
_TURNS = {"nico": 1, "colored_mnist": 1, "silhouettes": 1}
_NUM_DOMAINS = 4
_NUM_CORES = 2


@dataclass(frozen=True)
class RecipeCost:
    """The number of runs, and the estimated seconds on two cores if the scale knows what a run costs."""

    runs: int
    seconds: float | None


def estimate_cost(recipe: Recipe, scale: Scale) -> RecipeCost:
    """Estimate the cost of a recipe from stored measurements, without reading data."""
    runs, seconds = 0, 0.0
    for block in scale.select_blocks(recipe):
        for dataset in block.datasets:
            count = _count_turns(block, dataset, scale) * (scale.draws or block.draws) * scale.trials
            runs += count * len(recipe.rows)
            if scale.cost:
                updates, evaluations = _estimate_erm(block, scale.cost["photo" if dataset in PHOTO else dataset])
                factors = [_UPDATE_COST.get(row.algorithm, 1.0) for row in recipe.rows]
                seconds += count * sum(evaluations + updates * factor for factor in factors)
    return RecipeCost(runs, seconds / _NUM_CORES if scale.cost else None)


def _estimate_erm(block: Block, cost: Sequence[float]) -> tuple[float, float]:
    """Return the seconds of updates and evaluations; each training domain is a batch, each test domain is evaluated."""
    updates, evaluations = cost
    if not block.train_domains:
        return updates, evaluations
    num_train = len(block.train_domains)
    # The holdouts of all domains have about as many images as the main part of one.
    return updates * num_train / (_NUM_DOMAINS - 1), evaluations * (1 + _NUM_DOMAINS - num_train) / 2


def _count_turns(block: Block, dataset: str, scale: Scale) -> int:
    if block.train_domains or scale.is_one_cell or dataset in _TURNS:
        return 1
    return len(block.test_domains) or _NUM_DOMAINS


def check_names(kind: str, names: Iterable[str], choices: Iterable[str]) -> None:
    """Raise an error for the first name that is not among the choices."""
    known = list(dict.fromkeys(choices))
    for name in names:
        if name not in known:
            raise unknown_choice(kind, name, known)
