"""From a recipe and a scale to runs: for every row and dataset a small sweep in a folder of its own."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.errors import DomainwiseError
from domainwise.reproduction.recipe import PHOTO, Block, Recipe, Row, Scale
from domainwise.sweeps.plan import Plan, plan_sweep
from domainwise.sweeps.spec import SweepSpec
from domainwise.training.registry import DatasetCache


@dataclass(frozen=True)
class Part:
    """The runs of one row on one dataset, and how a model is chosen from them."""

    row: Row
    dataset: str
    selection: str
    runs: Plan


@dataclass(frozen=True)
class RecipePlan:
    """What is to be run.

    Args:
        left_out: datasets that cannot be opened, and why.
    """

    recipe: Recipe
    scale: Scale
    parts: tuple[Part, ...]
    left_out: Mapping[str, str]

    @property
    def runs(self) -> Plan:
        """All of them, trial by trial; a run that two rows or blocks share is there once."""
        every = {run.folder: (run, config) for part in self.parts for run, config in part.runs.items()}
        return dict(sorted(every.values(), key=lambda pair: pair[0].trial))


def plan_recipe(
    recipe: Recipe,
    scale: Scale,
    folder: Path,
    *,
    data_dir: str | Path | None = None,
    datasets: Collection[str] = (),
    rows: Collection[str] = (),
    settings: Mapping[str, Any] | None = None,
    on_data: OnProgress = ignore_progress,
) -> RecipePlan:
    """The runs of the recipe, into folders below `folder`.

    Args:
        datasets, rows: the only ones to run of those that the recipe has; none means all.
        settings: that take the place of the scale's; `weights` only of networks that do not begin from nothing.
    """
    parts: list[Part] = []
    left_out: dict[str, str] = {}
    opened = DatasetCache()
    for block in blocks_at(recipe, scale):
        for dataset in [name for name in block.datasets if not datasets or name in datasets]:
            given = _settings(scale, dataset, settings or {})
            try:
                tests = _tested(block, dataset, scale, given, data_dir, on_data, opened)
            except DomainwiseError as error:
                left_out[dataset] = str(error)
                continue
            for row in [each for each in recipe.rows if not rows or each.name in rows]:
                spec = _spec(block, row, dataset, scale, given, tests)
                place = _slug(row.name) + "".join(f"-from_{name}" for name in block.train_domains)
                placement = {} if data_dir is None else {"data_dir": data_dir}
                runs = plan_sweep(spec, folder / place, placement=placement, on_data=on_data, datasets=opened)
                named = {replace(run, name=f"{place}/{run.name}"): config for run, config in runs.items()}
                parts.append(Part(row, dataset, block.selection, named))
    return RecipePlan(recipe, scale, tuple(parts), left_out)


def blocks_at(recipe: Recipe, scale: Scale) -> tuple[Block, ...]:
    """The datasets that the recipe has at this scale."""
    if not scale.is_one_cell:
        return recipe.blocks
    return tuple(replace(block, datasets=block.datasets[:1]) for block in recipe.blocks[:1])


def _settings(scale: Scale, dataset: str, others: Mapping[str, Any]) -> dict[str, Any]:
    """As a sweep takes them; the size of images is an option of the dataset."""
    given = scale.of(dataset)
    has_weights = given.get("weights", "none") != "none"
    given |= {name: value for name, value in others.items() if name != "weights" or has_weights}
    size = given.pop("image_size", None)
    return {**given, **({} if size is None else {"dataset_options": {"image_size": size}})}


def _tested(
    block: Block,
    dataset: str,
    scale: Scale,
    given: Mapping[str, Any],
    data_dir: Any,
    on_data: OnProgress,
    opened: DatasetCache,
) -> tuple[str, ...]:
    """The domains to leave out in turn; none named means all, in one run where training domains are named."""
    spec = SweepSpec((dataset,), ("erm",), settings=dict(given))
    built = opened.build(spec.config(dataset, "erm", data_dir=data_dir), on_data)
    if block.test_domains or block.train_domains or not scale.is_one_cell:
        return block.test_domains
    return tuple(domain.name for domain in built.domains if domain.role in (None, "test"))[:1]


def _spec(
    block: Block, row: Row, dataset: str, scale: Scale, given: Mapping[str, Any], tests: tuple[str, ...]
) -> SweepSpec:
    alone = {"train_domains": block.train_domains} if block.train_domains else {}
    return SweepSpec(
        datasets=(dataset,),
        algorithms=(row.algorithm,),
        selection=(block.selection,),
        draws=scale.draws or block.draws,
        trials=scale.trials,
        space=row.space,
        test_domains=tests,
        hparams=row.hparams,
        settings={**given, **alone},
    )


def _slug(name: str) -> str:
    return name.replace(", ", "-").replace(" ", "_")


# An update as a multiple of ERM's, as `benchmarks/method_cost.py` measured it; methods that are not here take as long.
_UPDATE = {
    "at": 1.6,
    "uat": 1.4,
    "mat": 1.6,
    "ldat": 1.6,
    "mixup": 1.1,
    "sagnet": 2.5,
    "andmask": 1.2,
    "ncdg": 8.1,
}
# How many are left out in turn; datasets that are not here have four domains.
_TURNS = {"nico": 1, "colored_mnist": 1}
_DOMAINS = 4
_PROCESSORS = 2


@dataclass(frozen=True)
class RecipeCost:
    """How many runs, and their seconds where the scale knows what a run costs."""

    runs: int
    seconds: float | None


def cost_of(recipe: Recipe, scale: Scale) -> RecipeCost:
    runs, seconds = 0, 0.0
    is_known = bool(scale.cost)
    for block in blocks_at(recipe, scale):
        for dataset in block.datasets:
            count = _turns(block, dataset, scale) * (scale.draws or block.draws) * scale.trials
            runs += count * len(recipe.rows)
            if is_known:
                updates, evaluations = _of_erm(block, scale.cost["photo" if dataset in PHOTO else dataset])
                seconds += count * sum(evaluations + updates * _UPDATE.get(row.algorithm, 1.0) for row in recipe.rows)
    return RecipeCost(runs, seconds / _PROCESSORS if is_known else None)


def _of_erm(block: Block, cost: Sequence[float]) -> tuple[float, float]:
    """Seconds of an ERM run: a batch fewer for each domain that does not train, and the whole of it to evaluate."""
    updates, evaluations = cost
    if not block.train_domains:
        return updates, evaluations
    trained = len(block.train_domains)
    # Holdouts of all domains have about as many images as the rest of one.
    return updates * trained / (_DOMAINS - 1), evaluations * (1 + _DOMAINS - trained) / 2


def _turns(block: Block, dataset: str, scale: Scale) -> int:
    if block.train_domains or scale.is_one_cell:
        return 1
    return len(block.test_domains) or _TURNS.get(dataset, 4)
