"""Pictures of the chosen models: Grad-CAM, perturbations, accuracy under attack."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import polars as pl
import torch
from matplotlib.figure import Figure

from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.errors import DomainwiseError
from domainwise.explain.attention import measure_attention
from domainwise.explain.perturbations import (
    has_perturbation,
    measure_ranks,
    read_perturbation_history,
    summarize_perturbation,
)
from domainwise.explain.plots.accuracy import plot_robustness
from domainwise.explain.plots.gradcam import plot_gradcam, sample_examples
from domainwise.explain.plots.perturbations import plot_components, plot_perturbation, plot_ranks
from domainwise.explain.robustness import attack_run
from domainwise.figures import render_figure
from domainwise.reports.html.content import Picture
from domainwise.reports.html.page_data import Material, Variant, in_order
from domainwise.storage.run_folder import RunFolder, Which
from domainwise.training.loading import OpenRun, open_run
from domainwise.training.registry import AnyDataset

# More columns than this are too narrow to see anything in.
MOST = 8


@dataclass(frozen=True)
class LookedAt:
    """Runs of one trial on one dataset, by the names of their methods on the page.

    Args:
        domain: the test domain with the lowest accuracy, on average over methods.
        which: the model of each run that the selection means.
    """

    dataset: str
    domain: str
    which: Literal["best", "last"]
    folders: dict[str, Path]


def runs_to_look_at(material: Material, selection: str, chosen: pl.DataFrame) -> list[LookedAt]:
    """What `selection` chose, in the first trial; of a method's variants the one with the highest score."""
    which: Literal["best", "last"] = "last" if selection == "test_domain" else "best"
    found = []
    for dataset in chosen["dataset"].unique(maintain_order=True):
        own = chosen.filter(pl.col("dataset") == dataset, _has_model(which))
        if own.is_empty():
            continue
        means = own.group_by("test_domain", maintain_order=True).agg(pl.col("accuracy").mean())
        domain = means.sort("accuracy", maintain_order=True)["test_domain"][0]
        here = own.filter(pl.col("test_domain") == domain)
        here = here.filter(pl.col("trial") == pl.col("trial").min()).sort("score", descending=True, maintain_order=True)
        best: dict[str, str] = {}
        for name in here["algorithm"]:
            best.setdefault(material.variants.get(name, Variant(name)).method, name)
        runs = dict(here.select("algorithm", "run").iter_rows())
        names = in_order(best.values(), material.variants)[:MOST]
        found.append(LookedAt(dataset, domain, which, {name: Path(runs[name]) for name in names}))
    return found


def _has_model(which: Which) -> pl.Expr:
    def is_there(run: str) -> bool:
        return RunFolder(run).has_weights(which)

    return pl.col("run").map_elements(is_there, return_dtype=pl.Boolean)


# Enough to see something, few enough that a page is there within half a minute.
_EXAMPLES = 5
_ATTACKED = 200
_ATTACK_STEPS = 10
_RADII = (0.0, 0.25, 0.5, 1.0, 2.0)
_STACKED = 128
_DPI = 100


def gallery(
    folders: Mapping[str, Path],
    domain: str,
    *,
    which: Which = "best",
    dataset: AnyDataset | None = None,
    data_dir: Path | None = None,
    device: torch.device | None = None,
    on_progress: OnProgress = ignore_progress,
) -> list[Picture]:
    """Pictures of runs of one trial on one dataset.

    Args:
        folders: of the runs, by the names that the page has for them.
        domain: whose images are looked at and attacked.
        which, dataset, data_dir: as `open_run` and its models take them.
    """
    runs = {label: open_run(folder, dataset=dataset, data_dir=data_dir) for label, folder in folders.items()}
    makers: Sequence[Callable[[], list[Picture]]] = (
        lambda: [_grad_cam(runs, domain, which, device)],
        lambda: _perturbations(runs, device),
        lambda: [_robustness(runs, domain, which, device)],
    )
    pictures: list[Picture] = []
    for done, make in enumerate(makers):
        on_progress("pictures for the page", done, len(makers))
        pictures += make()
    on_progress("pictures for the page", len(makers), len(makers))
    return pictures


