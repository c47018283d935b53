"""How the chosen runs came about: loss, holdout and test accuracy over the steps, a line a method."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl
from markupsafe import Markup

from domainwise.reports.cells import Cell, Grid, Table, summarized
from domainwise.reports.html import svg
from domainwise.reports.html.page_data import PageRun, Variant, in_order
from domainwise.reports.html.svg import Mark
from domainwise.selection import SELECTIONS

# Beyond so many runs their thin lines would only be fog.
MOST_RUNS = 40
_CURVE_WIDTH, _CURVE_HEIGHT, _CURVE_LEFT, _CURVE_RIGHT, _CURVE_TOP, _CURVE_BOTTOM = 360, 250, 44, 350, 34, 208
_PANELS = {
    "loss": "training loss",
    "training": "accuracy on training domains' holdouts, %",
    "test": "accuracy on test domains, %",
}

Line = list[tuple[int, float]]


@dataclass(frozen=True)
class Curves:
    """The lines of one dataset: by what is measured and method, the mean of its runs and each run."""

    dataset: str
    means: Mapping[str, Mapping[str, Line]]
    runs: Mapping[str, Mapping[str, Sequence[Line]]] = field(default_factory=dict)


def curves_of(frame: pl.DataFrame, chosen: pl.DataFrame, facts: Mapping[str, PageRun], dataset: str) -> Curves:
    """The curves of the runs that a selection chose, over the steps at which all runs of a method have a record."""
    own = chosen.filter(pl.col("dataset") == dataset).select("algorithm", "run").unique(maintain_order=True)
    per_step = (
        frame.join(own.select("run").unique(), on="run", how="semi")
        .group_by("run", "step")
        .agg(pl.col("training").first(), test=pl.col("main").mean())
        .sort("run", "step")
    )
    lines: dict[str, dict[str, Line]] = {"loss": {}, "training": {}, "test": {}}
    for run, step, training, test in per_step.iter_rows():
        for kind, value in (("training", training), ("test", test)):
            if value is not None:
                lines[kind].setdefault(run, []).append((step, 100 * value))
    for run in own["run"].unique():
        if run in facts and facts[run].losses:
            lines["loss"][run] = sorted(facts[run].losses.items())
    by_method: dict[str, dict[str, list[Line]]] = {kind: {} for kind in lines}
    for algorithm, run in own.iter_rows():
        for kind, there in lines.items():
            if run in there:
                by_method[kind].setdefault(algorithm, []).append(there[run])
    means = {kind: {name: _mean(each) for name, each in found.items()} for kind, found in by_method.items()}
    return Curves(dataset, means, by_method if own.height <= MOST_RUNS else {})


def draw_curves(curves: Curves, marks: Mapping[str, Mark]) -> list[Markup]:
    """A drawing for each thing that was measured."""
    return [
        _draw_curve(
            f"{title[:1].upper()}{title[1:]} over the steps of training on {curves.dataset}", title, curves, kind, marks
        )
        for kind, title in _PANELS.items()
        if any(len(line) > 1 for line in curves.means[kind].values())
    ]


def _mean(lines: Sequence[Line]) -> Line:
    values = [dict(line) for line in lines]
    common = sorted(set.intersection(*(set(each) for each in values)))
    return [(step, statistics.fmean(each[step] for each in values)) for step in common]


def _draw_curve(label: str, title: str, curves: Curves, kind: str, marks: Mapping[str, Mark]) -> Markup:
    means = {name: curves.means[kind][name] for name in marks if curves.means[kind].get(name)}
    thin = {name: [line for line in lines if len(line) > 1] for name, lines in curves.runs.get(kind, {}).items()}
    points = [point for line in means.values() for point in line]
    points += [point for lines in thin.values() for line in lines for point in line]
    is_loss = kind == "loss"
    limits = None if is_loss else (0.0, 100.0)
    low, high = svg.spread((value for _, value in points), at_least=0.01 if is_loss else 4, limits=limits)
    y = svg.Scale(low, high, _CURVE_BOTTOM, _CURVE_TOP)
    x = svg.Scale(min(step for step, _ in points), max(step for step, _ in points), _CURVE_LEFT + 4, _CURVE_RIGHT - 8)
    parts = [*svg.left_axis(y, _CURVE_LEFT, _CURVE_RIGHT, title, lambda value: f"{value:.4g}"), *_steps(x)]
    parts += [
        svg.polyline(_placed(x, y, line), f"thin {marks[name].class_}") for name in marks for line in thin.get(name, [])
    ]
    for name, line in means.items():
        if len(line) > 1:
            parts.append(svg.polyline(_placed(x, y, line), f"line {marks[name].class_}"))
        step, value = line[-1]
        parts.append(marks[name].at(x(step), y(value), f"{name}: {value:.3g} after step {step}"))
    return svg.drawing(_CURVE_WIDTH, _CURVE_HEIGHT, f"{label}. {_in_words(means)}", *parts)


def _placed(x: Callable[[float], float], y: Callable[[float], float], line: Line) -> list[tuple[float, float]]:
    return [(x(step), y(value)) for step, value in line]


def _steps(x: svg.Scale) -> list[Markup]:
    return [
        *(svg.words(x(step), _CURVE_BOTTOM + 18, f"{step:g}", "middle") for step in svg.ticks(x.low, x.high, 6)),
        svg.words((x.start + x.end) / 2, _CURVE_BOTTOM + 36, "step", "middle", "axis-title"),
    ]


def _in_words(means: Mapping[str, Line]) -> str:
    ends = [f"{name} {line[0][1]:.3g} to {line[-1][1]:.3g}" for name, line in means.items()]
    return f"From first to last: {', '.join(ends)}."


_DOT_WIDTH, _DOT_RIGHT, _DOT_TOP, _DOT_BOTTOM = 400, 390, 20, 44
_BETWEEN = 10


@dataclass(frozen=True)
class Dot:
    """One cell of a table; `error` is None where one trial says nothing of it."""

    algorithm: str
    domain: str
    mean: float
    error: float | None

    def __str__(self) -> str:
        error = "" if self.error is None else f" ± {self.error:.1f}"
        return f"{self.algorithm} on {self.domain}: {self.mean:.1f}{error}"


def dots_of(table: Table) -> list[Dot]:
    """The cells of test domains that have a number, as the table has them."""
    return [
        Dot(row.algorithm, column.domain, cell.mean, cell.error)
        for row in table.rows
        for column, cell in zip(table.columns, row.cells, strict=True)
        if column.kind == "domain" and cell.mean is not None
    ]


def draw_dots(table: Table, marks: Mapping[str, Mark], chance: float | None = None) -> Markup | None:
    """The drawing, or None where no cell has a number.

    Args:
        chance: accuracy of guessing, in percent; a dashed line, or words under the axis where it is beyond.
    """
    dots = dots_of(table)
    if not dots:
        return None
    domains = [column.domain for column in table.columns if column.kind == "domain"]
    algorithms = [row.algorithm for row in table.rows]
    height = max(34, _BETWEEN * len(algorithms) + 16)
    bottom = _DOT_TOP + height * len(domains)
    left = 16 + min(130, max(6.4 * len(domain) for domain in domains))
    ends = [dot.mean + sign * (dot.error or 0) for dot in dots for sign in (-1, 1)]
    x = svg.Scale(*svg.spread(ends, at_least=8, limits=(0, 100)), left + 8, _DOT_RIGHT - 8)
    parts = [*_draw_dots_axis(x, bottom), *([] if chance is None else _chance(x, bottom, chance))]
    for place, domain in enumerate(domains):
        top = _DOT_TOP + height * place
        parts.append(svg.line(left, top + height, _DOT_RIGHT, top + height, "rule"))
        parts.append(svg.words(left - 8, top + height / 2 + 4, _short(domain), "end", "name"))
        for dot in (dot for dot in dots if dot.domain == domain):
            offset = (algorithms.index(dot.algorithm) - (len(algorithms) - 1) / 2) * _BETWEEN
            parts += _draw_dot(dot, marks[dot.algorithm], x, top + height / 2 + offset)
    label = f"Accuracy on each test domain of {table.title}, chosen by {table.selection}; the table has the numbers."
    return svg.drawing(_DOT_WIDTH, bottom + _DOT_BOTTOM, label, *parts)


def _draw_dot(dot: Dot, mark: Mark, x: svg.Scale, y: float) -> list[Markup]:
    error = dot.error or 0.0
    bar = [svg.line(x(dot.mean - error), y, x(dot.mean + error), y, f"error {mark.class_}")] if error else []
    return [*bar, mark.at(x(dot.mean), y, str(dot))]


def _draw_dots_axis(x: svg.Scale, bottom: float) -> list[Markup]:
    numbers = svg.ticks(x.low, x.high, 6)
    return [
        *(svg.line(x(value), _DOT_TOP, x(value), bottom, "grid") for value in numbers),
        *(svg.words(x(value), bottom + 16, f"{value:g}", "middle") for value in numbers),
        svg.words((x.start + x.end) / 2, bottom + 34, "accuracy, %", "middle", "axis-title"),
    ]


def _chance(x: svg.Scale, bottom: float, chance: float) -> list[Markup]:
    if not x.low < chance < x.high:
        return [svg.words(x.end, bottom + 34, f"chance: {chance:.3g}", "end")]
    return [
        svg.line(x(chance), _DOT_TOP, x(chance), bottom, "chance"),
        svg.words(x(chance), _DOT_TOP - 6, f"chance, {chance:.3g}", "middle"),
    ]


def _short(name: str) -> str:
    return name if len(name) <= 22 else f"{name[:21]}…"


# A search draws its own radius for every run; a line through so many would follow noise.
MOST_JOINED = 12
_RADIUS_WIDTH, _RADIUS_HEIGHT, _RADIUS_LEFT, _RADIUS_RIGHT, _RADIUS_TOP, _RADIUS_BOTTOM = 400, 270, 44, 390, 34, 226
_REFERENCE = "erm"


@dataclass(frozen=True)
class Radius:
    """Mean over test domains, then over trials, of what was chosen among runs of one method and radius."""

    epsilon: float
    cell: Cell


@dataclass(frozen=True)
class Radii:
    """A dataset's methods that were trained with several radii, and the reference that has none."""

    dataset: str
    methods: Mapping[str, list[Radius]]
    reference: Cell | None


