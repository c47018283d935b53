"""`domainwise perturbations`: figures, norms and ranks of the perturbations that runs learned."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer

from domainwise.cli.console import DataProgress, make_console, print_json, print_line, print_table
from domainwise.cli.options import DataDir, Device, OwnAlgorithm, OwnNetwork, Quiet
from domainwise.errors import DomainwiseError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from domainwise.explain.runs import RunPerturbations

EXAMPLES = """
Examples:

domainwise perturbations runs/mat

domainwise perturbations runs/at runs/uat runs/mat runs/ldat --output figures --images 128

domainwise perturbations sweeps/radii --json > perturbations.json

domainwise perturbations --show-prior filter --dataset photos
"""
HEADER = ("run", "method", "domain", "norm", "epsilon", "images", "rank", "effective", "rank of one", "effective")


def perturbations(
    run: Annotated[
        list[Path] | None, typer.Argument(help="Run folders, or folders with runs below them, of at, uat, mat or ldat.")
    ] = None,
    show_prior: Annotated[
        str | None,
        typer.Option(
            help="Instead of runs, show what radii .1, .5 and 1 of a prior look like on images of --dataset (default: "
            "silhouettes): pixels, filter, tone, spectrum or all."
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write the figures to.")] = Path(
        "perturbations"
    ),
    images: Annotated[int, typer.Option(help="Number of training images per domain to measure ranks over.")] = 256,
    dataset: Annotated[str | None, typer.Option(help="Dataset of the runs, if it is not a built-in one.")] = None,
    data_dir: DataDir = None,
    algorithm: OwnAlgorithm = None,
    network: OwnNetwork = None,
    device: Device = "auto",
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table as Markdown.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON.")] = False,
    quiet: Quiet = False,
) -> None:
    """Plot the perturbations of runs, one figure per run, and measure their rank over images and within one."""
    from domainwise.explain import plot_perturbations, summarize_perturbations
    from domainwise.figures import write_figure

    if quiet:
        warnings.simplefilter("ignore")
    if (show_prior is None) == (not run):
        raise DomainwiseError("give run folders, or --show-prior and the name of a prior")
    if show_prior is not None:
        file = output / f"prior_{show_prior}.png"
        write_figure(file, _plot_prior(show_prior, dataset or "silhouettes", data_dir))
        if not quiet:
            print_line(f"wrote {file}", stderr=True)
        return
    assert run is not None
    with DataProgress(make_console(quiet, stderr=True)) as progress:
        runs = summarize_perturbations(
            run,
            images=images,
            dataset=dataset,
            data_dir=data_dir,
            algorithm=algorithm,
            network=network,
            device=device,
            on_progress=progress.report,
        )
    figures = plot_perturbations(runs)
    for name, figure in figures.items():
        write_figure(output / f"{name}.png", figure)
    if as_json:
        print_json([each.to_json() for each in runs])
    elif not quiet:
        print_table(HEADER, [row for each in runs for row in _format_rows(each)], numeric=7, is_markdown=markdown)
    if not quiet:
        print_line(f"wrote {', '.join(str(output / f'{name}.png') for name in figures)}", stderr=True)


def _plot_prior(prior: str, dataset: str, data_dir: Path | None) -> "Figure":
    """Plot a prior on the first image of each class in the first domain, at most four; all priors on one image."""
    import torch

    from domainwise.data.batches import iterate_batches
    from domainwise.explain.plots.priors import PRIORS, plot_priors
    from domainwise.training.registry import build_dataset

    data = build_dataset(dataset, {}, seed=0, data_dir=data_dir)
    domain = data.domains[0]
    labels = domain.labels.unique()[: 1 if prior == "all" else 4]
    firsts = [int((domain.labels == label).nonzero()[0]) for label in labels]
    batches = iterate_batches(domain, torch.tensor(firsts), torch.device("cpu"))
    return plot_priors(list(PRIORS) if prior == "all" else [prior], torch.cat([x for x, _ in batches]))


def _format_rows(run: "RunPerturbations") -> Sequence[tuple[str, ...]]:
    """Return one row per domain: over its channels the highest rank and the mean effective rank."""
    return [
        (
            run.summary.run,
            run.summary.method,
            ranks.domain,
            f"{norm:.3g}",
            f"{run.summary.epsilon:g}" + (f" ({run.summary.prior})" if run.summary.prior != "pixels" else ""),
            str(ranks.images),
            str(max(ranks.stacked)),
            f"{fmean(ranks.stacked_effective):.1f}",
            str(ranks.single_max),
            f"{fmean(ranks.single_effective):.1f}",
        )
        for norm, ranks in zip(run.summary.norms, run.ranks, strict=True)
    ]
