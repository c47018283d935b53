"""`domainwise reproduce`: the paper's tables and figures, one command each."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from domainwise.cli.console import (
    DataProgress,
    PlainConsole,
    SweepProgress,
    format_duration,
    interruptible,
    make_console,
    print_json,
    print_table,
    print_text,
    show_status,
)
from domainwise.cli.options import AsJson, Budget, DataDir, Device, Quiet, Threads, Workers
from domainwise.errors import DomainwiseError
from domainwise.reproduction.recipe import (
    RecipeCost,
    estimate_cost,
    find_recipe,
    find_scale,
    list_paper_recipes,
    load_recipes,
)

if TYPE_CHECKING:
    from domainwise.reproduction.plan import RecipePlan
    from domainwise.reproduction.results import RecipeResult
    from domainwise.reproduction.runner import ReproductionCallbacks
    from domainwise.storage.run_folder import RunStatus
    from domainwise.storage.sweep_folder import PlannedRun
    from domainwise.sweeps.plan import Plan

EXAMPLES = """
Examples:

domainwise reproduce --list

domainwise reproduce --all --scale smoke

domainwise reproduce table_1 figure_1 --scale cpu --data-dir data --weights mobilenet_v2.pth

domainwise reproduce "Table 1" --scale cpu --data-dir data --dataset pacs --trials 3

domainwise reproduce table_3 --scale cpu --data-dir data --draws 6 --trials 6

domainwise reproduce table_7 --scale cpu --data-dir data --report-only --margin 0.5

domainwise reproduce table_7 table_8 --scale cpu --data-dir data --until-decided --budget 2h

domainwise reproduce table_7 --scale cpu --on photos/ --until-decided --budget 1h

domainwise reproduce threats --scale cpu --trials 10

domainwise reproduce main_table --scale full --engine ray --address auto --gpus-per-run 0.5

domainwise reproduce figure_1 --scale cpu --data-dir data --report-only