def radii_of(
    frame: pl.DataFrame,
    selection: str,
    facts: Mapping[str, PageRun],
    grid: Grid,
    variants: Mapping[str, Variant],
) -> Radii | None:
    """Only radii with a number on every test domain count: others could not be compared. None where none differ."""
    own = frame.filter(pl.col("dataset") == grid.dataset)
    epsilons = {run: facts[run].hparams.get("epsilon") for run in own["run"].unique() if run in facts}
    keys: dict[str, tuple[str, float | None]] = {}
    names = {}
    for run, algorithm in own.select("run", "algorithm").unique().iter_rows():
        method = variants[algorithm].without("epsilon") if algorithm in variants else algorithm
        epsilon = epsilons.get(run)
        if method == _REFERENCE or isinstance(epsilon, int | float):
            key = (method, None if method == _REFERENCE else float(epsilon or 0))
            names[run] = repr(key)
            keys[names[run]] = key
    # Every radius is chosen for as if it were a method of its own.
    apart = own.filter(pl.col("run").is_in(list(names))).with_columns(algorithm=pl.col("run").replace_strict(names))
    chosen = SELECTIONS[selection](apart)
    methods: dict[str, list[Radius]] = {}
    reference = None
    for name, rows in chosen.group_by("algorithm"):
        (method, epsilon), cell = keys[str(name[0])], _summary(rows, grid)
        if cell is not None and epsilon is None:
            reference = cell
        elif cell is not None and epsilon is not None:
            methods.setdefault(method, []).append(Radius(epsilon, cell))
    several = {
        method: sorted(methods[method], key=lambda each: each.epsilon)
        for method in in_order(methods, {})
        if len(methods[method]) > 1
    }
    return Radii(grid.dataset, several, reference) if several else None


