"""What `domainwise reproduce` does with its plans: tell of them, carry them out, write what comes of them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from domainwise.atomic import write_atomically
from domainwise.cli.sweep_progress import duration
from domainwise.cli.sweep_steps import Conductor
from domainwise.cli.table import show_table
from domainwise.errors import DomainwiseError
from domainwise.figures import as_bytes, write_figure
from domainwise.markdown import as_markdown
from domainwise.recipes.plan import RecipePlan
from domainwise.recipes.reproduce import Reproduced, reproduced
from domainwise.reports.page import Picture, write_page
from domainwise.sweeps.calibration import Costs, estimated_seconds
from domainwise.sweeps.folder import Standing, SweepFolder
from domainwise.sweeps.plan import PlannedRun


def tell(plans: Sequence[RecipePlan], workers: int, console: Console) -> None:
    """How many runs each still needs and how long they will take, from a few real steps."""
    known: Costs = {}
    for plan in plans:
        for name, why in plan.left_out.items():
            console.print(f"{plan.recipe.key}: {name} is left out: {why}", highlight=False, soft_wrap=True)
        to_do = [run for run in plan.runs if not (Path(run.config.folder()) / "done").exists()]
        line = f"{plan.recipe.key}: {len(plan.runs)} runs, {len(plan.runs) - len(to_do)} of them done"
        if to_do:
            line += f"; {_estimate(to_do, workers, known, console)}"
        console.print(line, highlight=False, soft_wrap=True)


def _estimate(runs: Sequence[PlannedRun], workers: int, known: Costs, console: Console) -> str:
    with console.status("measuring a few steps") as status:

        def show(what: str) -> None:
            status.update(f"measuring a few steps of {what}")

        try:
            return f"about {duration(estimated_seconds(runs, workers, show, known))} with {workers} at a time"
        except DomainwiseError as error:
            return f"how long cannot be told: {error}"


def carry_out(plans: Sequence[RecipePlan], conductor: Conductor, folder: SweepFolder, data_dir: Path | None) -> None:
    """All runs together, so that workers begin once; each result is written as soon as its runs have ended."""
    unwritten, ended = list(plans), set[Path]()

    def write_what_is_complete() -> None:
        for plan in [plan for plan in unwritten if all(run.config.folder() in ended for run in plan.runs)]:
            unwritten.remove(plan)
            write_result(plan, folder, data_dir, conductor.console)

    def on_stand(run: PlannedRun, now: Standing) -> None:
        if now.state in ("done", "failed"):
            ended.add(run.config.folder())
            write_what_is_complete()

    with folder.locked():
        runs = {run.config.folder(): run for plan in plans for run in plan.runs}
        if runs:
            conductor.carry_out(list(runs.values()), folder, on_stand)
        with conductor.console.status("working out what needs no runs"):
            write_what_is_complete()


def write_result(plan: RecipePlan, folder: SweepFolder, data_dir: Path | None, console: Console) -> None:
    """What the recipe's finished runs say: printed, and written into its folder as Markdown, pictures and a page."""
    made = reproduced(plan, data_dir)
    place = folder.path / plan.recipe.key
    place.mkdir(parents=True, exist_ok=True)
    title = f"{', '.join(plan.recipe.numbers)}: {plan.recipe.about}"
    for table in made.tables:
        console.print(f"\n[bold]{table.title}[/bold]", highlight=False, soft_wrap=True)
        show_table(table.head, table.rows, numbers=table.numbers)
    for note in made.notes:
        console.print(f"note: {note}", highlight=False, soft_wrap=True)
    for name, figure in made.figures.items():
        write_figure(place / f"{name}.png", figure)
    files = [place / "result.md"]
    write_atomically(files[0], _as_text(title, made).encode())
    runs = [Path(run.config.folder()) for run in plan.runs]
    done = [run for run in runs if (run / "done").exists()]
    if done and made.tables:
        files.append(place / "result.html")
        pictures = [
            Picture(name.replace("_", " "), plan.recipe.about, f"{name}: {plan.recipe.about}", png=as_bytes(figure))
            for name, figure in made.figures.items()
        ]
        extra = [*made.tables[:-1], replace(made.tables[-1], notes=made.notes)]
        write_page(files[1], done, variants="split", title=title, extra=extra, pictures=pictures)
    console.print(f"[bold]wrote[/bold] {', '.join(map(str, files))}", highlight=False, soft_wrap=True)


def _as_text(title: str, made: Reproduced) -> str:
    parts = [f"# {title}"]
    parts += [f"## {each.title}\n\n{as_markdown(each.head, each.rows, each.numbers)}" for each in made.tables]
    parts += [f"![{name}]({name}.png)" for name in made.figures]
    parts += ["\n".join(f"- {note}" for note in made.notes)] if made.notes else []
    return "\n\n".join(parts) + "\n"
