"""Accuracy against a hyperparameter that a table varies, ours next to the paper's: Figure 5 and others like it."""

from collections.abc import Mapping, Sequence

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from domainwise.explain.plots.accuracy import add_legend, plot_accuracy
from domainwise.reproduction.comparison import Compared, ordered
from domainwise.reproduction.recipe import Recipe, Row

# Values further apart than this, the largest over the smallest, need a logarithmic axis.
_WIDE = 20
_SCHEMA = {"label": pl.String, "value": pl.Float64, "mean": pl.Float64, "error": pl.Float64}


def find_varied_settings(rows: Sequence[Row]) -> Mapping[str, tuple[str, float]]:
    """Return, by row name, the hyperparameter in which it differs from the method's other rows, and its value."""
    settings = {}
    for row in rows:
        siblings = [each for each in rows if each.algorithm == row.algorithm]
        for name, value in row.hparams.items():
            if len({each.hparams[name] for each in siblings if name in each.hparams}) > 1:
                settings[row.name] = (name, float(value))
    return settings


def plot_accuracy_by_setting(recipe: Recipe, compared: Sequence[Compared]) -> Figure:
    """Plot one row of panels per dataset, ours and the paper's; methods that are not varied become level lines."""
    settings = find_varied_settings(recipe.rows)
    labels = _label_rows(recipe.rows, settings)
    datasets = ordered(compared)
    figure = Figure((8.4, 3.2 * len(datasets)), layout="constrained", dpi=120)
    for panels, dataset in zip(figure.subplots(len(datasets), 2, squeeze=False), datasets, strict=True):
        cells = [each for each in compared if each.dataset == dataset]
        ours = [(each.row, each.ours, each.error) for each in cells]
        paper = [(each.row, each.paper, each.paper_error) for each in cells if each.paper is not None]
        for panel, title, values in ((panels[0], "ours", ours), (panels[1], "the paper's", paper)):
            points = [(labels[row], settings.get(row, ("", None))[1], mean, error) for row, mean, error in values]
            _plot_panel(panel, pl.DataFrame(points, schema=_SCHEMA, orient="row"), recipe, labels, settings)
            panel.set_title(f"{dataset}, {title}", fontsize=10)
        _equalize_spans(panels)
        panels[0].set_ylabel("accuracy, percent")
    add_legend(figure, figure.axes[0])
    return figure


def _label_rows(rows: Sequence[Row], settings: Mapping[str, tuple[str, float]]) -> dict[str, str]:
    """Return the series of each row: its method, or for a single row outside a varied method, that it is not varied."""
    varied = {row.algorithm for row in rows if row.name in settings}
    return {
        row.name: row.algorithm.upper()
        + (", not varied" if row.algorithm in varied and row.name not in settings else "")
        for row in rows
    }


def _plot_panel(
    panel: Axes,
    points: pl.DataFrame,
    recipe: Recipe,
    labels: Mapping[str, str],
    settings: Mapping[str, tuple[str, float]],
) -> None:
    methods = list(dict.fromkeys(row.algorithm for row in recipe.rows))
    colors = {labels[row.name]: f"C{methods.index(row.algorithm)}" for row in recipe.rows}
    values = sorted({value for _, value in settings.values()})
    plot_accuracy(panel, points, "value", colors, is_log=values[-1] > _WIDE * values[0], ticks=values)
    panel.set_xlabel(" or ".join(dict.fromkeys(name.replace("_", " ") for name, _ in settings.values())))


def _equalize_spans(panels: Sequence[Axes]) -> None:
    """Give both panels the same span, so that differences compare by eye, and none below zero."""
    span = max(high - low for low, high in (panel.get_ylim() for panel in panels))
    for panel in panels:
        low = max(0.0, (sum(panel.get_ylim()) - span) / 2)
        panel.set_ylim(low, low + span)
