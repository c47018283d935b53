"""Plots of perturbations: the image they are added to, their history, their components, and their ranks (Figure 2)."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from domainwise.explain.perturbations import PerturbationHistory, PerturbationSummary, Ranks, compute_rank

_CHANNEL_COLORS = {1: ("0.3",), 3: ("tab:red", "tab:green", "tab:blue")}
_COMPONENTS_PER_ROW = 10
# Relative to the largest, smaller singular values of float32 entries are rounding error.
_MIN_SINGULAR_VALUE = 1e-7
_MARKERS = "osD^vP*X"


def plot_perturbation(summary: PerturbationSummary, history: PerturbationHistory) -> Figure:
    """Plot one row per training domain; panels without data are left out."""
    has_norms, has_snapshots = bool(history.steps), bool(history.snapshot_steps)
    columns = 5 + has_norms + has_snapshots
    rows = len(summary.domains)
    figure = Figure((2.35 * columns + 0.6, 2.35 * rows + 0.9), layout="constrained", dpi=120)
    figure.suptitle(_format_title(summary), fontsize=12)
    panels = figure.subplots(rows, columns, squeeze=False, width_ratios=[1, 1.2, 1, 1, *[1.35] * (columns - 4)])
    for index, row in enumerate(panels):
        delta = summary.delta[index]
        show_image(row[0], summary.image[index])
        row[0].set_ylabel(summary.domains[index], fontsize=10)
        _show_signed(figure, row[1], delta)
        show_image(row[2], center_on_gray(delta))
        show_image(row[3], summary.perturbed[index])
        _plot_singular_values(row[4], summary, index)
        if has_norms:
            _plot_norms(row[5], summary, history, index)
        if has_snapshots:
            _plot_directions(row[-1], history, index)
    titles = [
        "training image",
        "perturbation\n(mean of channels)",
        "perturbation\n(scaled to its maximum)",
        "perturbed image",
        "singular values\nper channel",
        *["size during training"] * has_norms,
        *["direction (cosine)"] * has_snapshots,
    ]
    for panel, title in zip(panels[0], titles, strict=True):
        panel.set_title(title, fontsize=9)
    return figure


def show_image(panel: Axes, image: Tensor) -> None:
    """Show an image (C, H, W) in [0, 1]; other than three channels are averaged and shown in gray."""
    panel.imshow(_to_pixels(image), interpolation="nearest", cmap="gray", vmin=0, vmax=1)
    panel.set(xticks=[], yticks=[])


def center_on_gray(delta: Tensor) -> Tensor:
    """Return a perturbation as an image: gray is no change, the largest entry is black or white."""
    return 0.5 + 0.5 * delta / delta.abs().max().clamp(min=1e-12)


def _format_title(summary: PerturbationSummary) -> str:
    norm = "" if summary.norm == "l2" else " (largest entry)"
    kind = "one per domain" if summary.is_kept else "one per image (here: of the image shown)"
    limit = "" if summary.rank is None else f", rank at most {summary.rank}"
    prior = "" if summary.prior == "pixels" else f" of prior {summary.prior}"
    return f"{summary.run}: {summary.method.upper()}, epsilon {summary.epsilon:g}{prior}{norm}{limit}, {kind}"


def _to_pixels(image: Tensor) -> NDArray[np.generic]:
    pixels: NDArray[np.generic] = image.permute(1, 2, 0).numpy() if len(image) == 3 else image.mean(0).numpy()
    return pixels


def _show_signed(figure: Figure, panel: Axes, delta: Tensor) -> None:
    mean = delta.mean(0).numpy()
    limit = max(float(np.abs(mean).max()), 1e-12)
    image = panel.imshow(mean, cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
    panel.set(xticks=[], yticks=[])
    bar = figure.colorbar(image, ax=panel, shrink=0.85, pad=0.03)
    bar.set_ticks([-limit, 0, limit], labels=[f"{-limit:.1g}", "0", f"{limit:.1g}"])
    bar.ax.tick_params(labelsize=7)


def _plot_singular_values(panel: Axes, summary: PerturbationSummary, index: int) -> None:
    """Plot the singular values above rounding error."""
    values = summary.singular_values[index]
    colors: Sequence[str] = _CHANNEL_COLORS.get(len(values)) or [f"C{index}" for index in range(len(values))]
    for channel, color, count in zip(values, colors, compute_rank(values, summary.delta.shape[-2:]), strict=True):
        nonzero = channel[: int(count)].tolist()
        panel.plot(range(1, len(nonzero) + 1), nonzero, ".-", color=color, linewidth=1, markersize=4)
    if summary.rank is not None:
        panel.axvline(summary.rank, color="black", linestyle="--", linewidth=0.9, label=f"rank {summary.rank}")
        panel.legend(fontsize=7, loc="upper right")
    panel.set(yscale="log", xlim=(0.4, values.shape[1] + 0.6))
    panel.set_xlabel("index", fontsize=8)
    _style(panel)


def _plot_norms(panel: Axes, summary: PerturbationSummary, history: PerturbationHistory, index: int) -> None:
    panel.plot(history.steps, history.norms[:, index].tolist(), color="tab:purple", label="l2 norm")
    if summary.prior == "pixels":
        largest = history.largest_singular_values[:, index].tolist()
        panel.plot(history.steps, largest, color="tab:orange", label="largest singular\nvalue (mean)")
    if summary.norm == "l2":
        panel.axhline(summary.epsilon, color="black", linestyle="--", linewidth=0.9, label="epsilon")
    panel.set_ylim(0, 1.15 * max(panel.get_ylim()[1], summary.epsilon * (summary.norm == "l2")))
    panel.set_xlabel("step", fontsize=8)
    if index == 0:
        panel.legend(fontsize=7)
    _style(panel)


def _plot_directions(panel: Axes, history: PerturbationHistory, index: int) -> None:
    for cosines, color, label in (
        (history.cosine_to_previous, "tab:green", "to the previous"),
        (history.cosine_to_last, "tab:blue", "to the last"),
    ):
        panel.plot(history.snapshot_steps, cosines[:, index].tolist(), color=color, marker=".", label=label)
    # The first snapshot has no previous one: its cosine is NaN.
    lowest = min(float(history.cosine_to_last.min()), float(history.cosine_to_previous.nan_to_num(1.0).min()))
    panel.set_ylim(min(-0.05, lowest - 0.05), 1.05)
    panel.set_xlabel("step", fontsize=8)
    if index == 0:
        panel.legend(fontsize=7)
    _style(panel)


def _style(panel: Axes) -> None:
    panel.grid(alpha=0.25)
    panel.tick_params(labelsize=7)


def plot_components(summary: PerturbationSummary) -> Figure:
    """Plot per domain the mixing weights as bars and, below them, each component on one scale."""
    assert summary.components is not None
    domains, count = summary.components.shape[:2]
    columns, rows = min(count, _COMPONENTS_PER_ROW), -(-count // _COMPONENTS_PER_ROW)
    has_weights = summary.mixing_weights is not None
    height = domains * (1.5 * has_weights + 1.45 * rows + 0.5) + 0.5
    figure = Figure((max(6.5, 1.25 * columns + 1), height), layout="constrained", dpi=120)
    figure.suptitle(f"{summary.run}: the {count} components mixed per domain", fontsize=11)
    blocks = figure.subfigures(domains, 1, squeeze=False)[:, 0]
    for index, (block, name) in enumerate(zip(blocks, summary.domains, strict=True)):
        cosine = f"mean cosine of two components {summary.component_cosines[index]:.2f}"
        block.suptitle(f"{name}: {cosine}", fontsize=9.5, x=0.01, ha="left")
        grid = block.add_gridspec(has_weights + rows, columns, height_ratios=[1.1] * has_weights + [1.3] * rows)
        if has_weights:
            _plot_weights(block.add_subplot(grid[0, :]), summary, index)
        # One scale for all components of a domain, so that they can be compared.
        images = center_on_gray(summary.components[index])
        for number in range(count):
            panel = block.add_subplot(grid[has_weights + number // columns, number % columns])
            show_image(panel, images[number])
            norm = float(summary.component_norms[index, number])
            panel.set_title(f"{number + 1}: norm {norm:.2g}", fontsize=7.5, pad=3)
    return figure


def _plot_weights(panel: Axes, summary: PerturbationSummary, index: int) -> None:
    assert summary.mixing_weights is not None
    weights = summary.mixing_weights[index].tolist()
    numbers = range(1, len(weights) + 1)
    bars = panel.bar(numbers, weights, color="tab:blue", width=0.6)
    panel.bar_label(bars, fmt="%.2f", fontsize=7, padding=1)
    panel.axhline(1 / len(weights), color="gray", linestyle=":", linewidth=0.9)
    panel.set(xlim=(0.5, len(weights) + 0.5), xticks=list(numbers), ylim=(0, 1.25 * max(weights)))
    panel.set_ylabel("weight", fontsize=8)
    panel.tick_params(labelsize=7)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


def plot_ranks(ranks: Sequence[Ranks]) -> Figure:
    """Plot the ranks over a domain's images (top) and within one perturbation (bottom), averaged over domains."""
    runs: dict[str, list[Ranks]] = {}
    for each in ranks:
        runs.setdefault(each.run, []).append(each)
    figure = Figure((11, 2.6 + 2 * max(2.2, 0.5 * len(runs) + 0.6)), layout="constrained", dpi=120)
    top, bottom = figure.subplots(2, 2, width_ratios=(1, 1.1))
    height, width = ranks[0].shape
    counts = sorted({each.images for each in ranks})
    images = " to ".join(map(str, dict.fromkeys((counts[0], counts[-1]))))
    stacked = {run: (_mean(e.stacked for e in of), _mean(e.stacked_effective for e in of)) for run, of in runs.items()}
    single = {run: (_mean(e.single for e in of), _mean(e.single_effective for e in of)) for run, of in runs.items()}
    _plot_bars(top[0], stacked)
    _plot_bars(bottom[0], single)
    _plot_spectra(top[1], {run: _stack_spectra([each.stacked_spectrum for each in of]) for run, of in runs.items()})
    _plot_spectra(bottom[1], {run: _stack_spectra([each.single_spectrum for each in of]) for run, of in runs.items()})
    top[0].set_title(f"over a domain's images: {images} x {height * width} per channel", fontsize=10)
    bottom[0].set_title(f"within one perturbation: {height} x {width} per channel", fontsize=10)
    top[0].legend(fontsize=8, loc="lower right")
    top[1].legend(fontsize=8, loc="lower left")
    return figure


