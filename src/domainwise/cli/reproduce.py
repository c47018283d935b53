"""`domainwise reproduce`: the paper's tables and figures, each by one command."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from domainwise.cli.progress import DataProgress
from domainwise.cli.reproduce_steps import carry_out, tell, write_result
from domainwise.cli.sweep_progress import duration
from domainwise.cli.sweep_steps import Conductor, engine_named
from domainwise.cli.table import show_table
from domainwise.errors import DomainwiseError, unknown
from domainwise.recipes.cost import RecipeCost, cost_of
from domainwise.recipes.embedded import write_layouts
from domainwise.recipes.plan import RecipePlan, plan_recipe
from domainwise.recipes.recipe import Recipe, recipe_named, recipes
from domainwise.recipes.scales import Scale, scale_named
from domainwise.sweeps.folder import SweepFolder

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
        used = engine_named(engine, workers, address, gpus_per_run, "auto")
        conductor = Conductor(used, None, retry_failed=retry_failed, console=console)
        carry_out(plans, conductor, folder, data_dir)


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
    show_table(("in the paper", "recipe", "or", "runs at full scale", "cpu scale, two processors", "what"), rows, 0)
    console.print("\n--dry-run measures a few steps and tells how long a scale takes here", highlight=False)


def _in_words(cost: RecipeCost) -> str:
    return f"{cost.runs} runs, {duration(cost.seconds or 0.0)}" if cost.runs else "a minute"


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
