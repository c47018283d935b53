"""`domainwise robustness`: accuracy of trained models under attack, or against the epsilon of training (Figure 1)."""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from domainwise.cli.console import DataProgress, make_console, print_json, print_line, print_table, write_csv
from domainwise.cli.options import DataDir, Device, OwnAlgorithm, OwnNetwork, Quiet

if TYPE_CHECKING:
    import polars as pl

    from domainwise.storage.run_folder import Which
    from domainwise.training.evaluation import AttackKind

EXAMPLES = """
Examples:

domainwise robustness runs/erm runs/mat

domainwise robustness runs/mat-0 runs/mat-1 --domain sketch --radius 0 --radius 0.5 --kind sample --csv attacks.csv

domainwise robustness --against-epsilon sweeps/radii --output epsilon.png
"""


def robustness(
    run: Annotated[list[Path], typer.Argument(help="Run folders, or folders with runs below them.")],
    domain: Annotated[
        list[str] | None, typer.Option(help="Domain to attack (default: the test domains). Repeatable.")
    ] = None,
    radius: Annotated[
        list[float] | None,
        typer.Option(help="l2 radius over an image in [0, 1] (default: 0, 0.25, 0.5, 1, 2, 4). Repeatable."),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help="Attack: domain (one perturbation per domain) or sample (default: both). Repeatable."),
    ] = None,
    attack_steps: Annotated[int, typer.Option(help="Ascent steps per attack.")] = 20,
    images: Annotated[int, typer.Option(help="Maximum number of images per domain.")] = 500,
    which: Annotated[str, typer.Option(help="Model of each run: best (as selected) or last.")] = "best",
    seed: Annotated[int, typer.Option(help="Seed for the random starts of attacks.")] = 0,
    output: Annotated[Path, typer.Option("--output", "-o", help="Figure to write: png, svg or pdf.")] = Path(
        "robustness.png"
    ),
    csv: Annotated[Path | None, typer.Option(help="Write every measurement to this CSV file.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print every measurement as JSON.")] = False,
    against_epsilon: Annotated[
        bool, typer.Option("--against-epsilon", help="Do not attack; plot recorded accuracy against training epsilon.")
    ] = False,
    dataset: Annotated[str | None, typer.Option(help="Dataset of the runs, if it is not a built-in one.")] = None,
    data_dir: DataDir = None,
    algorithm: OwnAlgorithm = None,
    network: OwnNetwork = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Attack trained models with one perturbation per domain and one per sample, and plot the remaining accuracy."""
    from domainwise.explain import attack_runs, plot_accuracy_by_epsilon, plot_robustness, read_accuracy_by_epsilon
    from domainwise.explain.robustness import ATTACK_KINDS, RADII
    from domainwise.figures import check_figure_format, write_figure

    check_figure_format(output)
    if quiet:
        warnings.simplefilter("ignore")
    if against_epsilon:
        frame = read_accuracy_by_epsilon(run)
        figure, (header, rows) = plot_accuracy_by_epsilon(frame), _format_epsilons(frame)
    else:
        with DataProgress(make_console(quiet, stderr=True)) as progress:
            frame = attack_runs(
                run,
                domains=domain or (),
                radii=sorted(set(radius or RADII)),
                kinds=[cast("AttackKind", each) for each in kind or ATTACK_KINDS],
                steps=attack_steps,
                images=images,
                which=cast("Which", which),
                seed=seed,
                dataset=dataset,
                data_dir=data_dir,
                algorithm=algorithm,
                network=network,
                device=device,
                on_progress=progress.report,
            )
        figure, (header, rows) = plot_robustness(frame), _format_radii(frame)
    write_figure(output, figure)
    if csv is not None:
        write_csv(csv, frame)
    if as_json:
        print_json(frame.to_dicts())
    elif not quiet:
        print_table(header, rows, len(header) - (1 if against_epsilon else 3), is_markdown=markdown)
    if not quiet:
        print_line(f"wrote {', '.join(str(file) for file in (output, csv) if file)}", stderr=True)


def _format_radii(frame: "pl.DataFrame") -> tuple[list[str], list[list[str]]]:
    from domainwise.selection.statistics import aggregate_means, format_percent

    means = aggregate_means(frame, ["label", "domain", "kind", "radius"])
    radii = frame["radius"].unique().sort().to_list()
    rows: dict[tuple[str, ...], list[str]] = {}
    for each in means.sort("radius", maintain_order=True).iter_rows(named=True):
        rows.setdefault((each["label"], each["domain"], each["kind"]), []).append(
            format_percent(each["mean"], each["error"])
        )
    header = ["method", "domain", "attack", *[f"{radius:g}" for radius in radii]]
    return header, [[*place, *cells] for place, cells in rows.items()]


def _format_epsilons(frame: "pl.DataFrame") -> tuple[list[str], list[list[str]]]:
    from domainwise.explain import average_by_epsilon
    from domainwise.selection.statistics import format_percent

    domains = frame["domain"].unique(maintain_order=True).to_list()
    rows: dict[tuple[str, float | None], dict[str, str]] = {}
    for each in average_by_epsilon(frame).sort("method", "epsilon").iter_rows(named=True):
        rows.setdefault((each["method"], each["epsilon"]), {})[each["domain"]] = format_percent(
            each["mean"], each["error"]
        )
    return ["method", "epsilon", *domains], [
        [method, "" if epsilon is None else f"{epsilon:g}", *[cells.get(domain, "") for domain in domains]]
        for (method, epsilon), cells in rows.items()
    ]
