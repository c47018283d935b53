"""Accuracy on unseen domains against the radius that a method trained with, where its runs differ in it."""

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl
from markupsafe import Markup

from domainwise.reports.cells import Cell, summarized
from domainwise.reports.grid import Grid
from domainwise.reports.page import svg
from domainwise.reports.page.facts import RunFacts
from domainwise.reports.page.marks import Mark
from domainwise.reports.page.variants import Variant, in_order
from domainwise.selection import SELECTIONS

# A search draws its own radius for every run; a line through so many would follow noise.
MOST_JOINED = 12
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 400, 270, 44, 390, 34, 226
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
    facts: Mapping[str, RunFacts],
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
    y = svg.Scale(*svg.spread(ends, at_least=6, limits=(0, 100)), _BOTTOM, _TOP)
    low, high = min(epsilon for epsilon, _ in points), max(epsilon for epsilon, _ in points)
    x = svg.Scale(low, high, _LEFT + 14, _RIGHT - 14, is_log=low > 0 and high / low > 5)
    parts = [
        *svg.left_axis(y, _LEFT, _RIGHT, "accuracy on test domains, %", lambda value: f"{value:g}"),
        *_axis(x, radii),
    ]
    if radii.reference and _REFERENCE in marks:
        parts += _flat(radii.reference, y, marks[_REFERENCE])
    for method, line in radii.methods.items():
        parts += _line(method, line, x, y, marks[method])
    label = f"Accuracy on the test domains of {radii.dataset} against the radius of training, epsilon; a table follows."
    return svg.drawing(_WIDTH, _HEIGHT, label, *parts)


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
    ends = (_LEFT + 4, _RIGHT - 4)
    around = [svg.band([(at, y(mean - error), y(mean + error)) for at in ends], f"band {mark.class_}")] if error else []
    line = svg.line(ends[0], y(mean), ends[1], y(mean), f"line dashed {mark.class_}")
    return [*around, line, mark.at(ends[1], y(mean), f"erm: {shown(cell)}")]


def _axis(x: svg.Scale, radii: Radii) -> list[Markup]:
    there = sorted({each.epsilon for line in radii.methods.values() for each in line})
    if len(there) > 6:
        there = svg.log_ticks(x.low, x.high) if x.is_log else svg.ticks(x.low, x.high)
    title = "radius in training, epsilon" + (" (log scale)" if x.is_log else "")
    return [
        *(svg.words(x(value), _BOTTOM + 18, f"{value:g}", "middle") for value in there),
        svg.words((x.start + x.end) / 2, _BOTTOM + 36, title, "middle", "axis-title"),
    ]


def _summary(chosen: pl.DataFrame, grid: Grid) -> Cell | None:
    by_trial = chosen.group_by("trial").agg(pl.col("accuracy").mean(), domains=pl.col("test_domain").n_unique())
    whole = by_trial.filter(pl.col("domains") == len(grid.domains)).sort("trial")
    return summarized(whole["accuracy"].to_list()) if whole.height else None