def _grad_cam(runs: Mapping[str, OpenRun], domain: str, which: Which, device: torch.device | None) -> Picture:
    first = next(iter(runs.values()))
    examples = sample_examples(first, domain, min(_EXAMPLES, len(first.splits[domain].main)))
    caption = (
        f"The same images of {domain}, which no model was trained on; the frame is green where a model is right. "
        "Heat is what speaks for the class it predicts, scaled map by map."
    )
    try:
        figure = plot_gradcam(runs, examples, which=which, device=device)
    except DomainwiseError as error:
        raise DomainwiseError(f"no Grad-CAM: {error}") from error
    return _picture("Where the models look (Grad-CAM)", caption + _attention(runs, domain, which, device), figure)


def _attention(runs: Mapping[str, OpenRun], domain: str, which: Which, device: torch.device | None) -> str:
    """How much of the heat is on the object, in a sentence, where masks tell."""
    place = device or torch.device("cpu")
    found = {
        label: measure_attention(run, place, which=which, domains=[domain]).get(domain) for label, run in runs.items()
    }
    there = {label: each for label, each in found.items() if each is not None and each.images}
    if not there:
        return ""
    shares = "; ".join(f"{label} {100 * each.share:.1f} %" for label, each in there.items())
    coverage = next(iter(there.values())).coverage
    return (
        f" Share of it on the object, over all {domain} images: {shares}. "
        f"The object covers {100 * coverage:.1f} % of an image."
    )


def _perturbations(runs: Mapping[str, OpenRun], device: torch.device | None) -> list[Picture]:
    perturbed = {
        label: run
        for label, run in runs.items()
        if has_perturbation(run.algorithm()) and len(run.dataset.image_shape) == 3
    }
    pictures, measured = [], []
    for label, run in perturbed.items():
        made = replace(summarize_perturbation(run), run=label)
        said = "kept a domain" if made.is_kept else "made anew for every image; shown is that of the image on the left"
        caption = f"What {label} adds to the images of each training domain, {said}. Radius {made.epsilon:g}."
        pictures.append(
            _picture(f"Perturbations of {label}", caption, plot_perturbation(made, read_perturbation_history(run)))
        )
        if made.components is not None:
            caption = "The components that a domain's perturbation is mixed from, and their weights."
            pictures.append(_picture(f"Components of {label}", caption, plot_components(made)))
        measured += [replace(each, run=label) for each in measure_ranks(run, _STACKED, device)]
    if measured:
        caption = (
            f"Left: the rank of the matrix of the perturbations of {_STACKED} images of a domain. Right: that of a "
            "single one. Sharing a perturbation lowers the first, a thin product the second."
        )
        pictures.append(_picture("Ranks of the perturbations", caption, plot_ranks(measured)))
    return pictures


def _robustness(runs: Mapping[str, OpenRun], domain: str, which: Which, device: torch.device | None) -> Picture:
    rows = [
        {"label": label, **asdict(each)}
        for label, run in runs.items()
        for each in attack_run(
            run, domains=[domain], radii=_RADII, steps=_ATTACK_STEPS, images=_ATTACKED, which=which, device=device
        )
    ]
    caption = (
        f"Accuracy on {_ATTACKED} images of {domain} under attacks on the trained models, {_ATTACK_STEPS} steps each. "
        "One perturbation for all images of the domain, found on its holdout; or one for each image."
    )
    return _picture("Accuracy under attack", caption, plot_robustness(pl.DataFrame(rows)))


def _picture(title: str, caption: str, figure: Figure) -> Picture:
    return Picture(title, caption, f"{title}. {caption}", png=render_figure(figure, "png", _DPI))
