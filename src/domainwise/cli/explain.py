"""`domainwise explain`: Grad-CAM of runs on the same images, and their attention on the object."""

import warnings
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from domainwise.cli.console import DataProgress, make_console, print_json, print_line, print_table, print_text
from domainwise.cli.options import AsJson, DataDir, Device, OwnAlgorithm, OwnNetwork, Quiet

if TYPE_CHECKING:
    from domainwise.explain.attention import AttentionTable, Target
    from domainwise.storage.run_folder import Which

EXAMPLES = """
Examples:

domainwise explain runs/erm runs/mat runs/ldat --domain shift_12

domainwise explain runs/demo --images 8 --target true --output maps.svg

domainwise explain sweeps/pacs --domain sketch --layer featurizer.model.layer3 --no-table
"""


def explain(
    run: Annotated[list[Path], typer.Argument(help="Run folders, or folders with runs below them.")],
    domain: Annotated[
        str | None, typer.Option(help="Domain whose images are shown (default: the last test domain).")
    ] = None,
    images: Annotated[int, typer.Option(help="Number of images, sampled from the domain's main part.")] = 6,
    target: Annotated[str, typer.Option(help="Class to explain: predicted or true.")] = "predicted",
    which: Annotated[str, typer.Option(help="Model of each run: best (as selected) or last.")] = "best",
    layer: Annotated[str | None, typer.Option(help="Layer to explain (default: the last with a map).")] = None,
    seed: Annotated[int, typer.Option(help="Seed for sampling the images.")] = 0,
    output: Annotated[Path, typer.Option("--output", "-o", help="Figure to write: png, svg or pdf.")] = Path(
        "explain.png"
    ),
    dataset: Annotated[str | None, typer.Option(help="Dataset of the runs, if it is not a built-in one.")] = None,
    data_dir: DataDir = None,
    algorithm: OwnAlgorithm = None,
    network: OwnNetwork = None,
    table: Annotated[
        bool, typer.Option("--table/--no-table", help="Measure attention on the object, if the data has masks.")
    ] = True,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    as_json: AsJson = False,
    device: Device = "auto",
    quiet: Quiet = False,
) -> None:
    """Show where runs look in the same images (Grad-CAM), and how much of their attention is on the object.

    The runs must share a dataset. The table averages over trial seeds; the figure shows the runs of the lowest one.
    """
    from domainwise.explain import explain_runs
    from domainwise.figures import check_figure_format, write_figure

    check_figure_format(output)
    if quiet:
        warnings.simplefilter("ignore")
    with DataProgress(make_console(quiet, stderr=True)) as progress:
        explanation = explain_runs(
            run,
            domain=domain,
            images=images,
            target=cast("Target", target),
            which=cast("Which", which),
            layer=layer,
            seed=seed,
            has_table=table,
            dataset=dataset,
            data_dir=data_dir,
            algorithm=algorithm,
            network=network,
            device=device,
            on_progress=progress.report,
        )
    write_figure(output, explanation.figure)
    attention = explanation.attention
    if as_json:
        print_json({"figure": str(output), "target": target, "attention": attention and asdict(attention)})
    elif attention is not None and not quiet:
        _print_attention(attention, target, markdown)
    if not quiet:
        if table and attention is None:
            print_line("note: the data has no object masks, so attention on the object is not measured", stderr=True)
        print_line(f"wrote {output}", stderr=True)


def _print_attention(attention: "AttentionTable", target: str, is_markdown: bool) -> None:
    print_text(f"Share of Grad-CAM attention on the object, in percent ({target} class)\n")
    header = ["method", *attention.domains]
    print_table(header, attention.format_rows(), numeric=len(attention.domains), is_markdown=is_markdown)
    for method, (blank, total) in attention.blank.items():
        if blank:
            print_line(f"note: {method}: {blank} of {total} maps have no heat and are left out", stderr=True)
