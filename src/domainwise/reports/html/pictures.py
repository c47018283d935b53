"""Pictures of the selected models on a page: Grad-CAM, features, perturbations and their rank, robustness."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import torch
from matplotlib.figure import Figure

from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.errors import DomainwiseError, format_error
from domainwise.explain.attention import measure_attention
from domainwise.explain.corruption_errors import measure_corruptions
from domainwise.explain.corruptions import check_corruptible
from domainwise.explain.features import has_holdouts, map_features
from domainwise.explain.gradcam import find_finer_layer, find_target_layer
from domainwise.explain.perturbations import (
    has_perturbation,
    measure_ranks,
    read_perturbation_history,
    summarize_perturbation,
)
from domainwise.explain.plots.accuracy import plot_robustness
from domainwise.explain.plots.corruptions import plot_corruptions
from domainwise.explain.plots.features import plot_features
from domainwise.explain.plots.gradcam import plot_gradcam, sample_examples
from domainwise.explain.plots.perturbations import plot_components, plot_perturbation, plot_ranks
from domainwise.explain.robustness import attack_run, average_attacks
from domainwise.figures import render_figure
from domainwise.perturbations.radius import format_radius
from domainwise.reports.html.page import Picture
from domainwise.reports.html.page_data import PageData
from domainwise.reports.methods import Variant, sort_methods
from domainwise.selection.statistics import format_percent
from domainwise.storage.run_folder import RunFolder, Which
from domainwise.training.loading import OpenRun, open_run
from domainwise.training.registry import AnyAlgorithm, AnyDataset, AnyNetwork

# With more methods than this, the columns of a picture are too narrow.
MAX_METHODS = 8

# Small enough that a page takes half a minute.
_NUM_EXAMPLES = 5
_NUM_MAPPED = 160
_NUM_ATTACKED = 200
_ATTACK_STEPS = 10
_RADII = (0.0, 0.25, 0.5, 1.0, 2.0)
_PGD_EPSILONS = (0, 1 / 255, 4 / 255)
_NUM_STACKED = 128
_NUM_CORRUPTED = 50
_SEVERITIES = (1, 3, 5)
_DPI = 100


@dataclass(frozen=True)
class PicturedRuns:
    """The runs of one trial on one dataset whose models are shown, by the names of their methods on the page.

    Args:
        domain: the test domain with the lowest accuracy, or the worst value of another metric, averaged over methods.
        which: the model of each run that the selection rule refers to.
    """

    dataset: str
    domain: str
    which: Which
    folders: dict[str, Path]


def choose_pictured_runs(data: PageData, selection: str, selected: pl.DataFrame) -> list[PicturedRuns]:
    """Return the selected runs of the first trial, per dataset; of a method's variants, the one with the best score."""
    which: Which = "last" if selection == "test_domain" else "best"
    is_low = data.runs.metric.is_lower_better
    has_model = pl.col("run").map_elements(lambda run: RunFolder(run).has_weights(which), return_dtype=pl.Boolean)
    choices = []
    for dataset in selected["dataset"].unique(maintain_order=True):
        models = selected.filter(pl.col("dataset") == dataset, has_model)
        if models.is_empty():
            continue
        means = models.group_by("test_domain", maintain_order=True).agg(pl.col("accuracy").mean())
        domain = means.sort("accuracy", descending=is_low, maintain_order=True)["test_domain"][0]
        models = models.filter(pl.col("test_domain") == domain).filter(pl.col("trial") == pl.col("trial").min())
        models = models.sort("score", descending=not is_low, maintain_order=True)
        best: dict[str, str] = {}
        for name in models["algorithm"]:
            best.setdefault(data.variants.get(name, Variant(name)).method, name)
        runs = dict(models.select("algorithm", "run").iter_rows())
        names = sort_methods(best.values(), data.variants)[:MAX_METHODS]
        choices.append(PicturedRuns(dataset, domain, which, {name: Path(runs[name]) for name in names}))
    return choices


def draw_selected_models(
    data: PageData,
    selection: str,
    selected: pl.DataFrame,
    *,
    dataset: AnyDataset | None = None,
    data_dir: str | Path | None = None,
    algorithm: AnyAlgorithm | None = None,
    network: AnyNetwork | None = None,
    on_progress: OnProgress = ignore_progress,
) -> list[Picture]:
    """Return the pictures of all datasets; one that could not be drawn has an error instead, and is warned of."""
    pictures: list[Picture] = []
    for runs in choose_pictured_runs(data, selection, selected):
        pictures += _draw(
            f"Pictures of {runs.dataset}",
            lambda runs=runs: draw_model_pictures(  # type: ignore[misc]
                runs.folders,
                runs.domain,
                which=runs.which,
                dataset=dataset,
                data_dir=data_dir,
                algorithm=algorithm,
                network=network,
                on_progress=on_progress,
            ),
        )
    return pictures


