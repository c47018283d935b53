"""The demo as a picture: accuracy against shift for each method, and what its perturbations look like."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from numpy.typing import NDArray

from domainwise.algorithms import Algorithm
from domainwise.data import Dataset
from domainwise.data.batches import in_order
from domainwise.demo.plan import Row
from domainwise.demo.table import Line
from domainwise.explain.offsets import offset_of_each
from domainwise.figures import write_figure

SHADES = ("#9ecae1", "#4292c6", "#08306b", "#000000")
PLAIN = "#d95f0e"


def draw(path: Path, table: Sequence[Line], dataset: Dataset, trained: Mapping[Row, Algorithm], title: str) -> None:
    """Write the picture.

    Args:
        dataset: of the first seed, for its images.
        trained: the algorithms whose perturbations to show, one a method.
    """
    figure = Figure(figsize=(13, 7.6), layout="constrained", dpi=120)
    figure.suptitle(title, fontsize=13)
    above, below = _parts(figure.subfigures(2, 1, height_ratios=(1.15, 1)))
    _curves(above, table)
    examples, perturbations = _parts(below.subfigures(1, 2, width_ratios=(1, 1.25)))
    _examples(examples, dataset)
    _perturbations(perturbations, dataset, trained)
    write_figure(path, figure)


def _parts(subfigures: object) -> list[SubFigure]:
    return list(np.asarray(subfigures).flat)


def _curves(figure: SubFigure, table: Sequence[Line]) -> None:
    methods = [method for method in dict.fromkeys(line.row.method for line in table) if method != "erm"]
    panels: Sequence[Axes] = figure.subplots(1, max(1, len(methods)), sharey=True, squeeze=False)[0]
    plain = [line for line in table if line.row.method == "erm"]
    for panel, method in zip(panels, methods or ["erm"], strict=True):
        for line in plain:
            _curve(panel, line, PLAIN, "ERM", "--")
        for line, shade in zip((line for line in table if line.row.method == method), _shades(table), strict=False):
            if line.row.radius is not None:
                label = f"radius {line.row.radius:g}" + (" (chosen)" if line.is_chosen else "")
                _curve(panel, line, shade, label, "-")
        panel.set_title(method.upper())
        panel.set_xlabel("norm of the unseen shift")
        panel.set_xticks(list(table[0].shifted))
        panel.set_ylim(0.27, 1.02)
        panel.grid(alpha=0.25)
        panel.axhline(0.5, color="gray", linewidth=0.8, linestyle=":")
        panel.legend(fontsize=8, loc="lower left")
    panels[0].set_ylabel("accuracy")


def _curve(panel: Axes, line: Line, color: str, label: str, style: str) -> None:
    shifts = list(line.shifted)
    panel.plot(shifts, [line.shifted[s] for s in shifts], style, color=color, marker="o", markersize=3.5, label=label)


def _shades(table: Sequence[Line]) -> list[str]:
    radii = len({line.row.radius for line in table if line.row.radius is not None})
    return [SHADES[min(index, len(SHADES) - 1)] for index in range(max(1, radii))]


def _examples(figure: SubFigure, dataset: Dataset) -> None:
    """Two animals under growing shift: what the test domains hold."""
    tests = [domain for domain in dataset.domains if domain.role == "test"]
    figure.suptitle("Test images: one animal of each class as the shift grows", fontsize=10)
    panels = figure.subplots(2, len(tests), squeeze=False)
    for row in range(2):
        chosen = int((tests[0].labels == row).nonzero()[row])
        for panel, domain in zip(panels[row], tests, strict=True):
            _show(panel, domain.images[chosen].permute(1, 2, 0).numpy())
            if row == 0:
                panel.set_title(domain.name.removeprefix("shift_"), fontsize=9)


def _perturbations(figure: SubFigure, dataset: Dataset, trained: Mapping[Row, Algorithm]) -> None:
    """A training image of each domain, and each method's perturbation of it."""
    domains = [domain for domain in dataset.domains if domain.role == "train"]
    figure.suptitle("Training images and their perturbations, each scaled to its largest entry", fontsize=10)
    panels = figure.subplots(len(domains), 1 + max(1, len(trained)), squeeze=False)
    for row, domain in enumerate(domains):
        _show(panels[row][0], domain.images[0].permute(1, 2, 0).numpy())
        panels[row][0].set_ylabel(domain.name, fontsize=9)
        x, _ = next(in_order(domain, torch.tensor([0]), torch.device("cpu")))
        for panel, (which, algorithm) in zip(panels[row][1:], trained.items(), strict=False):
            offset = offset_of_each(algorithm, x, domain.labels[:1], row)[0].permute(1, 2, 0)
            _show(panel, (0.5 + 0.5 * offset / offset.abs().max().clamp(min=1e-12)).numpy())
            if row == 0:
                panel.set_title(f"{which.method.upper()} {which.radius:g}", fontsize=9)
    for panel in panels[:, 1 + len(trained) :].flat:
        panel.axis("off")


def _show(panel: Axes, image: NDArray[np.generic]) -> None:
    panel.imshow(image, interpolation="nearest")
    panel.set_xticks([])
    panel.set_yticks([])
