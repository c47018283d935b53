"""The plots of a page: accuracy per test domain, training curves, and accuracy by perturbation radius."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl
from markupsafe import Markup

from domainwise.reports.cells import Cell, Grid, Table, estimate_cell, format_cell
from domainwise.reports.html import svg
from domainwise.reports.html.page_data import PageRun
from domainwise.reports.html.svg import Marker
from domainwise.reports.methods import Variant, sort_methods
from domainwise.reports.tables import average_over_domains
from domainwise.selection import select_models
from domainwise.selection.metrics import ACCURACY, METRICS, Metric

# With more runs than this, their thin lines would hide one another.
MAX_THIN_LINES = 40
# A search draws a radius per run; a line through more points than this would follow noise.
MAX_JOINED = 12
REFERENCE = "erm"

_CURVE_KINDS = {
    "loss": "training loss",
    "training": "accuracy on training domains' holdouts, %",
    "test": "accuracy on test domains, %",
}


@dataclass(frozen=True)
class _Frame:
    """The size of a plot, and the edges of the area inside its axes."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float


_CURVE_FRAME = _Frame(360, 250, 44, 350, 34, 208)
_RADIUS_FRAME = _Frame(400, 270, 44, 390, 34, 226)
# The height depends on the number of domains and methods, the left edge on the domains' names.
_DOMAIN_WIDTH, _DOMAIN_RIGHT, _DOMAIN_TOP, _DOMAIN_MARGIN, _METHOD_SPACING = 400, 390, 20, 44, 10

Line = list[tuple[int, float]]


@dataclass(frozen=True)
class Curves:
    """The training curves of one dataset: by kind and method, the mean of its runs, and each run."""

    dataset: str
    means: Mapping[str, Mapping[str, Line]]
    runs: Mapping[str, Mapping[str, Sequence[Line]]] = field(default_factory=dict)


def collect_curves(
    frame: pl.DataFrame, selected: pl.DataFrame, page_runs: Mapping[str, PageRun], dataset: str
) -> Curves:
    """Return the curves of the selected runs, over the steps at which all runs of a method have a record."""
    runs = selected.filter(pl.col("dataset") == dataset).select("algorithm", "run").unique(maintain_order=True)
    per_step = (
        frame.join(runs.select("run").unique(), on="run", how="semi")
        .group_by("run", "step")
        .agg(pl.col("training").first(), test=pl.col("main").mean())
        .sort("run", "step")
    )
    lines: dict[str, dict[str, Line]] = {kind: {} for kind in _CURVE_KINDS}
    for run, step, training, test in per_step.iter_rows():
        for kind, value in (("training", training), ("test", test)):
            if value is not None:
                lines[kind].setdefault(run, []).append((step, 100 * value))
    for run in runs["run"].unique():
        if run in page_runs and page_runs[run].losses:
            lines["loss"][run] = sorted(page_runs[run].losses.items())
    by_method: dict[str, dict[str, list[Line]]] = {kind: {} for kind in lines}
    for algorithm, run in runs.iter_rows():
        for kind, by_run in lines.items():
            if run in by_run:
                by_method[kind].setdefault(algorithm, []).append(by_run[run])
    means = {kind: {name: _mean_line(each) for name, each in methods.items()} for kind, methods in by_method.items()}
    return Curves(dataset, means, by_method if runs.height <= MAX_THIN_LINES else {})


def plot_curves(curves: Curves, markers: Mapping[str, Marker], metric: Metric = ACCURACY) -> list[Markup]:
    """Return one plot per kind of curve; none if there is only one record."""
    return [
        _plot_curve(curves, kind, markers, metric)
        for kind in _CURVE_KINDS
        if any(len(line) > 1 for line in curves.means[kind].values())
    ]


def _mean_line(lines: Sequence[Line]) -> Line:
    values = [dict(line) for line in lines]
    common = sorted(set.intersection(*map(set, values)))
    return [(step, statistics.fmean(each[step] for each in values)) for step in common]


def _plot_curve(curves: Curves, kind: str, markers: Mapping[str, Marker], metric: Metric) -> Markup:
    area, title, is_loss = _CURVE_FRAME, metric.describe(_CURVE_KINDS[kind]), kind == "loss"
    means = {name: curves.means[kind][name] for name in markers if curves.means[kind].get(name)}
    thin = {name: [line for line in lines if len(line) > 1] for name, lines in curves.runs.get(kind, {}).items()}
    points = [point for line in means.values() for point in line]
    points += [point for lines in thin.values() for line in lines for point in line]
    low, high = svg.axis_limits(
        (value for _, value in points), min_width=0.01 if is_loss else 4, bounds=None if is_loss else (0.0, 100.0)
    )
    y = svg.Scale(low, high, area.bottom, area.top)
    x = svg.Scale(min(step for step, _ in points), max(step for step, _ in points), area.left + 4, area.right - 8)

    def draw_line(line: Line, css_class: str) -> Markup:
        return svg.polyline([(x(step), y(value)) for step, value in line], css_class)

    parts = [
        *svg.left_axis(y, area.left, area.right, title),
        *svg.bottom_axis(x, area.bottom, "step", svg.choose_ticks(x.low, x.high, 6)),
    ]
    parts += [draw_line(line, f"thin {markers[name].css_class}") for name in markers for line in thin.get(name, [])]
    for name, line in means.items():
        if len(line) > 1:
            parts.append(draw_line(line, f"line {markers[name].css_class}"))
        step, value = line[-1]
        parts.append(markers[name].draw(x(step), y(value), f"{name}: {value:.3g} at step {step}"))
    ends = ", ".join(f"{name} {line[0][1]:.3g} to {line[-1][1]:.3g}" for name, line in means.items())
    label = f"{title[:1].upper()}{title[1:]} by training step on {curves.dataset}. First to last: {ends}."
    return svg.plot(area.width, area.height, label, *parts)


