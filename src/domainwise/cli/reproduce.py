"""`domainwise reproduce`: the paper's tables and figures, each by one command."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from domainwise.cli.console import DataProgress, SweepProgress, format_duration, interruptible, print_table
from domainwise.cli.sweep import _print_outcomes
from domainwise.errors import DomainwiseError, unknown
from domainwise.figures import render_figure, write_figure
from domainwise.reports.formats import format_markdown_table
from domainwise.reports.html import Picture, write_page
from domainwise.reproduction.plan import RecipeCost, RecipePlan, cost_of, plan_recipe
from domainwise.reproduction.recipe import Recipe, Scale, recipe_named, recipes, scale_named
from domainwise.reproduction.reproduce import Reproduced, reproduced
from domainwise.reproduction.smoke_data import write_layouts
from domainwise.storage.files import write_atomic
from domainwise.storage.run_folder import RunFolder, RunStatus
from domainwise.storage.sweep_folder import PlannedRun, SweepFolder
from domainwise.sweeps.engine import Engine
from domainwise.sweeps.runner import SweepOutcome, make_engine, run_plan
from domainwise.sweeps.time_estimate import RunCosts, estimate_seconds
from domainwise.training import RunConfig

EXAMPLES = """
Examples:

domainwise reproduce --list

domainwise reproduce --all --scale smoke

domainwise reproduce table_1 figure_1 --scale cpu --data-dir data --weights mobilenet_v2.pth

domainwise reproduce "Table 1" --scale cpu --data-dir data --dataset pacs --trials 3

domainwise reproduce table_3 --scale cpu --data-dir data --draws 6 --trials 6

domainwise reproduce main_table --scale full --engine ray --address auto --gpus-per-run 0.5

domainwise reproduce figure_1 --scale cpu --data-dir data --so-far