domainwise reproduce theorem memory
"""


def reproduce(
    recipe: Annotated[
        list[str] | None, typer.Argument(help="Recipes, by name or number in the paper (see --list).")
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List all recipes with their cost, and exit.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="Run every recipe of the paper.")] = False,
    scale: Annotated[
        str, typer.Option(help="Size of the runs: full (the paper's settings), cpu (reduced) or smoke (two steps).")
    ] = "cpu",
    dataset: Annotated[list[str] | None, typer.Option(help="Run only this dataset of the recipes. Repeatable.")] = None,
    on: Annotated[
        str | None,
        typer.Option(help="Run the recipes on this dataset instead of the paper's: a name, a folder or a CSV file."),
    ] = None,
    test_domain: Annotated[
        list[str] | None,
        typer.Option(help="Hold out only this domain (default: those of the recipe, or all). Repeatable."),
    ] = None,
    row: Annotated[list[str] | None, typer.Option(help="Run only this row of the recipes. Repeatable.")] = None,
    trials: Annotated[
        int | None,
        typer.Option(help="Repetitions with different seeds (default: the scale's; at most 100 with --until-decided)."),
    ] = None,
    draws: Annotated[
        int | None,
        typer.Option(help="Hyperparameter draws per trial; the first is the defaults (default: the scale's)."),
    ] = None,
    margin: Annotated[
        float | None, typer.Option(help="Largest difference without practical importance, in points (default: 1).")
    ] = None,
    weights: Annotated[
        str | None, typer.Option(help="File with the pretrained weights of the networks for photographs.")
    ] = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    engine: Annotated[str, typer.Option(help="local (worker processes) or ray.")] = "local",
    workers: Workers = 2,
    threads: Threads = None,
    address: Annotated[str | None, typer.Option(help="Ray cluster address (default: start a local one).")] = None,
    gpus_per_run: Annotated[float, typer.Option(help="GPUs that Ray reserves per run; may be a fraction.")] = 0.0,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for runs and results.")] = Path(
        "runs/reproduce"
    ),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the number of runs and the estimated time, and exit.")
    ] = False,
    report_only: Annotated[
        bool, typer.Option("--report-only", help="Run nothing; report the runs that are finished.")
    ] = False,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Run failed runs again.")] = False,
    until_decided: Annotated[
        bool,
        typer.Option(
            "--until-decided",
            help="Add trials to the rows of the paper's claims until all are decided or the budget is spent. Rerun to "
            "continue.",
        ),
    ] = False,
    budget: Budget = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Run the paper's tables and figures, compare with its numbers, and judge its claims.

    Rerun the same command to resume. Results go to OUTPUT/SCALE/RECIPE as result.md, result.html and pictures, and an
    overview of the claims of several recipes to OUTPUT/SCALE/claims.md.
    """
    if list_:
        _print_list(as_json)
        return
    recipes = list_paper_recipes() if all_ else [find_recipe(name) for name in recipe or []]
    if not recipes:
        raise DomainwiseError("no recipe given; name at least one or use --all (see `domainwise reproduce --list`)")
    if not until_decided and budget is not None:
        raise DomainwiseError("--budget is for --until-decided; give both, or --trials")
    size = find_scale(scale, trials, draws)
    from domainwise.reproduction.runner import plan_recipes
    from domainwise.reproduction.runner import reproduce as reproduce_recipes
    from domainwise.sweeps.decision import MAX_TRIALS
    from domainwise.sweeps.runner import make_engine

    run_engine = make_engine(engine, workers=workers, address=address, gpus_per_run=gpus_per_run)
    options: dict[str, Any] = {
        "data_dir": data_dir,
        "datasets": dataset or [],
        "rows": row or [],
        "on": on,
        "test_domains": test_domain or [],
        "margin": margin,
        "settings": {} if weights is None else {"weights": weights},
        "device": device,
        "threads": threads,
    }
    console = make_console(quiet, stderr=True)
    if dry_run:
        with DataProgress(console) as data:
            plans = plan_recipes(recipes, size, output, on_data=data.report, **options)
        _print_estimates(plans, workers, make_console())
        return
    is_estimated = scale != "smoke" and not report_only and not until_decided and not quiet
    with show_progress(console, lambda plans: _print_estimates(plans, workers, console) if is_estimated else None) as (
        callbacks
    ):
        reproduction = reproduce_recipes(
            recipes,
            size,
            output,
            **options,
            engine=run_engine,
            retry_failed=retry_failed,
            report_only=report_only,
            until_decided=until_decided,
            budget=budget,
            max_trials=trials or MAX_TRIALS,
            workers=workers,
            callbacks=callbacks,
        )
    results = list(reproduction.results.values())
    if as_json:
        print_json([_to_plain(result) for result in results])
    elif not quiet:
        for result in results:
            print_result(result)
    for run, error in reproduction.errors.items():
        console.print_line(("failed", "red"), f": {run.name}: {error}")
    if reproduction.errors:
        raise typer.Exit(1)


@contextmanager
def show_progress(
    console: PlainConsole, on_plan: "Callable[[Sequence[RecipePlan]], None]" = lambda plans: None
) -> "Iterator[ReproductionCallbacks]":
    """Yield callbacks that show the data being read, then the status of the runs, then what is written.

    Args:
        on_plan: called with the plans before the runs are shown.
    """
    from domainwise.reproduction.runner import ReproductionCallbacks

    progress = SweepProgress((), None, console)

    def start_runs(plans: "Sequence[RecipePlan]") -> None:
        nonlocal progress
        data.stop()
        on_plan(plans)
        runs = {run: config.steps for plan in plans for run, config in plan.runs.items()}
        if runs:
            steps = set(runs.values())
            progress = SweepProgress(runs, steps.pop() if len(steps) == 1 else None, console).__enter__()

    def update(run: "PlannedRun", status: "RunStatus") -> None:
        progress.update(run, status)
        if len(progress.ended) == len(progress.statuses):
            progress.__exit__()

    def start_round(runs: "Plan") -> None:
        nonlocal progress
        progress.__exit__()
        data.stop()
        progress = SweepProgress(runs, next(iter(runs.values())).steps, console).__enter__()

    def report_data(task: str, done: int, total: int) -> None:
        # rich shows one live display at a time.
        if not progress.live.is_started:
            data.report(task, done, total)

    def report_note(note: str) -> None:
        console.print_line(note)

    def report_result(result: "RecipeResult") -> None:
        files = ", ".join(map(str, result.files))
        console.print_line(f"{result.recipe.key}: wrote {files}")

    with DataProgress(console) as data, interruptible() as is_interrupted:
        try:
            yield ReproductionCallbacks(
                report_data, start_runs, update, report_result, is_interrupted, start_round, report_note
            )
        finally:
            progress.__exit__()


