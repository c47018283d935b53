"""`domainwise robustness`: accuracy of trained models under attacks of growing radius."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import polars as pl
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from domainwise.cli.console import DataProgress, print_table
from domainwise.errors import DomainwiseError, unknown
from domainwise.explain.plots.accuracy import plot_accuracy_by_epsilon, plot_robustness
from domainwise.explain.robustness import (
    ATTACK_KINDS,
    RADII,
    AttackKind,
    AttackResult,
    attack_run,
    average_by_epsilon,
    average_over_runs,
    read_accuracy_by_epsilon,
)
from domainwise.explain.run_names import labels, run_names
from domainwise.figures import KINDS as PICTURES
from domainwise.figures import write_figure
from domainwise.storage.files import write_atomic
from domainwise.storage.run_folder import RunFolder
from domainwise.training.device import pick_device
from domainwise.training.loading import open_run

EXAMPLES = """
Examples:

domainwise robustness runs/erm runs/mat

domainwise robustness runs/mat-0 runs/mat-1 --domain sketch --radii 0,0.5,1 --kind sample --csv attacks.csv

domainwise robustness --against-epsilon sweeps/radii --output epsilon.png
"""
_DEFAULT_RADII = ",".join(f"{radius:g}" for radius in RADII)


def robustness(
    run: Annotated[list[Path], typer.Argument(help="Folders of runs; with --against-epsilon also of sweeps.")],
    domain: Annotated[
        list[str] | None, typer.Option(help="Attack on this domain; else all tested. Repeatable.")
    ] = None,
    radii: Annotated[
        str, typer.Option(help="Of the l2 balls, over a whole image in [0, 1], with commas.")
    ] = _DEFAULT_RADII,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="`domain`: one perturbation for all images of a domain; `sample`: one each. Repeatable."),
    ] = None,
    attack_steps: Annotated[int, typer.Option(help="Steps of ascent in each attack.")] = 20,
    images: Annotated[int, typer.Option(help="The most images a domain to measure on.")] = 500,
    which: Annotated[str, typer.Option(help="`best` (by what selects models) or `last`.")] = "best",
    seed: Annotated[int, typer.Option(help="Draws where attacks start.")] = 0,
    output: Annotated[Path, typer.Option("--output", "-o", help="The picture: png, svg or pdf.")] = Path(
        "robustness.png"
    ),
    csv: Annotated[Path | None, typer.Option(help="Write every measurement into this file.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    against_epsilon: Annotated[
        bool,
        typer.Option(
            "--against-epsilon", help="No attacks: accuracy in runs' records against the epsilon of training."
        ),
    ] = False,
    dataset: Annotated[str | None, typer.Option(help="The images, if the runs used some of one's own.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Where the datasets lie, as for train.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
) -> None:
    """Attack trained models, by one perturbation a domain and by one a sample, and draw what accuracy is left."""
    _check_kind_of_picture(output)
    if against_epsilon:
        frame = read_accuracy_by_epsilon(run)
        head, rows = _table_of_epsilons(frame)
        figure, numbers = plot_accuracy_by_epsilon(frame), len(head) - 1
    else:
        attack = partial(
            attack_run,
            domains=domain or (),
            radii=_numbers(radii),
            kinds=_kinds(kind),
            steps=attack_steps,
            images=images,
            which=which,  # type: ignore[arg-type]  # checked when the model is loaded
            seed=seed,
            device=pick_device(device),
        )
        frame = _attacked(list(dict.fromkeys(run)), attack, dataset, data_dir)
        head, rows = _table_of_radii(frame)
        figure, numbers = plot_robustness(frame), len(head) - 3
    files = [output]
    write_figure(output, figure)
    if csv is not None:
        write_atomic(csv, frame.write_csv().encode())
        files.append(csv)
    print_table(head, rows, numbers, is_markdown=markdown)
    Console(stderr=True).print(f"wrote {', '.join(map(str, files))}", highlight=False, soft_wrap=True)


def _check_kind_of_picture(output: Path) -> None:
    """Before the work, not after it."""
    kind = output.suffix.lower().removeprefix(".")
    if kind not in PICTURES:
        raise unknown("kind of picture", kind or str(output), PICTURES)


def _numbers(words: str) -> list[float]:
    try:
        return sorted({float(word) for word in words.split(",")})
    except ValueError as error:
        raise DomainwiseError(f"--radii takes numbers with commas between them, like 0,0.5,1, not {words!r}") from error


def _kinds(given: Sequence[str] | None) -> list[AttackKind]:
    for name in given or ():
        if name not in ATTACK_KINDS:
            raise unknown("kind of attack", name, ATTACK_KINDS)
    return [kind for kind in ATTACK_KINDS if not given or kind in given]


def _attacked(
    folders: Sequence[Path], attack: partial[list[AttackResult]], dataset: str | None, data_dir: Path | None
) -> pl.DataFrame:
    """A row a measurement of every run, with its `label` and `trial`."""
    settings = [RunFolder(folder).read_config()["config"] for folder in folders]
    if len(datasets := sorted({str(each["dataset"]) for each in settings})) > 1:
        raise DomainwiseError(f"runs on several datasets do not make one picture: {', '.join(datasets)}; give one's")
    errors = Console(stderr=True)
    rows = []
    for number, (folder, name, each, label) in enumerate(
        zip(folders, run_names(folders), settings, labels(settings), strict=True), start=1
    ):
        with DataProgress(errors) as progress:
            opened = open_run(folder, dataset=dataset, data_dir=data_dir, on_data=progress.report)
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeRemainingColumn(compact=True))
        with Progress(*columns, console=errors, transient=True, disable=not errors.is_terminal) as bar:
            domains = len(attack.keywords["domains"] or opened.roles.test)
            total = domains * len(attack.keywords["kinds"]) * len(attack.keywords["radii"])
            task = bar.add_task(f"attacking {name}, run {number} of {len(folders)}", total=total)
            made = attack(opened, on_attack=partial(bar.advance, task))
        rows += [{"label": label, "trial": each["trial_seed"], **asdict(one), "run": name} for one in made]
    return pl.DataFrame(rows)


def _table_of_radii(frame: pl.DataFrame) -> tuple[list[str], list[list[str]]]:
    means = average_over_runs(frame, ["label", "domain", "kind", "radius"])
    radii = frame["radius"].unique().sort().to_list()
    rows: dict[tuple[str, ...], list[str]] = {}
    for each in means.sort("radius").iter_rows(named=True):
        rows.setdefault((each["label"], each["domain"], each["kind"]), []).append(_percent(each))
    return ["method", "domain", "attack", *[f"{radius:g}" for radius in radii]], [
        [*place, *cells] for place, cells in rows.items()
    ]


def _table_of_epsilons(frame: pl.DataFrame) -> tuple[list[str], list[list[str]]]:
    domains = frame["domain"].unique(maintain_order=True).to_list()
    rows: dict[tuple[str, float | None], dict[str, str]] = {}
    for each in average_by_epsilon(frame).sort("method", "epsilon").iter_rows(named=True):
        rows.setdefault((each["method"], each["epsilon"]), {})[each["domain"]] = _percent(each)
    return ["method", "epsilon", *domains], [
        [method, "" if epsilon is None else f"{epsilon:g}", *[cells.get(domain, "") for domain in domains]]
        for (method, epsilon), cells in rows.items()
    ]


def _percent(mean: Mapping[str, Any]) -> str:
    error = "" if mean["error"] is None else f" ± {100 * mean['error']:.1f}"
    return f"{100 * mean['mean']:.1f}{error}"
