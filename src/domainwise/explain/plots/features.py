"""t-SNE maps of the features of several runs on the same images: two panels per run, colored by class and by domain."""

from collections import Counter
from collections.abc import Iterable

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from domainwise.escaping import escape_unprintable
from domainwise.explain.features import FeatureMaps, Probe
from domainwise.selection.statistics import format_percent

# Black and the "muted" palette of Paul Tol, which color-blind readers can distinguish.
_COLORS = (
    *("#cc6677", "#332288", "#ddcc77", "#117733", "#88ccee"),
    *("#882255", "#44aa99", "#999933", "#aa4499", "#000000"),
)
_OTHER_COLOR = "#c8c8c8"
# Training domains are dots, unseen ones triangles.
_MARKERS = {True: "o", False: "^"}
_SIDE = 3.0
_RUNS_PER_ROW = 4
# Longer names are cut in the legends.
_MAX_NAME = 32


def plot_features(maps: FeatureMaps) -> Figure:
    """Plot up to four runs next to each other: the map of each colored by class and, below, by domain.

    With more classes or domains than colors, the most frequent ones are colored and the others gray.
    """
    runs = list(maps.domain_probes)
    class_colors = _assign_colors(maps.points["class"], maps.classes)
    domain_colors = _assign_colors(maps.points["domain"], maps.points["domain"].unique(maintain_order=True))
    columns, blocks = min(len(runs), _RUNS_PER_ROW), -(-len(runs) // _RUNS_PER_ROW)
    names = [*class_colors, *(f"{name} (unseen)" for name in domain_colors)]
    width = _SIDE * columns + 0.9 + 0.07 * min(_MAX_NAME, max(map(len, names)))
    figure = Figure((width, 2 * blocks * (_SIDE + 0.45) + 0.4), layout="constrained", dpi=120)
    panels = figure.subplots(2 * blocks, columns, squeeze=False)
    top, bottom = panels[::2].flatten(), panels[1::2].flatten()
    # Shuffled, so that no domain hides the others because it is drawn last.
    points = maps.points.with_columns(is_seen=pl.col("role") == "train").sample(fraction=1, shuffle=True, seed=0)
    for run, upper, lower in zip(runs, top, bottom, strict=False):
        own = points.filter(run=run)
        _plot_map(upper, own, "class", class_colors)
        _plot_map(lower, own, "domain", domain_colors)
        upper.set_title(escape_unprintable(run), fontsize=11, fontweight="bold", parse_math=False)
        _describe(upper, "class", maps.class_probes[run])
        _describe(lower, "domain", maps.domain_probes[run])
    for panel in (*top[len(runs) :], *bottom[len(runs) :]):
        panel.remove()
    _add_legend(top[columns - 1], "class", class_colors, maps.points, has_roles=True)
    _add_legend(bottom[columns - 1], "domain", domain_colors, maps.points)
    images = len(maps.points) // len(runs)
    figure.suptitle(
        f"{escape_unprintable(maps.dataset)}: t-SNE of the features of {images} images, perplexity "
        f"{maps.perplexity:.3g}",
        fontsize=10,
        parse_math=False,
    )
    figure.supxlabel(
        "Distances between clusters and their sizes mean little. The percentages are of logistic regressions on the "
        "features, not on the map.",
        fontsize=7.5,
        color="0.35",
        wrap=True,
    )
    return figure


def _assign_colors(values: pl.Series, order: Iterable[str]) -> dict[str, str]:
    """Return the colors of the values that occur, in this order; if there are too few, of the most frequent values."""
    frequent = {value for value, _ in Counter(values).most_common(len(_COLORS))}
    return dict(zip((value for value in order if value in frequent), _COLORS, strict=False))


def _plot_map(panel: Axes, points: pl.DataFrame, by: str, colors: dict[str, str]) -> None:
    for (is_seen,), group in points.sort("is_seen", descending=True, maintain_order=True).group_by(
        "is_seen", maintain_order=True
    ):
        panel.scatter(
            group["x"],
            group["y"],
            s=14,
            c=[colors.get(name, _OTHER_COLOR) for name in group[by]],
            marker=_MARKERS[bool(is_seen)],
            alpha=0.8,
            linewidths=0,
        )
    panel.set(xticks=[], yticks=[], box_aspect=1)
    low, high = (np.array([points["x"].min(), points["y"].min()]), np.array([points["x"].max(), points["y"].max()]))
    # The same scale on both axes, because t-SNE has no preferred direction.
    center, half = (low + high) / 2, 0.53 * float((high - low).max())
    panel.set(xlim=(center[0] - half, center[0] + half), ylim=(center[1] - half, center[1] + half))


def _describe(panel: Axes, target: str, probe: Probe | None) -> None:
    if probe is not None:
        accuracy = format_percent(probe.accuracy.mean, probe.accuracy.error)
        panel.set_xlabel(f"{target} predictable: {accuracy} %\n(chance {100 * probe.chance:.1f} %)", fontsize=8)


def _add_legend(panel: Axes, by: str, colors: dict[str, str], points: pl.DataFrame, *, has_roles: bool = False) -> None:
    unseen = set(points.filter(pl.col("role") != "train")[by]) if by == "domain" else set()
    entries = [
        (color, _MARKERS[name not in unseen], f"{name} (unseen)" if name in unseen else name)
        for name, color in colors.items()
    ]
    if others := points[by].n_unique() - len(colors):
        entries.append((_OTHER_COLOR, "o", f"{others} other {by}{'es' if by == 'class' else 's'}"))
    if has_roles:
        roles = [(True, "training domain")] if (points["role"] == "train").any() else []
        roles += [(False, "unseen domain")] if (points["role"] != "train").any() else []
        entries += [("0.45", _MARKERS[is_seen], name) for is_seen, name in roles]
    handles = [Line2D([], [], color=color, marker=marker, linestyle="", markersize=5) for color, marker, _ in entries]
    legend = panel.legend(
        handles, [" "] * len(entries), loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=8, frameon=False
    )
    # Set here, because a legend leaves out names that begin with an underscore and reads $ as mathematics.
    for text, (_, _, name) in zip(legend.get_texts(), entries, strict=True):
        shown = escape_unprintable(name)
        text.set(text=shown if len(shown) <= _MAX_NAME else f"{shown[: _MAX_NAME - 1]}…", parse_math=False)