def print_result(result: "RecipeResult") -> None:
    """Print the tables and notes of a result to stdout."""
    console = make_console()
    for table in result.tables:
        print_text()
        console.print_line((table.title, "bold"))
        print_table(table.header, table.rows, table.numeric)
        for note in table.notes:
            console.print_line(note)
    for note in result.notes:
        console.print_line(f"note: {note}")


def _to_plain(result: "RecipeResult") -> dict[str, Any]:
    tables = [{"title": table.title, "header": table.header, "rows": table.rows} for table in result.tables]
    verdicts = [asdict(verdict) for verdict in result.verdicts]
    return {
        "recipe": result.recipe.key,
        "tables": tables,
        "verdicts": verdicts,
        "notes": result.notes,
        "files": result.files,
    }


def _print_list(as_json: bool) -> None:
    full, cpu = find_scale("full"), find_scale("cpu")
    costs = [(each, estimate_cost(each, full), estimate_cost(each, cpu)) for each in load_recipes().values()]
    if as_json:
        print_json(
            [
                {
                    "recipe": each.key,
                    "name": each.name,
                    "numbers": each.numbers,
                    "about": each.about,
                    "full_runs": at_full.runs,
                    "cpu_runs": at_cpu.runs,
                    "cpu_seconds": at_cpu.seconds if at_cpu.runs else None,
                }
                for each, at_full, at_cpu in costs
            ]
        )
        return
    rows = [
        (
            each.key if each.name == each.key else f"{each.key} ({each.name})",
            ", ".join(each.numbers),
            str(at_full.runs or ""),
            _format_cost(at_cpu),
            each.about,
        )
        for each, at_full, at_cpu in costs
    ]
    print_table(("recipe", "in the paper", "runs, full scale", "cpu scale, two cores", "about"), rows)
    print_text("\nUse --dry-run to measure a few steps and estimate the time on this machine.")


def _format_cost(cost: RecipeCost) -> str:
    if not cost.runs:
        return "about a minute"
    return f"{cost.runs} runs" if cost.seconds is None else f"{cost.runs} runs, {format_duration(cost.seconds)}"


def _print_estimates(plans: "Sequence[RecipePlan]", workers: int, console: PlainConsole) -> None:
    """Print per recipe what is skipped, the number of runs and the time they take, from a few measured steps."""
    from domainwise.storage.run_folder import RunFolder
    from domainwise.sweeps.time_estimate import RunCosts, describe_unmeasured, estimate_seconds

    costs: RunCosts = {}
    for plan in plans:
        key = plan.recipe.key
        for name, reason in plan.skipped.items():
            console.print_line(f"{key}: {name} skipped: {reason}")
        configs = [config for run, config in plan.runs.items() if not RunFolder(run.folder).is_done]
        text = f"{key}: {len(plan.runs)} runs, {len(plan.runs) - len(configs)} done"
        if configs:
            with show_status(console, "measuring a few steps") as update:
                try:
                    seconds = estimate_seconds(
                        configs, workers, lambda task: update(f"measuring a few steps of {task}"), costs
                    )
                    text += f"; estimated: {format_duration(seconds)} with {workers} runs at a time"
                    note = describe_unmeasured(configs, costs)
                    text += f" ({note})" if note else ""
                except DomainwiseError as error:
                    text += f"; could not estimate the time: {error}"
        console.print_line(text)