def draw_radii(radii: Radii, marks: Mapping[str, Mark]) -> Markup:
    points = [(each.epsilon, each.cell) for line in radii.methods.values() for each in line]
    cells = [cell for _, cell in points] + ([radii.reference] if radii.reference else [])
    ends = [(cell.mean or 0.0) + sign * (cell.error or 0.0) for cell in cells for sign in (-1, 1)]
    y = svg.Scale(*svg.spread(ends, at_least=6, limits=(0, 100)), _RADIUS_BOTTOM, _RADIUS_TOP)
    low, high = min(epsilon for epsilon, _ in points), max(epsilon for epsilon, _ in points)
    x = svg.Scale(low, high, _RADIUS_LEFT + 14, _RADIUS_RIGHT - 14, is_log=low > 0 and high / low > 5)
    parts = [
        *svg.left_axis(y, _RADIUS_LEFT, _RADIUS_RIGHT, "accuracy on test domains, %", lambda value: f"{value:g}"),
        *_draw_radius_axis(x, radii),
    ]
    if radii.reference and _REFERENCE in marks:
        parts += _flat(radii.reference, y, marks[_REFERENCE])
    for method, line in radii.methods.items():
        parts += _line(method, line, x, y, marks[method])
    label = f"Accuracy on the test domains of {radii.dataset} against the radius of training, epsilon; a table follows."
    return svg.drawing(_RADIUS_WIDTH, _RADIUS_HEIGHT, label, *parts)


