"""Grad-CAM as a picture, after the paper's Figure 4: a row an image, a column a run."""

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
from domainwise.errors import DomainwiseError, unknown
from domainwise.explain.attention import Explained
from domainwise.explain.gradcam import heat_maps
from domainwise.storage.run_folder import Which
from domainwise.training.loading import OpenRun

_SIDE, _HEAD = 1.55, 0.75
# Told apart by people who see fewer colours, too; the sign in front says the same.
_RIGHT, _WRONG = "#1b7837", "#b2182b"
_HEAT = matplotlib.colormaps["inferno"]
_MOST_OPAQUE = 0.85


@dataclass(frozen=True)
class Column:
    """What one network makes of the images.

    Args:
        maps: (n, H, W), as `heat_maps` returns them.
        predicted: class indices, (n,).
        probability: of the predicted class, (n,).
    """

    title: str
    maps: Tensor
    predicted: Tensor
    probability: Tensor


def column(title: str, network: nn.Module, images: Tensor, classes: Tensor | None, layer: str | None) -> Column:
    """Look at the images (n, C, H, W) in [0, 1] with a network; the other arguments are those of `heat_maps`."""
    with torch.no_grad(), eval_mode(network):
        probability, predicted = network(images).softmax(1).max(1)
    maps = heat_maps(network, images, classes, layer)
    return Column(title, maps.cpu(), predicted.cpu(), probability.cpu())


def draw(
    images: Tensor,
    labels: Tensor,
    class_names: Sequence[str],
    columns: Sequence[Column],
    masks: Tensor | None = None,
    title: str = "",
) -> Figure:
    """The picture.

    Args:
        images: (n, C, H, W) in [0, 1].
        labels: the true classes, (n,).
        masks: bool, (n, H, W); the object's outline is drawn where they are given.
    """
    count = len(images)
    size = (_SIDE * (1 + len(columns)) + 0.6, (_SIDE + 0.1) * count + _HEAD)
    figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.03))
    if title:
        figure.suptitle(title, fontsize=10)
    panels = figure.subplots(count, 1 + len(columns), squeeze=False)
    shown = [_as_shown(image) for image in images.cpu()]
    for row, (image, label) in enumerate(zip(shown, labels.tolist(), strict=True)):
        mask = None if masks is None else masks[row].cpu().numpy()
        _image(panels[row][0], image, class_names[label])
        for panel, each in zip(panels[row][1:], columns, strict=True):
            _heat(panel, image, each, row, mask)
            _verdict(panel, each, row, label, class_names)
    for panel, head in zip(panels[0], ("image", *(each.title for each in columns)), strict=True):
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
    bar = figure.colorbar(ScalarMappable(cmap=_HEAT), ax=panels, fraction=0.02, aspect=18 * max(1, count / 2), pad=0.01)
    bar.set_ticks([0, 1], labels=["0", "hottest"])
    bar.ax.tick_params(labelsize=8)
    bar.set_label("Grad-CAM, each map for itself", fontsize=8, labelpad=-20)
    return figure


def _as_shown(image: Tensor) -> NDArray[np.float32]:
    """(H, W, 3): gray images have one channel, and what has another number is shown by its mean."""
    three = image if len(image) == 3 else image.mean(0, keepdim=True).expand(3, -1, -1)
    return np.asarray(three.permute(1, 2, 0).float().clamp(0, 1).numpy())


def _image(panel: Axes, image: NDArray[np.float32], label: str) -> None:
    panel.imshow(image, interpolation="nearest")
    _bare(panel)
    panel.set_title(label, fontsize=8, pad=3)


def _heat(panel: Axes, image: NDArray[np.float32], of: Column, row: int, mask: NDArray[np.bool_] | None) -> None:
    heat = of.maps[row].numpy()
    # In gray, so that no colour of the image passes for heat.
    panel.imshow(image.mean(2), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    panel.imshow(heat, cmap=_HEAT, vmin=0, vmax=1, alpha=_MOST_OPAQUE * heat, interpolation="bilinear")
    if mask is not None and mask.any() and not mask.all():
        panel.contour(mask.astype(float), levels=[0.5], colors="white", linewidths=1.8)
        panel.contour(mask.astype(float), levels=[0.5], colors="black", linewidths=0.7)
    if not heat.any():
        panel.text(0.5, 0.03, "no heat", transform=panel.transAxes, ha="center", fontsize=7, color="white")
    _bare(panel)


def _verdict(panel: Axes, of: Column, row: int, label: int, class_names: Sequence[str]) -> None:
    predicted = int(of.predicted[row])
    sign, colour = ("✓", _RIGHT) if predicted == label else ("✗", _WRONG)
    said = f"{sign} {class_names[predicted]} {float(of.probability[row]):.0%}"
    panel.set_title(said, fontsize=8, color=colour, pad=3)
    for spine in panel.spines.values():
        spine.set_color(colour)
        spine.set_linewidth(1.5)


def _bare(panel: Axes) -> None:
    panel.set_xticks([])
    panel.set_yticks([])


@dataclass(frozen=True)
class Examples:
    """Some images of a domain, by their indices."""

    dataset: Dataset
    domain: Domain
    indices: Tensor

    def batch(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Images (n, C, H, W) in [0, 1] and labels (n,)."""
        images, labels = zip(*iterate_batches(self.domain, self.indices, device), strict=True)
        return torch.cat(images), torch.cat(labels)


def examples_of(run: OpenRun, name: str, count: int, seed: int = 0) -> Examples:
    """Images drawn from the main part of the domain `name`."""
    if name not in run.dataset.domain_names:
        raise unknown(f"domain of {run.dataset.name}", name, run.dataset.domain_names)
    main = run.splits[name].main
    if not 1 <= count <= len(main):
        raise DomainwiseError(f"--images must be from 1 to {len(main)}, as {name} has, not {count}")
    order = torch.randperm(len(main), generator=torch.Generator().manual_seed(seed))
    return Examples(run.dataset, run.dataset.domains[run.dataset.index(name)], main[order[:count]])


def draw_grad_cam(
    runs: Mapping[str, OpenRun],
    examples: Examples,
    *,
    which: Which = "best",
    classes: Explained = "predicted",
    layer: str | None = None,
    device: torch.device | None = None,
) -> Figure:
    """Grad-CAM of each run, by its label, on the examples; other arguments as in `object_attention`."""
    device = device or torch.device("cpu")
    images, labels = examples.batch(device)
    explained = labels if classes == "true" else None
    columns = [
        column(re.sub(",? ", "\n", label, count=1), run.model(which).to(device), images, explained, layer)
        for label, run in runs.items()
    ]
    domain = examples.domain
    masks = None if domain.masks is None else domain.masks[examples.indices]
    title = f"{examples.dataset.name}, {domain.name}: what speaks for the {classes} class"
    return draw(images.cpu(), labels.cpu(), examples.dataset.classes, columns, masks, title)