def plot_domains(table: Table, markers: Mapping[str, Marker], chance: float | None = None) -> Markup | None:
    """Return a plot of the accuracy on each test domain with its error; None if no cell has a number.

    Args:
        chance: accuracy of guessing, in percent: a dashed line, or a note if it is outside the axis.
    """
    cells, metric = collect_domain_cells(table), METRICS[table.metric]
    if not cells:
        return None
    domains = [column.domain for column in table.columns if column.kind == "domain"]
    algorithms = [row.algorithm for row in table.rows]
    height = max(34, _METHOD_SPACING * len(algorithms) + 16)
    bottom = _DOMAIN_TOP + height * len(domains)
    left = 16 + min(130, max(6.4 * len(domain) for domain in domains))
    limits = svg.axis_limits(_error_ends(cell for _, _, cell in cells), min_width=8, bounds=(0, 100))
    x = svg.Scale(*limits, left + 8, _DOMAIN_RIGHT - 8)
    ticks = svg.choose_ticks(x.low, x.high, 6)
    parts = [
        *(svg.line(x(value), _DOMAIN_TOP, x(value), bottom, "grid") for value in ticks),
        *svg.bottom_axis(x, bottom, f"{metric.title}, %", ticks),
        *([] if chance is None else _draw_chance(x, bottom, chance)),
    ]
    for index, domain in enumerate(domains):
        top = _DOMAIN_TOP + height * index
        name = domain if len(domain) <= 22 else f"{domain[:21]}…"
        parts.append(svg.line(left, top + height, _DOMAIN_RIGHT, top + height, "rule"))
        parts.append(svg.text(left - 8, top + height / 2 + 4, name, "end", "name"))
    for algorithm, domain, cell in cells:
        offset = (algorithms.index(algorithm) - (len(algorithms) - 1) / 2) * _METHOD_SPACING
        y = _DOMAIN_TOP + height * (domains.index(domain) + 0.5) + offset
        mean, error, marker = cell.mean or 0.0, cell.error or 0.0, markers[algorithm]
        if error:
            parts.append(svg.line(x(mean - error), y, x(mean + error), y, f"error {marker.css_class}"))
        parts.append(marker.draw(x(mean), y, f"{algorithm} on {domain}: {format_cell(cell)}"))
    name = metric.describe("Accuracy")
    label = f"{name} per test domain of {table.title}, selected by {table.selection}; the table has the numbers."
    return svg.plot(_DOMAIN_WIDTH, bottom + _DOMAIN_MARGIN, label, *parts)


def collect_domain_cells(table: Table) -> list[tuple[str, str, Cell]]:
    """Return method, test domain and cell of all cells of test domains that have a number."""
    return [
        (row.algorithm, column.domain, cell)
        for row in table.rows
        for column, cell in zip(table.columns, row.cells, strict=True)
        if column.kind == "domain" and cell.mean is not None
    ]


def _error_ends(cells: Iterable[Cell]) -> list[float]:
    return [(cell.mean or 0.0) + sign * (cell.error or 0.0) for cell in cells for sign in (-1, 1)]


def _draw_chance(x: svg.Scale, bottom: float, chance: float) -> list[Markup]:
    if not x.low < chance < x.high:
        return [svg.text(x.end, bottom + 34, f"chance: {chance:.3g}", "end")]
    return [
        svg.line(x(chance), _DOMAIN_TOP, x(chance), bottom, "chance"),
        svg.text(x(chance), _DOMAIN_TOP - 6, f"chance, {chance:.3g}", "middle"),
    ]


@dataclass(frozen=True)
class RadiusPoint:
    """Mean over test domains, then over trials, of the models selected among the runs of one method and radius."""

    epsilon: float
    cell: Cell


@dataclass(frozen=True)
class RadiusCurves:
    """The methods of a dataset that were trained with several radii, and ERM, which has none."""

    dataset: str
    methods: Mapping[str, list[RadiusPoint]]
    reference: Cell | None