def draw_model_pictures(
    folders: Mapping[str, Path],
    domain: str,
    *,
    which: Which = "best",
    dataset: AnyDataset | None = None,
    data_dir: str | Path | None = None,
    algorithm: AnyAlgorithm | None = None,
    network: AnyNetwork | None = None,
    device: torch.device | None = None,
    on_progress: OnProgress = ignore_progress,
) -> list[Picture]:
    """Return pictures of runs of one trial on one dataset; one that could not be drawn has an error instead.

    Args:
        folders: the run folders, by the names of their methods on the page.
        domain: whose images are explained and attacked.
        which: the model of each run.
        dataset: the images, if they are not those the runs were trained on.
        data_dir: folder that contains the datasets.
        algorithm, network: the runs' own class or builder, as for `load_model`.
        device: where the models run (default: cpu).
        on_progress: called with a task, how much of it is done, and the total.
    """
    runs = {
        label: open_run(folder, dataset=dataset, data_dir=data_dir, algorithm=algorithm, network=network)
        for label, folder in folders.items()
    }
    perturbed = {
        label: run
        for label, run in runs.items()
        if has_perturbation(run.algorithm()) and len(run.dataset.image_shape) == 3
    }
    steps: dict[str, Callable[[], list[Picture]]] = {
        "Where the models look (Grad-CAM)": lambda: [_draw_grad_cam(runs, domain, which, device)],
        "Features of the models (t-SNE)": lambda: [_draw_features(runs, which, device)],
        **{f"Perturbations of {label}": partial(_draw_perturbation, label, run) for label, run in perturbed.items()},
        **({"Ranks of the perturbations": lambda: [_draw_ranks(perturbed, device)]} if perturbed else {}),
        "Accuracy under attack": lambda: [_draw_robustness(runs, domain, which, device)],
        "Accuracy under corruptions": lambda: [_draw_corruptions(runs, domain, which, device)],
    }
    pictures: list[Picture] = []
    for done, (title, draw) in enumerate(steps.items()):
        on_progress("pictures for the page", done, len(steps))
        pictures += _draw(title, draw)
    on_progress("pictures for the page", len(steps), len(steps))
    return pictures


def _draw(title: str, draw: Callable[[], list[Picture]]) -> list[Picture]:
    try:
        return draw()
    except Exception as error:  # whatever goes wrong with one picture, the page has much more to show
        if isinstance(error, DomainwiseError | OSError):
            reason = format_error(error)
        else:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
        warnings.warn(f"{title}: could not be drawn: {reason}", stacklevel=3)
        return [Picture(title, "", title, error=reason)]


def _draw_grad_cam(runs: Mapping[str, OpenRun], domain: str, which: Which, device: torch.device | None) -> Picture:
    first = next(iter(runs.values()))
    examples = sample_examples(first, domain, min(_NUM_EXAMPLES, len(first.splits[domain].main)))
    caption = (
        f"The same images of {domain}, which no model was trained on; a green frame marks a correct prediction. "
        "Heat is the evidence for the predicted class, scaled per map."
    )
    layer = find_target_layer(first.model(which), first.dataset.image_shape)
    if layer.is_coarse:
        finer = find_finer_layer(first.model(which), first.dataset.image_shape)
        hint = "" if finer is None else f"; an earlier layer has more (domainwise explain --layer {finer.name})"
        caption += f" Maps of {layer.height} x {layer.width} cells are too coarse to locate anything{hint}."
    figure = plot_gradcam(runs, examples, which=which, device=device)
    return _build_picture(
        "Where the models look (Grad-CAM)", caption + _describe_attention(runs, domain, which, device), figure
    )


def _describe_attention(runs: Mapping[str, OpenRun], domain: str, which: Which, device: torch.device | None) -> str:
    """Return the share of the heat on the object as a sentence; empty for data without masks."""
    device = device or torch.device("cpu")
    attention = {
        label: measure_attention(run, device, which=which, domains=[domain]).get(domain) for label, run in runs.items()
    }
    with_masks = {label: each for label, each in attention.items() if each is not None and each.images}
    if not with_masks:
        return ""
    shares = "; ".join(f"{label} {100 * each.share:.1f} %" for label, each in with_masks.items())
    coverage = next(iter(with_masks.values())).coverage
    return (
        f" Share of the heat on the object, over all {domain} images: {shares}. "
        f"The object covers {100 * coverage:.1f} % of the image."
    )


