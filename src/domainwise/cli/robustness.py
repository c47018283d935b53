"""`domainwise robustness`: accuracy of trained models under attack or corruption, or by the epsilon of training."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from domainwise.cli.console import (
    DataProgress,
    make_console,
    print_json,
    print_line,
    print_table,
    print_text,
)
from domainwise.cli.options import DataDir, Device, OwnAlgorithm, OwnNetwork, Quiet
from domainwise.errors import DomainwiseError
from domainwise.storage.discovery import check_output
from domainwise.storage.files import write_csv

if TYPE_CHECKING:
    import polars as pl
    from matplotlib.figure import Figure

    from domainwise.explain.runs import CorruptedAccuracy
    from domainwise.perturbations.base import Norm
    from domainwise.storage.run_folder import Which

EXAMPLES = """
Examples:

domainwise robustness runs/erm runs/mat

domainwise robustness runs/mat-0 runs/mat-1 --domain sketch --epsilon 0 --epsilon 0.5 --attack sample --csv attacks.csv

domainwise robustness runs/erm runs/mat --attack fgsm --attack pgd --attack apgd --norm linf --epsilon 0 --epsilon 4/255

domainwise robustness --against-epsilon sweeps/radii --output epsilon.png

domainwise robustness --corruptions runs/erm runs/mat --severity 3 --output corruptions.png
"""


def robustness(
    run: Annotated[list[Path], typer.Argument(help="Run folders, or folders with runs below them.")],
    domain: Annotated[
        list[str] | None, typer.Option(help="Domain to attack (default: the test domains). Repeatable.")
    ] = None,
    attack: Annotated[
        list[str] | None,
        typer.Option(
            "--attack",
            "--kind",
            help="Attack: domain (one perturbation per domain), sample, fgsm, pgd, apgd, apgd-t, autoattack, or "
            "package.module:function (default: domain and sample). Repeatable.",
        ),
    ] = None,
    norm: Annotated[
        str | None, typer.Option(help="l2 or linf (default: l2 for domain and sample alone, otherwise linf).")
    ] = None,
    epsilon: Annotated[
        list[str] | None,
        typer.Option(
            "--epsilon",
            "--radius",
            help="Radius for images in [0, 1], such as 4/255 for linf, 0.5 or '2/255 rms' for l2 (default: 0 to 8/255 "
            "for linf, 0 to 4 for l2). Repeatable.",
        ),
    ] = None,
    attack_steps: Annotated[
        int | None, typer.Option(help="Ascent steps per attack (default: 20; apgd, apgd-t, autoattack: 100).")
    ] = None,
    attack_step_size: Annotated[
        str | None,
        typer.Option(help="Step size (default: epsilon / 4 for pgd, 2.5 epsilon / steps for domain and sample)."),
    ] = None,
    restarts: Annotated[
        int | None,
        typer.Option(
            help="Random starts of sample, pgd, apgd and apgd-t (default: 1); the worst counts, image by image."
        ),
    ] = None,
    images: Annotated[int, typer.Option(help="Maximum number of images per domain.")] = 500,
    which: Annotated[
        str, typer.Option(help="Model of each run: best (as selected), last or start (with --shared-start).")
    ] = "best",
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
    corruptions: Annotated[
        bool,
        typer.Option(
            "--corruptions", help="Do not attack; measure accuracy under the common corruptions of ImageNet-C, and mCE."
        ),
    ] = False,
    corruption: Annotated[
        list[str] | None,
        typer.Option(help="With --corruptions: corruption, such as fog (default: all 15). Repeatable."),
    ] = None,
    severity: Annotated[
        list[int] | None, typer.Option(help="With --corruptions: severity, 1 to 5 (default: all). Repeatable.")
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(help="With --corruptions: method or run whose errors mCE divides by (default: erm)."),
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="Dataset of the runs, if it is not a built-in one.")] = None,
    data_dir: DataDir = None,
    algorithm: OwnAlgorithm = None,
    network: OwnNetwork = None,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Attack trained models, per domain or per sample, and plot the remaining accuracy.

    With --corruptions, corrupt the test images instead: 15 kinds of noise, blur, weather and compression.
    """
    from domainwise.explain import (
        attack_runs,
        corrupt_runs,
        plot_accuracy_by_epsilon,
        plot_corruptions,
        plot_robustness,
        read_accuracy_by_epsilon,
    )
    from domainwise.explain.corruptions import CORRUPTIONS, SEVERITIES
    from domainwise.explain.robustness import DEFAULT_ATTACKS
    from domainwise.figures import check_figure_format

    check_figure_format(output)
    if csv is not None:
        check_output(csv)
    of_attacks = {
        "--attack": attack,
        "--norm": norm,
        "--epsilon": epsilon,
        "--attack-steps": attack_steps,
        "--attack-step-size": attack_step_size,
        "--restarts": restarts,
    }
    of_corruptions = {"--corruption": corruption, "--severity": severity, "--reference": reference}
    if corruptions and against_epsilon:
        raise DomainwiseError("--corruptions and --against-epsilon cannot be used together")
    if corruptions:
        _refuse(of_attacks, "has no effect with --corruptions; run the command twice to measure both")
    else:
        _refuse(of_corruptions, "needs --corruptions")
    if against_epsilon:
        _refuse({"--domain": domain, **of_attacks}, "has no effect with --against-epsilon, which does not attack")
    if quiet:
        warnings.simplefilter("ignore")
    if corruptions:
        with DataProgress(make_console(quiet, stderr=True)) as progress:
            corrupted = corrupt_runs(
                run,
                domains=domain or (),
                corruptions=list(dict.fromkeys(corruption or CORRUPTIONS)),
                severities=sorted(set(severity or SEVERITIES)),
                images=images,
                which=cast("Which", which),
                seed=seed,
                reference=reference,
                dataset=dataset,
                data_dir=data_dir,
                algorithm=algorithm,
                network=network,
                device=device,
                on_progress=progress.report,
            )
        # Print first: nothing is lost if a file cannot be written.
        if as_json:
            print_json({"summary": corrupted.summary.to_dicts(), "measurements": corrupted.measurements.to_dicts()})
        elif not quiet:
            _print_corruptions(corrupted, markdown, reference)
        _write(output, plot_corruptions(corrupted.measurements), csv, corrupted.measurements, quiet)
        return
    if against_epsilon:
        frame = read_accuracy_by_epsilon(run)
        figure, (header, rows) = plot_accuracy_by_epsilon(frame), _format_epsilons(frame)
    else:
        with DataProgress(make_console(quiet, stderr=True)) as progress:
            frame = attack_runs(
                run,
                domains=domain or (),
                attacks=attack or DEFAULT_ATTACKS,
                norm=cast("Norm | None", norm),
                epsilons=epsilon or (),
                steps=attack_steps,
                step_size=attack_step_size,
                restarts=1 if restarts is None else restarts,
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
        figure, (header, rows) = plot_robustness(frame), _format_attacks(frame)
    if as_json:
        print_json(frame.to_dicts())
    elif not quiet:
        print_table(header, rows, len(header) - (1 if against_epsilon else 4), is_markdown=markdown)
    _write(output, figure, csv, frame, quiet)


def _refuse(options: Mapping[str, object], why: str) -> None:
    """Raise an error if one of these options is given: ignoring it would mislead."""
    for name, value in options.items():
        if value is not None:
            raise DomainwiseError(f"{name} {why}")


def _write(output: Path, figure: "Figure", csv: Path | None, frame: "pl.DataFrame", quiet: bool) -> None:
    from domainwise.figures import write_figure

    write_figure(output, figure)
    if csv is not None:
        write_csv(csv, frame)
    if not quiet:
        print_line(f"wrote {', '.join(str(file) for file in (output, csv) if file)}", stderr=True)


def _format_attacks(frame: "pl.DataFrame") -> tuple[list[str], list[list[str]]]:
    import polars as pl

    from domainwise.explain import average_attacks
    from domainwise.perturbations.radius import format_radius
    from domainwise.selection.statistics import format_percent

    rows: dict[tuple[str, ...], dict[str, str]] = {}
    columns: dict[str, None] = {}
    for each in average_attacks(frame).sort("epsilon", maintain_order=True, nulls_last=True).iter_rows(named=True):
        # Attacks that were not given an epsilon have their own one.
        radius = "own" if each["epsilon"] is None else format_radius(each["epsilon"], each["norm"])
        columns[radius] = None
        place = (each["label"], each["domain"], each["attack"], each["norm"] or "")
        rows.setdefault(place, {})[radius] = format_percent(each["mean"], each["error"])
    places = frame.select("label", "domain", "attack", pl.col("norm").fill_null("")).unique(maintain_order=True).rows()
    header = ["method", "domain", "attack", "norm", *columns]
    return header, [[*place, *[rows[place].get(radius, "") for radius in columns]] for place in places]


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


def _print_corruptions(corrupted: "CorruptedAccuracy", is_markdown: bool, reference: str | None) -> None:
    """Print the summary per method and domain, then the accuracy per corruption, then what the mCE leaves out."""
    from domainwise.explain.corruption_errors import REFERENCE

    summary = corrupted.summary
    # Without errors of its reference, a run has no mCE either.
    is_compared = summary["mce"].is_not_null() | (summary["without_error"].list.len() > 0)
    has_reference = bool(is_compared.any())
    print_table(*_format_corruption_summary(summary, has_reference), is_markdown=is_markdown)
    print_text()
    print_table(*_format_corruptions(corrupted.measurements), is_markdown=is_markdown)
    name = reference or REFERENCE
    if not has_reference:
        print_line(f"no mCE: no run of {name} to divide by; add one, or choose --reference", stderr=True)
    elif not is_compared.all():
        print_line(f"mCE only where {name} has the same trial and held-out domains", stderr=True)
    for column, what in (
        ("without_error", f"mCE omits corruptions under which {name} makes no errors"),
        ("left_out", f"relative mCE omits corruptions that do not lower the accuracy of {name}"),
    ):
        if names := summary[column].explode().drop_nulls().unique(maintain_order=True).to_list():
            print_line(f"{what} in some trial: {', '.join(names)}", stderr=True)


def _format_corruption_summary(summary: "pl.DataFrame", has_reference: bool) -> tuple[list[str], list[list[str]], int]:
    from domainwise.selection.statistics import aggregate_means, format_percent

    columns = {"clean": "clean", "accuracy": "corrupted"}
    columns |= {"mce": "mCE", "relative_mce": "relative mCE"} if has_reference else {"error": "mean error"}
    means = {
        name: {
            (row["label"], row["domain"]): format_percent(row["mean"], row["error"])
            for row in aggregate_means(summary.drop_nulls(name), ["label", "domain"], name).iter_rows(named=True)
        }
        for name in columns
    }
    rows = [[*place, *(means[name].get(place, "") for name in columns)] for place in means["clean"]]
    return ["method", "domain", *columns.values()], rows, len(columns)


def _format_corruptions(frame: "pl.DataFrame") -> tuple[list[str], list[list[str]], int]:
    """Format the accuracy per corruption, averaged over severities: one column per method."""
    import polars as pl

    from domainwise.selection.statistics import aggregate_means, format_percent

    runs = frame.group_by("label", "run", "domain", "corruption", maintain_order=True).agg(pl.col("accuracy").mean())
    labels = frame["label"].unique(maintain_order=True).to_list()
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for row in aggregate_means(runs, ["label", "domain", "corruption"]).iter_rows(named=True):
        cells = rows.setdefault((row["domain"], row["corruption"]), {})
        cells[row["label"]] = format_percent(row["mean"], row["error"])
    lines = [[*place, *(cells.get(label, "") for label in labels)] for place, cells in rows.items()]
    return ["domain", "corruption", *labels], lines, len(labels)