domainwise reproduce theorem memory
"""
ENGINES = ("local", "ray")


def reproduce(
    recipe: Annotated[list[str] | None, typer.Argument(help="By number or name, as --list shows them.")] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show every recipe, what it takes, and stop.")] = False,
    all_: Annotated[bool, typer.Option("--all", help="Every recipe.")] = False,
    scale: Annotated[str, typer.Option(help="full: the paper's setting; cpu: reduced; smoke: two steps.")] = "cpu",
    output: Annotated[Path, typer.Option("--output", "-o", help="Where runs and results go.")] = Path("runs/reproduce"),
    data_dir: Annotated[Path | None, typer.Option(help="Where the datasets lie; smoke brings its own images.")] = None,
    dataset: Annotated[list[str] | None, typer.Option(help="Only this one of a recipe's. May be repeated.")] = None,
    row: Annotated[list[str] | None, typer.Option(help="Only this row of a recipe. May be repeated.")] = None,
    trials: Annotated[int | None, typer.Option(help="In place of the scale's; more tell more.")] = None,
    draws: Annotated[int | None, typer.Option(help="Of the hyperparameters, in place of the scale's.")] = None,
    weights: Annotated[str | None, typer.Option(help="A file that networks for photographs start from.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only tell how many runs, and how long.")] = False,
    so_far: Annotated[bool, typer.Option("--so-far", help="Run nothing; write what the finished runs say.")] = False,
    engine: Annotated[str, typer.Option(help="local or ray, as for `domainwise sweep`.")] = "local",
    workers: Annotated[int, typer.Option(help="Runs at a time.")] = 2,
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster.")] = None,
    gpus_per_run: Annotated[float, typer.Option(help="That Ray reserves for a run.")] = 0.0,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Try failed runs again.")] = False,
) -> None:
    """Run the paper's tables and figures again, put ours beside its numbers, and judge its claims.

    Finished runs are kept: the same command goes on where it stopped. Results are written as result.md and pictures.
    """
    console = Console()
    if list_:
        _list(console)
        return
    chosen = list(recipes().values()) if all_ else [recipe_named(name) for name in recipe or []]
    if not chosen:
        raise DomainwiseError("say which recipes to run, or --all; `domainwise reproduce --list` shows them")
    size = scale_named(scale)
    if engine not in ENGINES:
        raise unknown("engine", engine, ENGINES)
    for option, value in (("--workers", workers), ("--trials", trials), ("--draws", draws)):
        if value is not None and value < 1:
            raise DomainwiseError(f"{option} must be at least 1, not {value}")
    for kind, given, known in (("dataset", dataset, _datasets(chosen)), ("row", row, _rows(chosen))):
        for name in given or []:
            if name not in known:
                raise unknown(f"{kind} of these recipes", name, known)
    size = replace(size, trials=trials or size.trials, draws=draws or size.draws)
    if size.name == "smoke":
        data_dir = write_layouts(output / "smoke" / "data")
    settings = {} if weights is None else {"weights": weights}
    only = {"datasets": dataset or [], "rows": row or []}
    plans = [_plan(each, size, output, data_dir, only, settings, console) for each in chosen]
    folder = SweepFolder(output / size.name)
    if so_far:
        for plan in plans:
            write_result(plan, folder, data_dir, console)
        return
    if size.name != "smoke":
        tell(plans, workers, console)
    if not dry_run:
        used = make_engine(engine, workers=workers, address=address, gpus_per_run=gpus_per_run)
        run_recipes(plans, used, folder, data_dir, retry_failed=retry_failed, console=console)


def _datasets(chosen: Sequence[Recipe]) -> list[str]:
    return list(dict.fromkeys(name for recipe in chosen for block in recipe.blocks for name in block.datasets))


def _rows(chosen: Sequence[Recipe]) -> list[str]:
    return list(dict.fromkeys(row.name for recipe in chosen for row in recipe.rows))


def _list(console: Console) -> None:
    full, cpu = scale_named("full"), scale_named("cpu")
    rows = [
        (
            ", ".join(each.numbers),
            each.key,
            each.name,
            str(cost_of(each, full).runs or ""),
            _in_words(cost_of(each, cpu)),
            each.about,
        )
        for each in recipes().values()
    ]
    print_table(("in the paper", "recipe", "or", "runs at full scale", "cpu scale, two processors", "what"), rows, 0)
    console.print("\n--dry-run measures a few steps and tells how long a scale takes here", highlight=False)


def _in_words(cost: RecipeCost) -> str:
    return f"{cost.runs} runs, {format_duration(cost.seconds or 0.0)}" if cost.runs else "a minute"


def _plan(
    recipe: Recipe,
    scale: Scale,
    output: Path,
    data_dir: Path | None,
    only: Mapping[str, Sequence[str]],
    settings: Mapping[str, Any],
    console: Console,
) -> RecipePlan:
    with DataProgress(console) as data:
        return plan_recipe(
            recipe,
            scale,
            # Shared by all recipes: what several tables need is run once.
            output / scale.name / "runs",
            data_dir=data_dir,
            **only,
            settings=settings,
            on_data=data.report,
        )


def tell(plans: Sequence[RecipePlan], workers: int, console: Console) -> None:
    """How many runs each still needs and how long they will take, from a few real steps."""
    costs: RunCosts = {}
    for plan in plans:
        for name, why in plan.left_out.items():
            console.print(f"{plan.recipe.key}: {name} is left out: {why}", highlight=False, soft_wrap=True)
        to_do = [config for run, config in plan.runs.items() if not RunFolder(run.folder).is_done]
        line = f"{plan.recipe.key}: {len(plan.runs)} runs, {len(plan.runs) - len(to_do)} of them done"
        if to_do:
            line += f"; {_estimate(to_do, workers, costs, console)}"
        console.print(line, highlight=False, soft_wrap=True)


def _estimate(configs: Sequence[RunConfig], workers: int, costs: RunCosts, console: Console) -> str:
    with console.status("measuring a few steps") as status:

        def show(what: str) -> None:
            status.update(f"measuring a few steps of {what}")

        try:
            return f"about {format_duration(estimate_seconds(configs, workers, show, costs))} with {workers} at a time"
        except DomainwiseError as error:
            return f"how long cannot be told: {error}"


def run_recipes(
    plans: Sequence[RecipePlan],
    engine: Engine,
    folder: SweepFolder,
    data_dir: Path | None,
    *,
    retry_failed: bool,
    console: Console,
) -> None:
    """All runs together, so that workers begin once; each result is written as soon as its runs have ended."""
    unwritten, ended = list(plans), set[Path]()

    def write_what_is_complete() -> None:
        for plan in [plan for plan in unwritten if all(run.folder in ended for run in plan.runs)]:
            unwritten.remove(plan)
            write_result(plan, folder, data_dir, console)

    runs = dict({run.folder: (run, config) for plan in plans for run, config in plan.runs.items()}.values())
    outcome = SweepOutcome(0, 0)
    with folder.lock():
        with interruptible() as is_interrupted, SweepProgress(runs, None, console) as progress:

            def on_status(run: PlannedRun, status: RunStatus) -> None:
                progress.update(run, status)
                if status.state in ("done", "failed"):
                    ended.add(run.folder)
                    write_what_is_complete()

            if runs:
                outcome = run_plan(
                    runs, engine, retry_failed=retry_failed, on_status=on_status, should_stop=is_interrupted
                )
        with console.status("working out what needs no runs"):
            write_what_is_complete()
    if runs:
        _print_outcomes({folder.path: outcome}, console)


def write_result(plan: RecipePlan, folder: SweepFolder, data_dir: Path | None, console: Console) -> None:
    """What the recipe's finished runs say: printed, and written into its folder as Markdown, pictures and a page."""
    made = reproduced(plan, data_dir)
    place = folder.path / plan.recipe.key
    place.mkdir(parents=True, exist_ok=True)
    title = f"{', '.join(plan.recipe.numbers)}: {plan.recipe.about}"
    for table in made.tables:
        console.print(f"\n[bold]{table.title}[/bold]", highlight=False, soft_wrap=True)
        print_table(table.header, table.rows, numeric=table.numeric)
    for note in made.notes:
        console.print(f"note: {note}", highlight=False, soft_wrap=True)
    for name, figure in made.figures.items():
        write_figure(place / f"{name}.png", figure)
    files = [place / "result.md"]
    write_atomic(files[0], _as_text(title, made).encode())
    done = [run.folder for run in plan.runs if RunFolder(run.folder).is_done]
    if done and made.tables:
        files.append(place / "result.html")
        pictures = [
            Picture(
                name.replace("_", " "), plan.recipe.about, f"{name}: {plan.recipe.about}", png=render_figure(figure)
            )
            for name, figure in made.figures.items()
        ]
        extra = [*made.tables[:-1], replace(made.tables[-1], notes=made.notes)]
        write_page(files[1], done, split_variants=True, title=title, tables=extra, pictures=pictures)
    console.print(f"[bold]wrote[/bold] {', '.join(map(str, files))}", highlight=False, soft_wrap=True)


def _as_text(title: str, made: Reproduced) -> str:
    parts = [f"# {title}"]
    parts += [
        f"## {each.title}\n\n{format_markdown_table(each.header, each.rows, each.numeric)}" for each in made.tables
    ]
    parts += [f"![{name}]({name}.png)" for name in made.figures]
    parts += ["\n".join(f"- {note}" for note in made.notes)] if made.notes else []
    return "\n\n".join(parts) + "\n"
