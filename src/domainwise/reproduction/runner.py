"""`reproduce`: plans the runs of recipes, runs them together, and writes each result once its runs have ended."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.reproduction.plan import RecipePlan, merge_plans, plan_recipe
from domainwise.reproduction.recipe import Recipe, Scale, check_names, find_recipe, find_scale
from domainwise.reproduction.results import RecipeResult, write_result
from domainwise.reproduction.smoke_data import write_smoke_data
from domainwise.selection.verdicts import check_margin
from domainwise.storage.run_folder import RunStatus
from domainwise.storage.sweep_folder import PlannedRun, SweepFolder
from domainwise.sweeps.engine import Engine
from domainwise.sweeps.runner import OnStatus, SweepOutcome, check_seedings, make_engine, run_plan
from domainwise.training.registry import DatasetCache

Recipes = str | Recipe | Sequence[str | Recipe]


@dataclass(frozen=True)
class ReproductionCallbacks:
    """Callbacks of a reproduction.

    Args:
        on_data: called while images are read and decoded, and while pictures are drawn.
        on_plan: called with all plans before anything runs.
        on_status: called with the status of every run at the start, and whenever it changes.
        on_result: called when a result has been written.
        should_stop: asked several times per second; True lets every run save and raises `RunInterrupted`.
    """

    on_data: OnProgress = ignore_progress
    on_plan: Callable[[Sequence[RecipePlan]], None] = lambda plans: None
    on_status: OnStatus = lambda run, status: None
    on_result: Callable[[RecipeResult], None] = lambda result: None
    should_stop: Callable[[], bool] = lambda: False


@dataclass(frozen=True)
class Reproduction:
    """The results by the key of their recipe, how many runs are done, and the errors of those that failed."""

    results: Mapping[str, RecipeResult]
    outcome: SweepOutcome
    errors: Mapping[PlannedRun, str] = field(default_factory=dict)


def reproduce(
    recipes: Recipes,
    scale: str | Scale = "cpu",
    output: str | Path = "runs/reproduce",
    *,
    data_dir: str | Path | None = None,
    datasets: Collection[str] = (),
    rows: Collection[str] = (),
    margin: float | None = None,
    settings: Mapping[str, Any] | None = None,
    device: str = "auto",
    engine: Engine | None = None,
    retry_failed: bool = False,
    report_only: bool = False,
    callbacks: ReproductionCallbacks | None = None,
) -> Reproduction:
    """Run recipes, compare them with the paper's numbers and judge its claims; call it again to resume.

    Each result is written to `output/SCALE/RECIPE/` as result.md, pictures and result.html as soon as its runs have
    ended. Runs are in `output/SCALE/runs/`; what several recipes need is run once.

    Args:
        recipes: a recipe or several, by key, name or number in the paper, such as "table_1" or "Figure 5".
        scale: full (the paper's settings), cpu (reduced) or smoke (two steps); see also `find_scale`.
        data_dir: folder with the datasets; smoke writes its own.
        datasets, rows: the datasets and rows of the recipes to run (default: all).
        margin: largest difference without practical importance, in points (default: the recipe's, 1).
        settings: fields of `RunConfig` that replace the scale's; `weights` only for pretrained networks.
        engine: see `domainwise.sweeps.runner.make_engine` (default: two worker processes).
        retry_failed: also run what failed before.
        report_only: run nothing, and report the finished runs.
    """
    callbacks = callbacks or ReproductionCallbacks()
    plans = plan_recipes(
        recipes,
        scale,
        output,
        data_dir=data_dir,
        datasets=datasets,
        rows=rows,
        margin=margin,
        settings=settings,
        device=device,
        on_data=callbacks.on_data,
    )
    folder = SweepFolder(Path(output) / (scale if isinstance(scale, str) else scale.name))
    return run_recipe_plans(
        plans, folder, engine=engine, retry_failed=retry_failed, report_only=report_only, callbacks=callbacks
    )


def plan_recipes(
    recipes: Recipes,
    scale: str | Scale = "cpu",
    output: str | Path = "runs/reproduce",
    *,
    data_dir: str | Path | None = None,
    datasets: Collection[str] = (),
    rows: Collection[str] = (),
    margin: float | None = None,
    settings: Mapping[str, Any] | None = None,
    device: str = "auto",
    on_data: OnProgress = ignore_progress,
) -> list[RecipePlan]:
    """Plan the runs of recipes, with the arguments of `reproduce`; a dataset that cannot be opened is skipped."""
    several = [recipes] if isinstance(recipes, str | Recipe) else recipes
    chosen = [find_recipe(each) if isinstance(each, str) else each for each in several]
    if margin is not None:
        check_margin(margin)
        chosen = [replace(each, margin=margin) for each in chosen]
    check_names("dataset of these recipes", datasets, [name for recipe in chosen for name in recipe.datasets])
    check_names("row of these recipes", rows, [row.name for recipe in chosen for row in recipe.rows])
    scale = find_scale(scale) if isinstance(scale, str) else scale
    folder = Path(output) / scale.name
    if scale.name == "smoke":
        data_dir = write_smoke_data(folder / "data")
    cache = DatasetCache()
    return [
        plan_recipe(
            recipe,
            scale,
            folder / recipe.key,
            folder / "runs",
            data_dir=None if data_dir is None else Path(data_dir),
            datasets=datasets,
            rows=rows,
            settings=settings,
            device=device,
            on_data=on_data,
            cache=cache,
        )
        for recipe in chosen
    ]


def run_recipe_plans(
    plans: Sequence[RecipePlan],
    folder: SweepFolder,
    *,
    engine: Engine | None = None,
    retry_failed: bool = False,
    report_only: bool = False,
    callbacks: ReproductionCallbacks,
) -> Reproduction:
    """Run all plans together, so that workers start once, and write each result as soon as its runs have ended."""
    results: dict[str, RecipeResult] = {}
    ended: set[Path] = set()
    errors: dict[PlannedRun, str] = {}
    unwritten = list(plans)
    runs = merge_plans(plan.runs for plan in plans)

    def write_ended() -> None:
        for plan in [plan for plan in unwritten if report_only or all(run.folder in ended for run in plan.runs)]:
            unwritten.remove(plan)
            results[plan.recipe.key] = write_result(plan, callbacks.on_data)
            callbacks.on_result(results[plan.recipe.key])

    def on_status(run: PlannedRun, status: RunStatus) -> None:
        callbacks.on_status(run, status)
        if status.state == "failed":
            errors[run] = status.error
        if status.state in ("done", "failed"):
            ended.add(run.folder)
            # What is left after the last run is written below, when callbacks show no runs any more.
            if len(ended) < len(runs):
                write_ended()

    check_seedings(runs)
    callbacks.on_plan(plans)
    outcome = SweepOutcome(0, 0)
    with folder.lock():
        if runs and not report_only:
            outcome = run_plan(
                runs,
                engine or make_engine(),
                retry_failed=retry_failed,
                on_status=on_status,
                should_stop=callbacks.should_stop,
            )
        write_ended()
    return Reproduction({plan.recipe.key: results[plan.recipe.key] for plan in plans}, outcome, errors)