def collect_radius_curves(
    frame: pl.DataFrame,
    selection: str,
    page_runs: Mapping[str, PageRun],
    grid: Grid,
    variants: Mapping[str, Variant],
    metric: Metric = ACCURACY,
) -> RadiusCurves | None:
    """Return the accuracy by radius, or None if no method has several. Radii without all test domains are left out."""
    frame = frame.filter(pl.col("dataset") == grid.dataset)
    keys: dict[str, tuple[str, float | None]] = {}
    names: dict[str, str] = {}
    for run, algorithm in frame.select("run", "algorithm").unique().iter_rows():
        method = variants[algorithm].name_without("epsilon") if algorithm in variants else algorithm
        epsilon = page_runs[run].hparams.get("epsilon") if run in page_runs else None
        if method == REFERENCE or isinstance(epsilon, int | float):
            key = (method, None if method == REFERENCE else float(epsilon or 0))
            names[run] = repr(key)
            keys[names[run]] = key
    # Models are selected for every radius as if it were a method of its own.
    by_radius = frame.filter(pl.col("run").is_in(list(names))).with_columns(
        algorithm=pl.col("run").replace_strict(names)
    )
    methods: dict[str, list[RadiusPoint]] = {}
    reference = None
    for (name,), models in select_models(by_radius, selection, metric).group_by("algorithm"):
        (method, epsilon), by_trial = keys[str(name)], average_over_domains(models)
        complete = by_trial.filter(pl.col("domains") == len(grid.domains))
        if complete.is_empty():
            continue
        cell = estimate_cell(complete["accuracy"].to_list())
        if epsilon is None:
            reference = cell
        else:
            methods.setdefault(method, []).append(RadiusPoint(epsilon, cell))
    several = {
        method: sorted(methods[method], key=lambda point: point.epsilon)
        for method in sort_methods(methods)
        if len(methods[method]) > 1
    }
    return RadiusCurves(grid.dataset, several, reference) if several else None


def plot_radius_curves(curves: RadiusCurves, markers: Mapping[str, Marker], metric: Metric = ACCURACY) -> Markup:
    """Return a plot of accuracy by the radius in training; ERM is a dashed line."""
    area = _RADIUS_FRAME
    points = [point for line in curves.methods.values() for point in line]
    cells = [point.cell for point in points] + ([curves.reference] if curves.reference else [])
    y = svg.Scale(*svg.axis_limits(_error_ends(cells), min_width=6, bounds=(0, 100)), area.bottom, area.top)
    radii = sorted({point.epsilon for point in points})
    is_log = radii[0] > 0 and radii[-1] / radii[0] > 5
    x = svg.Scale(radii[0], radii[-1], area.left + 14, area.right - 14, is_log=is_log)
    ticks = radii
    if len(radii) > 6:
        ticks = svg.choose_log_ticks(x.low, x.high) if is_log else svg.choose_ticks(x.low, x.high)
    title = "radius in training, epsilon" + (" (log scale)" if is_log else "")
    parts = [
        *svg.left_axis(y, area.left, area.right, f"{metric.title} on test domains, %"),
        *svg.bottom_axis(x, area.bottom, title, ticks),
    ]
    if curves.reference and REFERENCE in markers:
        parts += _draw_reference(curves.reference, y, markers[REFERENCE])
    for method, line in curves.methods.items():
        parts += _draw_radius_line(method, line, x, y, markers[method])
    name = metric.describe("Accuracy")
    label = f"{name} on the test domains of {curves.dataset} by the radius in training, epsilon; a table follows."
    return svg.plot(area.width, area.height, label, *parts)


def _draw_radius_line(
    method: str, line: Sequence[RadiusPoint], x: svg.Scale, y: svg.Scale, marker: Marker
) -> list[Markup]:
    parts = []
    if len(line) <= MAX_JOINED:
        parts += _draw_band([(x(point.epsilon), point.cell) for point in line], y, marker)
        means = [(x(point.epsilon), y(point.cell.mean or 0.0)) for point in line]
        parts.append(svg.polyline(means, f"line {marker.css_class}"))
    for point in line:
        tooltip = f"{method} at {point.epsilon:g}: {format_cell(point.cell)}"
        parts.append(marker.draw(x(point.epsilon), y(point.cell.mean or 0.0), tooltip))
    return parts


def _draw_reference(cell: Cell, y: svg.Scale, marker: Marker) -> list[Markup]:
    left, right, height = _RADIUS_FRAME.left + 4, _RADIUS_FRAME.right - 4, y(cell.mean or 0.0)
    return [
        *_draw_band([(left, cell), (right, cell)], y, marker),
        svg.line(left, height, right, height, f"line dashed {marker.css_class}"),
        marker.draw(right, height, f"{REFERENCE}: {format_cell(cell)}"),
    ]


def _draw_band(cells: Sequence[tuple[float, Cell]], y: svg.Scale, marker: Marker) -> list[Markup]:
    """Return the band of ± one standard error around cells at given positions; nothing without errors."""
    if not any(cell.error for _, cell in cells):
        return []
    ends = [(x, *(y(end) for end in _error_ends([cell]))) for x, cell in cells]
    return [svg.band([(x, low, high) for x, low, high in ends], f"band {marker.css_class}")]
