"""Plots of accuracy against a setting (the radius of an attack or any hyperparameter), and of differences in it."""

from collections.abc import Collection, Mapping, Sequence

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from domainwise.explain.robustness import ATTACKS, average_attacks, average_by_epsilon
from domainwise.selection.verdicts import Judgement, Verdict

_MAX_COLUMNS = 3
VERDICT_COLORS: Mapping[Verdict, str] = {
    "holds": "C2",
    "does not hold": "C3",
    "no practical difference": "C0",
    "inconclusive": "0.55",
}


def plot_accuracy(
    panel: Axes,
    points: pl.DataFrame,
    x: str,
    colors: Mapping[str, str],
    *,
    is_log: bool = False,
    ticks: Sequence[float] = (),
    dashed: Collection[str] = (),
) -> None:
    """Plot the mean accuracy of each series against a setting, with its standard error as a band.

    Args:
        points: one row per point: `label` (the series), the column `x`, `mean`, and where known `error` and `count`.
            A series without the setting has a null `x` and becomes a level line.
        x: name of the column on the x axis.
        colors: color of each series. Series of `points` that are not listed are not plotted.
        is_log: use a logarithmic x axis; points at 0 are left out.
        ticks: positions of the x ticks (default: chosen by matplotlib).
        dashed: series drawn as dashed curves.
    """
    if is_log:
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter("{x:g}")
        points = points.filter(pl.col(x).is_null() | (pl.col(x) > 0))
    for label, color in colors.items():
        series = points.filter(label=label).sort(x)
        mean = series["mean"]
        error = series["error"].fill_null(0.0) if "error" in series.columns else mean * 0
        series = series.with_columns(low=mean - error, high=mean + error)
        curve, levels = series.drop_nulls(x), series.filter(pl.col(x).is_null())
        if len(curve):
            at, name, style = curve[x].to_list(), label + _format_counts(curve), "--" if label in dashed else "-"
            panel.plot(at, curve["mean"].to_list(), style, color=color, marker="o", markersize=3.5, label=name)
            low, high = curve["low"].to_list(), curve["high"].to_list()
            panel.fill_between(at, low, high, color=color, alpha=0.2, linewidth=0)
            if len(curve) == 1:  # a band without width cannot be seen
                panel.vlines(at, low, high, color=color, linewidth=1.2)
        for level in levels.iter_rows(named=True):
            name = label + _format_counts(levels)
            panel.axhline(level["mean"], color=color, linestyle="--", linewidth=1.2, label=name)
            panel.axhspan(level["low"], level["high"], color=color, alpha=0.15, linewidth=0)
    if ticks:
        panel.set_xticks(list(ticks), [f"{value:g}" for value in ticks])
        panel.minorticks_off()
    panel.grid(alpha=0.25)


def _format_counts(series: pl.DataFrame) -> str:
    if "count" not in series.columns:
        return ""
    counts = series["count"].sort().to_list()
    return f" (n = {counts[0]})" if counts[0] == counts[-1] else f" (n = {counts[0]} to {counts[-1]})"


def plot_robustness(frame: pl.DataFrame) -> Figure:
    """Plot accuracy under attack against epsilon: one panel per domain, attack and norm, one curve per label.

    Args:
        frame: one row per measurement, with `label`, `domain`, `attack`, `norm`, `epsilon`, `accuracy` and `images`, as
            `attack_runs` returns it. Rows that differ in nothing else are averaged.
    """
    means = average_attacks(frame)
    in_255 = pl.when(norm="linf").then(255.0).otherwise(1.0)
    means = means.with_columns(epsilon=pl.col("epsilon") * in_255)
    domains, labels = (frame[name].unique(maintain_order=True).to_list() for name in ("domain", "label"))
    attacks = frame.select("attack", "norm").unique(maintain_order=True).rows()
    colors = assign_colors(labels)
    # One row per attack and one column per domain; the attacks on a single domain are next to each other.
    columns = len(domains) if len(domains) > 1 else min(len(attacks), _MAX_COLUMNS)
    rows = -(-len(attacks) * len(domains) // columns)
    figure = Figure((max(5.5, 3.1 * columns + 0.8), 2.9 * rows + 0.5), layout="constrained", dpi=120)
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False)
    cells = [(attack, norm, domain) for attack, norm in attacks for domain in domains]
    for panel in panels.flat[len(cells) :]:
        panel.set_axis_off()
    for panel, (attack, norm, domain) in zip(panels.flat, cells, strict=False):
        points = means.filter(pl.col("norm").eq_missing(norm), attack=attack, domain=domain)
        plot_accuracy(panel, points, "epsilon", colors)
        panel.set_title(f"{domain}: {ATTACKS.get(attack, attack)}", fontsize=9)
        panel.set_xlabel("" if norm is None else f"{norm} radius of the attack" + ", in 1/255" * (norm == "linf"))
        panel.set_ylim(-0.02, 1.02)
    for row in panels:
        row[0].set_ylabel("accuracy")
    add_legend(figure, panels[0][0])
    return figure


