"""Accuracy against a hyperparameter that a table varies, ours beside the paper's: its Figure 5, and others like it."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from domainwise.reproduction.comparison import Compared, ordered
from domainwise.reproduction.recipe import Recipe, Row

# Values further apart than this, the largest over the smallest, need a logarithmic axis.
_WIDE = 20


def varied(rows: Sequence[Row]) -> Mapping[str, tuple[str, float]]:
    """By the name of a row the hyperparameter that sets it apart from the method's other rows, and its value."""
    found = {}
    for row in rows:
        own = [each for each in rows if each.algorithm == row.algorithm]
        for name, value in row.hparams.items():
            if len({each.hparams[name] for each in own if name in each.hparams}) > 1:
                found[row.name] = (name, float(value))
    return found


def draw_against_setting(recipe: Recipe, compared: Sequence[Compared]) -> Figure:
    """A line of panels a dataset, ours and the paper's: a curve a method whose rows differ, a level line for others."""
    datasets = ordered(compared)
    figure = Figure((8.4, 3.2 * len(datasets)), layout="constrained", dpi=120)
    for line, dataset in zip(figure.subplots(len(datasets), 2, squeeze=False), datasets, strict=True):
        here = {each.row: each for each in compared if each.dataset == dataset}
        ours = {row: (each.ours, each.error) for row, each in here.items()}
        paper = {row: (each.paper, each.paper_error) for row, each in here.items() if each.paper is not None}
        for panel, title, points in ((line[0], "ours", ours), (line[1], "the paper's", paper)):
            _panel(panel, recipe, points)
            panel.set_title(f"{dataset}, {title}", fontsize=10)
        _same_span(line)
        line[0].set_ylabel("accuracy, percent")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), fontsize=8)
    return figure


def _panel(panel: Axes, recipe: Recipe, points: Mapping[str, tuple[float, float | None]]) -> None:
    settings = varied(recipe.rows)
    for index, method in enumerate(dict.fromkeys(row.algorithm for row in recipe.rows)):
        colour = f"C{index}"
        own = [row.name for row in recipe.rows if row.algorithm == method and row.name in points]
        curve = sorted((settings[name][1], *points[name]) for name in own if name in settings)
        if curve:
            at, means, errors = zip(*curve, strict=True)
            panel.errorbar(
                at,
                means,
                [error or 0.0 for error in errors],
                color=colour,
                marker="o",
                markersize=4,
                label=method.upper(),
            )
        for name in own:
            if name not in settings:
                label = f"{method.upper()}, not varied" if curve else method.upper()
                panel.axhline(points[name][0], color=colour, linestyle="--", linewidth=1.2, label=label)
    values = [value for _, value in settings.values()]
    if max(values) > _WIDE * min(values):
        panel.set_xscale("log")
    panel.set_xticks(sorted(set(values)), [f"{value:g}" for value in sorted(set(values))])
    panel.minorticks_off()
    panel.set_xlabel(" or ".join(dict.fromkeys(name.replace("_", " ") for name, _ in settings.values())))
    panel.grid(alpha=0.25)


def _same_span(panels: Sequence[Axes]) -> None:
    """Levels may lie far apart, but a point is as high in both; nothing is below zero."""
    span = max(high - low for low, high in (panel.get_ylim() for panel in panels))
    for panel in panels:
        low = max(0.0, (sum(panel.get_ylim()) - span) / 2)
        panel.set_ylim(low, low + span)
