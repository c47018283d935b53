"""Plots of accuracy on corrupted images: by severity and by corruption."""

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from domainwise.explain.corruption_errors import CLEAN
from domainwise.explain.corruptions import CORRUPTIONS
from domainwise.explain.plots.accuracy import add_legend, assign_colors, plot_accuracy
from domainwise.selection.statistics import aggregate_means


def plot_corruptions(frame: pl.DataFrame) -> Figure:
    """Plot accuracy by severity, averaged over corruptions, and by corruption, averaged over severities.

    One row of panels per domain. Bands and bars are standard errors over the runs of a label.

    Args:
        frame: one row per measurement, with `label`, `run`, `domain`, `corruption`, `severity` and `accuracy`, as
            `corrupt_runs` returns it.
    """
    colors = assign_colors(frame["label"].unique(maintain_order=True).to_list())
    domains = frame["domain"].unique(maintain_order=True).to_list()
    names = [name for name in (CLEAN, *CORRUPTIONS) if name in frame["corruption"]]
    by_severity, by_corruption = (_average(frame, name) for name in ("severity", "corruption"))
    height = 1.1 + 0.24 * len(names)
    figure = Figure((9.0, max(3.2, height) * len(domains) + 0.3), layout="constrained", dpi=120)
    panels = figure.subplots(len(domains), 2, sharex="col", squeeze=False)
    for (left, right), domain in zip(panels, domains, strict=True):
        severities = by_severity["severity"].unique().sort().to_list()
        plot_accuracy(left, by_severity.filter(domain=domain), "severity", colors, ticks=severities)
        left.set_title(f"{domain}: mean over corruptions", fontsize=9)
        left.set_ylim(-0.02, 1.02)
        left.set_ylabel("accuracy")
        _plot_dots(right, by_corruption.filter(domain=domain), names, colors)
        right.set_title(f"{domain}: mean over severities", fontsize=9)
    panels[-1][0].set_xlabel("severity (0: clean)")
    panels[-1][1].set_xlabel("accuracy")
    add_legend(figure, panels[0][0])
    return figure


def _average(frame: pl.DataFrame, setting: str) -> pl.DataFrame:
    """Average each run over the other setting first, so that the error is that of runs."""
    runs = frame.group_by("label", "run", "domain", setting, maintain_order=True).agg(pl.col("accuracy").mean())
    return aggregate_means(runs, ["label", "domain", setting])


def _plot_dots(panel: Axes, points: pl.DataFrame, names: list[str], colors: dict[str, str]) -> None:
    """Plot one line per corruption from the top, and one dot per label, beside each other."""
    for number, (label, color) in enumerate(colors.items()):
        series = {row["corruption"]: row for row in points.filter(label=label).iter_rows(named=True)}
        shift = 0.6 * ((number + 0.5) / len(colors) - 0.5)
        places = [place + shift for place, name in enumerate(names) if name in series]
        rows = [series[name] for name in names if name in series]
        means, errors = [row["mean"] for row in rows], [row["error"] or 0.0 for row in rows]
        panel.errorbar(means, places, xerr=errors, fmt="o", color=color, markersize=4, elinewidth=1.2)
    panel.set_yticks(range(len(names)), [name.replace("_", " ") for name in names], fontsize=8)
    panel.set_ylim(len(names) - 0.4, -0.6)
    panel.set_xlim(-0.02, 1.02)
    panel.grid(axis="x", alpha=0.25)
    for place in range(1, len(names)):
        panel.axhline(place - 0.5, color="0.92", linewidth=0.8, zorder=0)
    panel.tick_params(axis="y", length=0)