def _draw_features(runs: Mapping[str, OpenRun], which: Which, device: torch.device | None) -> Picture:
    num_domains = len(next(iter(runs.values())).dataset.domains)
    maps = map_features(runs, images=max(1, _NUM_MAPPED // num_domains), which=which, device=device)
    held_out = ", none of them trained on" if all(map(has_holdouts, runs.values())) else ""
    caption = (
        f"The same images for all models{held_out}; triangles are of unseen domains. Below each map: how "
        "well a logistic regression predicts class and domain from the features of images that it was not fitted on. "
        "Distances between the clusters of a t-SNE map, and their sizes, mean little."
    )
    return _build_picture("Features of the models (t-SNE)", caption, plot_features(maps))


def _draw_perturbation(label: str, run: OpenRun) -> list[Picture]:
    learned = replace(summarize_perturbation(run), run=label)
    scope = "one per domain" if learned.is_kept else "computed per image; shown for the image on the left"
    caption = f"What {label} adds to the images of each training domain, {scope}. Radius {learned.epsilon:g}."
    figure = plot_perturbation(learned, read_perturbation_history(run))
    pictures = [_build_picture(f"Perturbations of {label}", caption, figure)]
    if learned.components is not None:
        weights = "" if learned.mixing_weights is None else ", and their weights"
        caption = f"The components that the perturbations of each domain are mixed from{weights}."
        pictures.append(_build_picture(f"Components of {label}", caption, plot_components(learned)))
    return pictures


def _draw_ranks(runs: Mapping[str, OpenRun], device: torch.device | None) -> Picture:
    rows = [
        replace(each, run=label) for label, run in runs.items() for each in measure_ranks(run, _NUM_STACKED, device)
    ]
    caption = (
        f"Left: rank of the matrix of the perturbations of up to {_NUM_STACKED} images per domain. Right: rank of a "
        "single perturbation. Sharing a perturbation lowers the first, a low-rank product the second."
    )
    return _build_picture("Ranks of the perturbations", caption, plot_ranks(rows))


def _draw_robustness(runs: Mapping[str, OpenRun], domain: str, which: Which, device: torch.device | None) -> Picture:
    shared: dict[str, Any] = {"domains": [domain], "images": _NUM_ATTACKED, "which": which, "device": device}
    rows = []
    for label, run in runs.items():
        results = attack_run(run, epsilons=_RADII, steps=_ATTACK_STEPS, **shared)
        results += attack_run(run, attacks=["pgd"], epsilons=_PGD_EPSILONS, **shared)
        rows += [{"label": label, **asdict(each)} for each in results]
    frame = pl.DataFrame(rows)
    pgd = average_attacks(frame.filter(pl.col("attack") == "pgd", pl.col("epsilon") == _PGD_EPSILONS[-1]))
    robust = "; ".join(f"{each['label']} {format_percent(each['mean'], each['error'])} %" for each in pgd.to_dicts())
    caption = (
        f"Accuracy on {rows[0]['images']} images of {domain} under attack. In l2, {_ATTACK_STEPS} steps each: one "
        "perturbation for all images of the domain, computed on its holdout, or one per image. In linf: PGD with 20 "
        f"steps, at {format_radius(_PGD_EPSILONS[-1], 'linf')}: {robust}, with the standard error over the images."
    )
    return _build_picture("Accuracy under attack", caption, plot_robustness(frame))


def _draw_corruptions(runs: Mapping[str, OpenRun], domain: str, which: Which, device: torch.device | None) -> Picture:
    title = "Accuracy under corruptions"
    try:
        check_corruptible(next(iter(runs.values())).dataset.image_shape)
    except DomainwiseError as error:  # no failure: small images and a missing extra are common
        return Picture(title, "", title, error=format_error(error))
    results = measure_corruptions(
        list(runs.values()),
        domains=[domain],
        severities=_SEVERITIES,
        images=_NUM_CORRUPTED,
        which=which,
        device=device,
    )
    rows = [
        {**asdict(each), "label": label} for label, measured in zip(runs, results, strict=True) for each in measured
    ]
    caption = (
        f"Accuracy on {rows[0]['images']} images of {domain} under the 15 common corruptions of ImageNet-C at "
        f"severities {', '.join(map(str, _SEVERITIES))}. Their parameters were "
        "chosen for images of 224 x 224 pixels; blur is stronger on smaller ones."
    )
    return _build_picture(title, caption, plot_corruptions(pl.DataFrame(rows).with_columns(run="label")))


def _build_picture(title: str, caption: str, figure: Figure) -> Picture:
    return Picture(title, caption, f"{title}. {caption}", png=render_figure(figure, "png", _DPI))