def plot_accuracy_by_epsilon(frame: pl.DataFrame) -> Figure:
    """Plot accuracy against the epsilon of training, as in the paper's Figure 1: one panel per test domain.

    Args:
        frame: what `read_accuracy_by_epsilon` returns. Methods without an epsilon, like ERM, become level lines.
    """
    means = average_by_epsilon(frame).with_columns(label=pl.col("method").str.to_uppercase())
    domains = frame["domain"].unique(maintain_order=True).to_list()
    colors = assign_colors([method.upper() for method in frame["method"].unique(maintain_order=True)])
    figure = Figure((max(5.0, 3.3 * len(domains) + 0.8), 3.6), layout="constrained", dpi=120)
    panels = figure.subplots(1, len(domains), sharey=True, squeeze=False)[0]
    for panel, domain in zip(panels, domains, strict=True):
        plot_accuracy(panel, means.filter(domain=domain), "epsilon", colors, is_log=True)
        panel.set_title(domain, fontsize=10)
        panel.set_xlabel("epsilon in training")
    panels[0].set_ylabel("accuracy")
    add_legend(figure, panels[-1])
    return figure


def add_legend(figure: Figure, panel: Axes) -> None:
    """Add the panel's legend above all panels, where it hides no curve."""
    handles, names = panel.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside upper center", ncols=min(len(names), 6), fontsize=8)


def assign_colors(labels: Sequence[str]) -> dict[str, str]:
    return {label: f"C{index % 10}" for index, label in enumerate(labels)}


def plot_differences(judgements: Mapping[str, Judgement], quantity: str) -> Figure:
    """Plot the difference behind each verdict with its interval, the largest first, and the margin as a band.

    Args:
        judgements: by claim, of claims that were judged together.
        quantity: what the differences are, for the axis.
    """
    names = sorted(judgements, key=lambda name: judgements[name].estimate or 0.0)
    longest = max(map(len, names))
    figure = Figure((4.4 + 0.07 * longest, 1.2 + 0.34 * len(names)), layout="constrained", dpi=150)
    axes = figure.subplots()
    margin = judgements[names[0]].margin
    axes.axvspan(-margin, margin, color="0.92", zorder=0)
    axes.axvline(0, color="0.4", linewidth=1)
    for place, name in enumerate(names):
        each = judgements[name]
        if each.estimate is None:
            continue
        color = VERDICT_COLORS[each.verdict]
        if each.interval is not None:
            axes.plot(each.interval, (place, place), color=color, linewidth=2)
        axes.plot(each.estimate, place, "o", color=color, fillstyle="none" if each.interval is None else "full")
    verdicts = [name for name in VERDICT_COLORS if any(each.verdict == name for each in judgements.values())]
    handles = [Line2D([], [], color=VERDICT_COLORS[name], linewidth=2, marker="o", label=name) for name in verdicts]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles), frameon=False, fontsize=9)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.7, len(names) - 0.3)
    has_hollow = any(each.interval is None and each.estimate is not None for each in judgements.values())
    axes.set_xlabel(f"{quantity}, points" + "\nhollow: no interval yet" * has_hollow)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure
