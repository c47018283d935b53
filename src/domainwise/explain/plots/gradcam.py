"""Grad-CAM of several runs on the same images, as in the paper's Figure 4: one row per image, one column per run."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from numpy.typing import NDArray
from torch import Tensor, nn

from domainwise.algorithms.base import eval_mode
from domainwise.data import Dataset, Domain
from domainwise.data.batches import iterate_batches
from domainwise.errors import DomainwiseError, unknown_choice
from domainwise.explain.attention import Target
from domainwise.explain.gradcam import compute_gradcam
from domainwise.storage.run_folder import Which
from domainwise.training.loading import OpenRun

_SIDE, _HEAD = 1.55, 0.75
# Distinguishable with color blindness; the sign in front of the class says the same.
_CORRECT, _WRONG = "#1b7837", "#b2182b"
_COLORMAP = matplotlib.colormaps["inferno"]
_MAX_OPACITY = 0.85


@dataclass(frozen=True)
class Examples:
    """Images of a domain, by their indices."""

    dataset: Dataset
    domain: Domain
    indices: Tensor

    def load(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return images (n, C, H, W) in [0, 1] and labels (n,)."""
        images, labels = zip(*iterate_batches(self.domain, self.indices, device), strict=True)
        return torch.cat(images), torch.cat(labels)


def sample_examples(run: OpenRun, name: str, count: int, seed: int = 0) -> Examples:
    """Sample `count` images from the main part of the domain `name`."""
    if name not in run.dataset.domain_names:
        raise unknown_choice(f"domain of {run.dataset.name}", name, run.dataset.domain_names)
    main = run.splits[name].main
    if not 1 <= count <= len(main):
        raise DomainwiseError(f"the number of images must be from 1 to {len(main)}, all that {name} has, got {count}")
    order = torch.randperm(len(main), generator=torch.Generator().manual_seed(seed))
    return Examples(run.dataset, run.dataset.domains[run.dataset.index(name)], main[order[:count]])


def plot_gradcam(
    runs: Mapping[str, OpenRun],
    examples: Examples,
    *,
    which: Which = "best",
    target: Target = "predicted",
    layer: str | None = None,
    device: torch.device | None = None,
) -> Figure:
    """Plot Grad-CAM of runs on the same images; where the domain has masks, the object's outline is drawn.

    Args:
        runs: runs by label.
        examples: images, as `sample_examples` returns them.
        which: model of each run, `best` or `last`.
        target: class to explain, `predicted` or `true`.
        layer: layer to explain (default: `find_target_layer`).
    """
    device = device or torch.device("cpu")
    images, labels = examples.load(device)
    classes = labels if target == "true" else None
    columns = [
        _compute_column(re.sub(",? ", "\n", label, count=1), run.model(which).to(device), images, classes, layer)
        for label, run in runs.items()
    ]
    domain = examples.domain
    masks = None if domain.masks is None else domain.masks[examples.indices]
    title = f"{examples.dataset.name}, {domain.name}\nGrad-CAM of the {target} class"
    return _plot_grid(images.cpu(), labels.cpu(), examples.dataset.classes, columns, masks, title)


@dataclass(frozen=True)
class _Column:
    """One network's maps (n, H, W), predicted classes (n,) and their probabilities (n,)."""

    title: str
    maps: Tensor
    predicted: Tensor
    probability: Tensor


def _compute_column(
    title: str, network: nn.Module, images: Tensor, classes: Tensor | None, layer: str | None
) -> _Column:
    with torch.no_grad(), eval_mode(network):
        probability, predicted = network(images).softmax(1).max(1)
    maps = compute_gradcam(network, images, classes, layer)
    return _Column(title, maps.cpu(), predicted.cpu(), probability.cpu())


def _plot_grid(
    images: Tensor,
    labels: Tensor,
    class_names: Sequence[str],
    columns: Sequence[_Column],
    masks: Tensor | None,
    title: str,
) -> Figure:
    count = len(images)
    size = (_SIDE * (1 + len(columns)) + 0.6, (_SIDE + 0.1) * count + _HEAD)
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.03))
    figure.suptitle(title, fontsize=10)
    panels = figure.subplots(count, 1 + len(columns), squeeze=False)
    for row, (image, label) in enumerate(zip(map(_to_rgb, images), labels.tolist(), strict=True)):
        mask = None if masks is None else masks[row].cpu().numpy()
        panels[row][0].imshow(image, interpolation="nearest")
        panels[row][0].set(xticks=[], yticks=[])
        panels[row][0].set_title(class_names[label], fontsize=8, pad=3)
        for panel, column in zip(panels[row][1:], columns, strict=True):
            _show_heat(panel, image, column.maps[row].numpy(), mask)
            _show_prediction(panel, column, row, label, class_names)
    for panel, head in zip(panels[0], ("image", *(column.title for column in columns)), strict=True):
        panel.annotate(
            head,
            (0.5, 1),
            (0, 17),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=10,
            fontweight="bold",
        )
    bar = figure.colorbar(
        ScalarMappable(cmap=_COLORMAP), ax=panels, fraction=0.02, aspect=18 * max(1, count / 2), pad=0.01
    )
    bar.set_ticks([0, 1], labels=["0", "max"])
    bar.ax.tick_params(labelsize=8)
    bar.set_label("Grad-CAM, scaled per map", fontsize=8, labelpad=-14)
    return figure


def _to_rgb(image: Tensor) -> NDArray[np.float32]:
    """Return (H, W, 3); other than three channels are averaged."""
    channels = image if len(image) == 3 else image.mean(0, keepdim=True).expand(3, -1, -1)
    return np.asarray(channels.permute(1, 2, 0).float().clamp(0, 1).numpy())


def _show_heat(
    panel: Axes, image: NDArray[np.float32], heat: NDArray[np.float32], mask: NDArray[np.bool_] | None
) -> None:
    # The image in gray, so that none of its colors looks like heat.
    panel.imshow(image.mean(2), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    panel.imshow(heat, cmap=_COLORMAP, vmin=0, vmax=1, alpha=_MAX_OPACITY * heat, interpolation="bilinear")
    if mask is not None and mask.any() and not mask.all():
        panel.contour(mask.astype(float), levels=[0.5], colors="white", linewidths=1.8)
        panel.contour(mask.astype(float), levels=[0.5], colors="black", linewidths=0.7)
    if not heat.any():
        panel.text(0.5, 0.03, "no heat", transform=panel.transAxes, ha="center", fontsize=7, color="white")
    panel.set(xticks=[], yticks=[])


def _show_prediction(panel: Axes, column: _Column, row: int, label: int, class_names: Sequence[str]) -> None:
    predicted = int(column.predicted[row])
    sign, color = ("✓", _CORRECT) if predicted == label else ("✗", _WRONG)
    text = f"{sign} {class_names[predicted]} {float(column.probability[row]):.0%}"
    panel.set_title(text, fontsize=8, color=color, pad=3)
    for spine in panel.spines.values():
        spine.set_color(color)
        spine.set_linewidth(1.5)
