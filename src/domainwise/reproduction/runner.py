"""`reproduce`: plans the runs of recipes, runs them together, and writes each result once its runs have ended."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.errors import DomainwiseError, RunInterrupted
from domainwise.reproduction.comparison import judge_plan, select_models
from domainwise.reproduction.plan import RecipePlan, merge_plans, move_recipe, plan_recipe
from domainwise.reproduction.recipe import Recipe, Scale, check_names, find_recipe, find_scale
from domainwise.reproduction.results import RecipeResult, write_claims, write_result
from domainwise.reproduction.smoke_data import write_smoke_data
from domainwise.selection.verdicts import Judgement, check_margin
from domainwise.storage.files import write_atomic
from domainwise.storage.run_folder import RunFolder, RunStatus
from domainwise.storage.sweep_folder import PlannedRun, SweepFolder
from domainwise.sweeps.decision import MAX_TRIALS, Contest, Decision, parse_budget, run_contest
from domainwise.sweeps.engine import Engine
from domainwise.sweeps.plan import Plan
from domainwise.sweeps.runner import OnStatus, SweepOutcome, check_seedings, make_engine, run_plan
from domainwise.training.registry import DatasetCache, dataset_name

Recipes = str | Recipe | Sequence[str | Recipe]
# Exists in a scale's folder once trials have been added depending on results.
SEQUENTIAL_FILE = "until_decided"


@dataclass(frozen=True)
class ReproductionCallbacks:
    """Callbacks of a reproduction.

    Args:
        on_data: called while images are read and decoded, and while pictures are drawn.
        on_plan: called with all plans before anything runs.
        on_status: called with the status of every run at the start, and whenever it changes.
        on_runs: called with the runs of every round, if trials are added until claims are decided.
        on_note: called with the reason for it, and with other things worth a line.
        on_result: called when a result has been written.
        should_stop: asked several times per second; True lets every run save and raises `RunInterrupted`.
    """

    on_data: OnProgress = ignore_progress
    on_plan: Callable[[Sequence[RecipePlan]], None] = lambda plans: None
    on_status: OnStatus = lambda run, status: None
    on_result: Callable[[RecipeResult], None] = lambda result: None
    should_stop: Callable[[], bool] = lambda: False
    on_runs: Callable[[Plan], None] = lambda runs: None
    on_note: Callable[[str], None] = lambda note: None


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
    on: str | None = None,
    test_domains: Sequence[str] = (),
    margin: float | None = None,
    settings: Mapping[str, Any] | None = None,
    device: str = "auto",
    threads: int | None = None,
    engine: Engine | None = None,
    retry_failed: bool = False,
    report_only: bool = False,
    until_decided: bool = False,
    budget: str | float | None = None,
    max_trials: int = MAX_TRIALS,
    workers: int = 2,
    callbacks: ReproductionCallbacks | None = None,
) -> Reproduction:
    """Run recipes, compare them with the paper's numbers and judge its claims; call it again to resume.

    Each result is written to `output/SCALE/RECIPE/` as result.md, pictures and result.html as soon as its runs have
    ended, and the claims of several recipes together to `output/SCALE/claims.md`. Runs are in `output/SCALE/runs/`;
    what several recipes need is run once.

    Args:
        recipes: a recipe or several, by key, name or number in the paper, such as "table_1" or "Figure 5".
        scale: full (the paper's settings), cpu (reduced) or smoke (two steps); see also `find_scale`.
        data_dir: folder with the datasets; smoke writes its own.
        datasets, rows: the datasets and rows of the recipes to run (default: all).
        on: run the recipes on this dataset, a name or a path, instead of the paper's.
        test_domains: hold out only these domains in turn (default: those of the recipe, or all).
        margin: largest difference without practical importance, in points (default: the recipe's, 1).
        settings: fields of `RunConfig` that replace the scale's; `weights` only for pretrained networks.
        threads: CPU threads per run (default: the CPUs, shared by the workers).
        engine: see `domainwise.sweeps.runner.make_engine` (default: two worker processes).
        retry_failed: also run what failed before.
        report_only: run nothing, and report the finished runs; after `until_decided`, those of all trials.
        until_decided: add trials where claims are still open, until all are decided or the budget is spent. Runs only
            the rows of claims.
        budget: a duration such as `3h`, or seconds, for `until_decided` (default: no limit).
        max_trials: per claim, for `until_decided`.
        workers: number of runs at a time, for estimates.
    """
    callbacks = callbacks or ReproductionCallbacks()
    seconds = None if budget is None else parse_budget(budget)
    size = find_scale(scale) if isinstance(scale, str) else scale
    folder = SweepFolder(Path(output) / size.name)
    # The results decide how many trials there are, so a report covers all of them.
    is_open_ended = until_decided or (report_only and (folder.path / SEQUENTIAL_FILE).exists())
    if is_open_ended:
        size = replace(size, trials=max(size.trials, MAX_TRIALS))
    plans = plan_recipes(
        recipes,
        size,
        output,
        data_dir=data_dir,
        datasets=datasets,
        rows=rows,
        on=on,
        test_domains=test_domains,
        margin=margin,
        settings=settings,
        device=device,
        threads=threads,
        on_data=callbacks.on_data,
    )
    if until_decided and not report_only:

        def mark(runs: Plan) -> None:
            write_atomic(folder.path / SEQUENTIAL_FILE, b"")
            callbacks.on_runs(runs)

        with folder.lock():
            decide_claims(
                plans,
                engine=engine,
                budget=seconds,
                workers=workers,
                max_trials=max_trials,
                retry_failed=retry_failed,
                callbacks=replace(callbacks, on_runs=mark),
            )
            write_atomic(folder.path / SEQUENTIAL_FILE, b"")
        plans = [replace(plan, is_sequential=True) for plan in plans]
    if is_open_ended:
        plans, report_only = [plan.limit_trials() for plan in plans], True
    return run_recipe_plans(
        plans, folder, engine=engine, retry_failed=retry_failed, report_only=report_only, callbacks=callbacks
    )


def decide_claims(
    plans: Sequence[RecipePlan],
    *,
    engine: Engine | None = None,
    budget: float | None = None,
    workers: int = 2,
    max_trials: int = MAX_TRIALS,
    rank: Callable[[Mapping[str, Judgement], int], list[str]] | None = None,
    retry_failed: bool = False,
    callbacks: ReproductionCallbacks,
) -> Decision:
    """Add trials to the rows of the claims that are open; arguments as of `reproduce` and `run_contest`.

    The plans must have all trials that may be added, and their folder must be locked.
    """
    prefixes = {plan.recipe.key: f"{plan.recipe.key}: " if len(plans) > 1 else "" for plan in plans}
    claims = {prefixes[plan.recipe.key] + claim.text: (plan, claim) for plan in plans for claim in plan.claims}
    if not claims:
        raise DomainwiseError(f"no claims that the runs of {', '.join(plan.recipe.key for plan in plans)} can decide")

    def plan_trial(name: str, trial: int) -> Plan:
        plan, claim = claims[name]
        return merge_plans(
            {run: config for run, config in row_plan.runs.items() if run.trial == plan.scale.first_trial + trial}
            for row_plan in plan.row_plans
            if row_plan.row.name in (claim.better, claim.worse)
            and dataset_name(row_plan.dataset) in (claim.datasets or plan.recipe.datasets)
        )

    def judge() -> dict[str, Judgement]:
        verdicts = (
            (prefixes[plan.recipe.key] + each.claim, each.judgement)
            for plan in plans
            for each in judge_plan(plan, select_models(plan))
        )
        return {name: judgement for name, judgement in verdicts if judgement is not None}

    def run(chosen: Plan, stop: Callable[[], bool]) -> None:
        callbacks.on_runs(chosen)
        run_plan(chosen, runner, on_status=callbacks.on_status, should_stop=stop)

    runner = engine or make_engine(workers=workers)
    for planned in merge_plans(plan.runs for plan in plans) if retry_failed else ():
        RunFolder(planned.folder).clear_failure()
    decision = run_contest(
        Contest(plan_trial, judge, run),
        budget=budget,
        workers=workers,
        max_trials=max_trials,
        rank=rank,
        on_round=callbacks.on_note,
        should_stop=callbacks.should_stop,
    )
    callbacks.on_note(decision.reason)
    return decision


def plan_recipes(
    recipes: Recipes,
    scale: str | Scale = "cpu",
    output: str | Path = "runs/reproduce",
    *,
    data_dir: str | Path | None = None,
    datasets: Collection[str] = (),
    rows: Collection[str] = (),
    on: str | None = None,
    test_domains: Sequence[str] = (),
    margin: float | None = None,
    settings: Mapping[str, Any] | None = None,
    device: str = "auto",
    threads: int | None = None,
    on_data: OnProgress = ignore_progress,
) -> list[RecipePlan]:
    """Plan the runs of recipes, with the arguments of `reproduce`; a dataset that cannot be opened is skipped."""
    several = [recipes] if isinstance(recipes, str | Recipe) else recipes
    chosen = [find_recipe(each) if isinstance(each, str) else each for each in several]
    if on is not None:
        chosen = [move_recipe(each, on) for each in chosen]
    if test_domains:
        chosen = [_hold_out(each, tuple(test_domains)) for each in chosen]
    if margin is not None:
        check_margin(margin)
        chosen = [replace(each, margin=margin) for each in chosen]
    check_names("dataset of these recipes", datasets, [name for recipe in chosen for name in recipe.datasets])
    check_names("row of these recipes", rows, [row.name for recipe in chosen for row in recipe.rows])
    scale = find_scale(scale) if isinstance(scale, str) else scale
    folder = Path(output) / scale.name
    SweepFolder(folder).check_place()
    if scale.name == "smoke":
        data_dir = write_smoke_data(folder / "data")
    cache = DatasetCache()
    is_sequential = (folder / SEQUENTIAL_FILE).exists()
    plans = [
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
            threads=threads,
            on_data=on_data,
            cache=cache,
            is_sequential=is_sequential,
        )
        for recipe in chosen
    ]
    reasons = [reason for plan in plans for reason in plan.skipped.values()]
    if on is not None and reasons:
        raise DomainwiseError(reasons[0])
    return plans


def _hold_out(recipe: Recipe, test_domains: tuple[str, ...]) -> Recipe:
    """Return the recipe with only these domains held out."""
    if not recipe.blocks:
        raise DomainwiseError(f"{recipe.key} trains no models, so that no domain can be held out; omit --test-domain")
    return replace(recipe, blocks=tuple(replace(block, test_domains=test_domains) for block in recipe.blocks))


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
    errors: dict[PlannedRun, str] = {}
    runs = merge_plans(plan.runs for plan in plans)
    # The folders of each plan's runs that have not ended.
    waiting = [(plan, {run.folder for run in plan.runs}) for plan in plans]
    unended = {run.folder for run in runs}

    def report(task: str, done: int, total: int) -> None:
        # Measurements and pictures may take as long as runs.
        if callbacks.should_stop():
            raise RunInterrupted(f"stopped: {task}, {done} of {total} done")
        callbacks.on_data(task, done, total)

    def write_ended() -> None:
        for plan, left in waiting[:]:
            if report_only or not left:
                waiting.remove((plan, left))
                results[plan.recipe.key] = write_result(plan, report)
                callbacks.on_result(results[plan.recipe.key])

    def on_status(run: PlannedRun, status: RunStatus) -> None:
        callbacks.on_status(run, status)
        if status.state == "failed":
            errors[run] = status.error
        if status.state in ("done", "failed"):
            unended.discard(run.folder)
            for _, left in waiting:
                left.discard(run.folder)
            # What is left after the last run is written below, when callbacks show no runs any more.
            if unended:
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
        in_order = {plan.recipe.key: results[plan.recipe.key] for plan in plans}
        if len(plans) > 1 and (files := write_claims(list(in_order.values()), folder.path)):
            callbacks.on_note(f"claims: wrote {', '.join(map(str, files))}")
    return Reproduction(in_order, outcome, errors)