def _stack_spectra(spectra: Sequence[Tensor]) -> Tensor:
    """Stack spectra (C, k) of domains; a domain with fewer images has fewer singular values, and the rest are 0."""
    longest = max(each.shape[1] for each in spectra)
    return torch.cat([F.pad(each, (0, longest - each.shape[1])) for each in spectra])


def _mean(values: Iterable[Sequence[float]]) -> float:
    return fmean(value for channels in values for value in channels)


def _plot_bars(panel: Axes, ranks: Mapping[str, tuple[float, float]]) -> None:
    for place, (rank, effective) in enumerate(ranks.values()):
        for shift, value, color, label in (
            (-0.19, rank, "tab:blue", "rank"),
            (0.19, effective, "tab:orange", "effective rank"),
        ):
            (bar,) = panel.barh(place + shift, value, height=0.36, color=color, label=None if place else label)
            panel.annotate(
                f"{value:.3g}",
                (bar.get_width(), place + shift),
                (4, 0),
                textcoords="offset points",
                va="center",
                size=8,
            )
    panel.set_yticks(range(len(ranks)), list(ranks), fontsize=9)
    panel.invert_yaxis()
    panel.set_xscale("log")
    panel.set_xlim(0.7, 2 * max(max(pair) for pair in ranks.values()))
    panel.xaxis.set_major_formatter("{x:g}")
    panel.grid(axis="x", alpha=0.25)


def _plot_spectra(panel: Axes, spectra: Mapping[str, Tensor]) -> None:
    lowest = 0.1
    for index, (run, values) in enumerate(spectra.items()):
        mean = values.mean(0)
        nonzero = mean[mean > _MIN_SINGULAR_VALUE].tolist()
        lowest = min([lowest, *nonzero])
        panel.plot(
            range(1, len(nonzero) + 1),
            nonzero,
            color=f"C{index % 10}",
            marker=_MARKERS[index % len(_MARKERS)],
            markersize=4 if len(nonzero) < 50 else 2.5,
            linewidth=1.2,
            label=run,
        )
    panel.set(xscale="log", yscale="log", xlabel="index of the singular value", ylabel="value / largest")
    panel.set_ylim(lowest / 2, 2)
    panel.xaxis.set_major_formatter("{x:g}")
    panel.set_title("singular values (mean over domains and channels)", fontsize=10)
    panel.grid(alpha=0.25)
