"""`domainwise explain`: Grad-CAM of runs on the same images, their attention on the object, or their features."""

import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from domainwise.cli.console import (
    DataProgress,
    make_console,
    print_json,
    print_line,
    print_table,
    print_text,
)
from domainwise.cli.options import AsJson, DataDir, Device, OwnAlgorithm, OwnNetwork, Quiet
from domainwise.errors import DomainwiseError
from domainwise.storage.discovery import check_output
from domainwise.storage.files import write_csv

if TYPE_CHECKING:
    from domainwise.explain.attention import AttentionTable, Target
    from domainwise.explain.features import FeatureMaps
    from domainwise.explain.gradcam import TargetLayer
    from domainwise.explain.runs import Explanation

EXAMPLES = """
Examples:

domainwise explain runs/erm runs/mat runs/ldat --domain shift_12

domainwise explain runs/demo --images 8 --target true --output maps.svg

domainwise explain sweeps/pacs --domain sketch --layer featurizer.model.layer3 --no-table

domainwise explain runs/erm runs/mat --features --images 100 --csv features.csv
"""


def explain(
    run: Annotated[list[Path], typer.Argument(help="Run folders, or folders with runs below them.")],
    domain: Annotated[
        str | None, typer.Option(help="Domain whose images are shown (default: the last test domain).")
    ] = None,
    images: Annotated[
        int | None,
        typer.Option(help="Number of images (default: 6); with --features, at most per domain (default: 200)."),
    ] = None,
    target: Annotated[str, typer.Option(help="Class to explain: predicted or true.")] = "predicted",
    which: Annotated[str, typer.Option(help="Model of each run: best (as selected) or last.")] = "best",
    layer: Annotated[str | None, typer.Option(help="Layer to explain (default: the last with a map).")] = None,
    features: Annotated[
        bool, typer.Option("--features", help="Map the features by t-SNE instead, over all domains.")
    ] = False,
    perplexity: Annotated[
        float | None, typer.Option(help="With --features: about the number of neighbors in t-SNE (default: 30).")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="With --features: write every point to this CSV file.")] = None,
    seed: Annotated[int, typer.Option(help="Seed for sampling the images, and for t-SNE.")] = 0,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Figure: png, svg or pdf (default: explain.png or features.png)."),
    ] = None,
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

    With --features: maps of their features (t-SNE) on the same held-out images of all domains, colored by class and by
    domain, and how well a logistic regression predicts domain and class from the features.
    """
    from domainwise.explain import explain_features, explain_runs, plot_features
    from domainwise.figures import check_figure_format, write_figure

    output = output or Path("features.png" if features else "explain.png")
    check_figure_format(output)
    if csv is not None:
        check_output(csv)
    if features:
        unused = {"--domain": domain is not None, "--target": target != "predicted", "--layer": layer is not None}
        unused["--no-table"] = not table
    else:
        unused = {"--perplexity": perplexity is not None, "--csv": csv is not None}
    for option in (name for name, is_given in unused.items() if is_given):
        raise DomainwiseError(f"{option} has no effect {'with' if features else 'without'} --features")
    if quiet:
        warnings.simplefilter("ignore")
    with DataProgress(make_console(quiet, stderr=True)) as progress:
        shared: dict[str, Any] = {
            "which": which,
            "seed": seed,
            "dataset": dataset,
            "data_dir": data_dir,
            "algorithm": algorithm,
            "network": network,
            "device": device,
            "on_progress": progress.report,
        }
        if features:
            maps = explain_features(run, images=200 if images is None else images, perplexity=perplexity, **shared)
            figure = plot_features(maps)
        else:
            explanation = explain_runs(
                run,
                domain=domain,
                images=6 if images is None else images,
                target=cast("Target", target),
                layer=layer,
                has_table=table,
                **shared,
            )
            figure = explanation.figure
    write_figure(output, figure)
    if csv is not None:
        write_csv(csv, maps.points)
    if as_json:
        content = maps.to_json() if features else {"target": target, **_convert_to_json(explanation)}
        print_json({"figure": str(output), **content})
    elif not quiet and features:
        _print_probes(maps, markdown)
    elif not quiet:
        _print_layers(explanation.layers)
        if explanation.attention is not None:
            _print_attention(explanation.attention, target, markdown)
    if not quiet:
        if not features and table and explanation.attention is None:
            print_line("note: the data has no object masks, so attention on the object is not measured", stderr=True)
        print_line(f"wrote {', '.join(str(file) for file in (output, csv) if file)}", stderr=True)


def _convert_to_json(explanation: "Explanation") -> dict[str, Any]:
    layers = {
        label: {"name": layer.name, "height": layer.height, "width": layer.width}
        for label, layer in explanation.layers.items()
    }
    return {"layers": layers, "attention": explanation.attention and asdict(explanation.attention)}


def _print_probes(maps: "FeatureMaps", is_markdown: bool) -> None:
    from domainwise.selection.statistics import pluralize

    print_text("Accuracy of a logistic regression on the features, in percent (cross-validated)\n")
    print_table(["predicted from", "domain", "class"], maps.format_rows(), numeric=2, is_markdown=is_markdown)
    for name, probes in (("domain", maps.domain_probes), ("class", maps.class_probes)):
        probe = next(iter(probes.values()))
        if probe is None:
            print_line(f"note: too few images to predict the {name}", stderr=True)
        elif probe.left_out:
            images = pluralize(probe.left_out, "image")
            print_line(f"note: {images} left out when predicting the {name}: too few of the same {name}", stderr=True)


def _print_layers(layers: Mapping[str, "TargetLayer"]) -> None:
    """Print what Grad-CAM explains, in one line if it is the same for all runs."""
    if len(set(layers.values())) == 1:
        layers = {"": next(iter(layers.values()))}
    for label, layer in layers.items():
        print_text(f"Grad-CAM of {label and f'{label}: '}{layer}")


def _print_attention(attention: "AttentionTable", target: str, is_markdown: bool) -> None:
    print_text(f"\nShare of Grad-CAM attention on the object, in percent ({target} class)\n")
    header = ["method", *attention.domains]
    print_table(header, attention.format_rows(), numeric=len(attention.domains), is_markdown=is_markdown)
    for method, (blank, total) in attention.blank.items():
        if blank:
            print_line(f"note: {method}: {blank} of {total} maps have no heat and are left out", stderr=True)
