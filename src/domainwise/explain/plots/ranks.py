"""The paper's Figure 2 as measured: ranks over the images of a domain and within one perturbation, run by run."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from domainwise.explain.ranks import Ranks

# Smaller than this share of the largest, a singular value of float32 entries is rounding.
_LEAST = 1e-7
_MARKERS = "osD^vP*X"


def draw_ranks(found: Sequence[Ranks]) -> Figure:
    """Above: the matrix of all perturbations of a domain. Below: one perturbation. Means over domains and channels."""
    runs: dict[str, list[Ranks]] = {}
    for each in found:
        runs.setdefault(each.run, []).append(each)
    figure = Figure((11, 2.6 + 2 * max(2.2, 0.5 * len(runs) + 0.6)), layout="constrained", dpi=120)
    above, below = figure.subplots(2, 2, width_ratios=(1, 1.1))
    height, width = found[0].shape
    images = max(each.images for each in found)
    stacked = {run: (_mean(e.stacked for e in of), _mean(e.stacked_effective for e in of)) for run, of in runs.items()}
    single = {run: (_mean(e.single for e in of), _mean(e.single_effective for e in of)) for run, of in runs.items()}
    _bars(above[0], stacked)
    _bars(below[0], single)
    _spectra(above[1], {run: torch.cat([each.stacked_spectrum for each in of]) for run, of in runs.items()})
    _spectra(below[1], {run: torch.cat([each.single_spectrum for each in of]) for run, of in runs.items()})
    above[0].set_title(f"over a domain's images: {images} x {height * width} a channel", fontsize=10)
    below[0].set_title(f"within one perturbation: {height} x {width} a channel", fontsize=10)
    above[0].legend(fontsize=8, loc="lower right")
    above[1].legend(fontsize=8, loc="lower left")
    return figure


def _mean(values: Iterable[Sequence[float]]) -> float:
    return fmean(value for channels in values for value in channels)


def _bars(panel: Axes, ranks: Mapping[str, tuple[float, float]]) -> None:
    for place, (rank, effective) in enumerate(ranks.values()):
        for shift, value, colour, label in (
            (-0.19, rank, "tab:blue", "rank"),
            (0.19, effective, "tab:orange", "effective rank"),
        ):
            (bar,) = panel.barh(place + shift, value, height=0.36, color=colour, label=None if place else label)
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


def _spectra(panel: Axes, spectra: Mapping[str, Tensor]) -> None:
    least = 0.1
    for index, (run, values) in enumerate(spectra.items()):
        mean = values.mean(0)
        there = mean[mean > _LEAST].tolist()
        least = min([least, *there])
        panel.plot(
            range(1, len(there) + 1),
            there,
            color=f"C{index % 10}",
            marker=_MARKERS[index % len(_MARKERS)],
            markersize=4 if len(there) < 50 else 2.5,
            linewidth=1.2,
            label=run,
        )
    panel.set(xscale="log", yscale="log", xlabel="number of the singular value", ylabel="value over the largest")
    panel.set_ylim(least / 2, 2)
    panel.xaxis.set_major_formatter("{x:g}")
    panel.set_title("singular values (mean over domains and channels)", fontsize=10)
    panel.grid(alpha=0.25)