def _line(method: str, line: list[Radius], x: svg.Scale, y: svg.Scale, mark: Mark) -> list[Markup]:
    placed = [(x(each.epsilon), each.cell.mean or 0.0, each.cell.error or 0.0) for each in line]
    parts = []
    if len(line) <= MOST_JOINED:
        if any(error for _, _, error in placed):
            parts.append(
                svg.band([(at, y(mean - error), y(mean + error)) for at, mean, error in placed], f"band {mark.class_}")
            )
        parts.append(svg.polyline([(at, y(mean)) for at, mean, _ in placed], f"line {mark.class_}"))
    titles = [f"{method} at {each.epsilon:g}: {shown(each.cell)}" for each in line]
    return [*parts, *(mark.at(at, y(mean), title) for (at, mean, _), title in zip(placed, titles, strict=True))]


def shown(cell: Cell) -> str:
    return f"{cell.mean:.1f}" + ("" if cell.error is None else f" ± {cell.error:.1f}")


def _flat(cell: Cell, y: svg.Scale, mark: Mark) -> list[Markup]:
    mean, error = cell.mean or 0.0, cell.error or 0.0
    ends = (_RADIUS_LEFT + 4, _RADIUS_RIGHT - 4)
    around = [svg.band([(at, y(mean - error), y(mean + error)) for at in ends], f"band {mark.class_}")] if error else []
    line = svg.line(ends[0], y(mean), ends[1], y(mean), f"line dashed {mark.class_}")
    return [*around, line, mark.at(ends[1], y(mean), f"erm: {shown(cell)}")]


def _draw_radius_axis(x: svg.Scale, radii: Radii) -> list[Markup]:
    there = sorted({each.epsilon for line in radii.methods.values() for each in line})
    if len(there) > 6:
        there = svg.log_ticks(x.low, x.high) if x.is_log else svg.ticks(x.low, x.high)
    title = "radius in training, epsilon" + (" (log scale)" if x.is_log else "")
    return [
        *(svg.words(x(value), _RADIUS_BOTTOM + 18, f"{value:g}", "middle") for value in there),
        svg.words((x.start + x.end) / 2, _RADIUS_BOTTOM + 36, title, "middle", "axis-title"),
    ]


def _summary(chosen: pl.DataFrame, grid: Grid) -> Cell | None:
    by_trial = chosen.group_by("trial").agg(pl.col("accuracy").mean(), domains=pl.col("test_domain").n_unique())
    whole = by_trial.filter(pl.col("domains") == len(grid.domains)).sort("trial")
    return summarized(whole["accuracy"].to_list()) if whole.height else None
