"""How much a recipe takes, before anything is measured or downloaded: runs, and roughly the time of two processors."""

from collections.abc import Sequence
from dataclasses import dataclass

from domainwise.recipes.plan import blocks_at
from domainwise.recipes.recipe import Block, Recipe
from domainwise.recipes.scales import PHOTO, Scale

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
