"""A dataset's table as a drawing: a row a test domain, a mark a method, lines as long as the errors."""

from collections.abc import Mapping
from dataclasses import dataclass

from markupsafe import Markup

from domainwise.reports.cells import Table
from domainwise.reports.page import svg
from domainwise.reports.page.marks import Mark

_WIDTH, _RIGHT, _TOP, _BOTTOM = 400, 390, 20, 44
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
    bottom = _TOP + height * len(domains)
    left = 16 + min(130, max(6.4 * len(domain) for domain in domains))
    ends = [dot.mean + sign * (dot.error or 0) for dot in dots for sign in (-1, 1)]
    x = svg.Scale(*svg.spread(ends, at_least=8, limits=(0, 100)), left + 8, _RIGHT - 8)
    parts = [*_axis(x, bottom), *([] if chance is None else _chance(x, bottom, chance))]
    for place, domain in enumerate(domains):
        top = _TOP + height * place
        parts.append(svg.line(left, top + height, _RIGHT, top + height, "rule"))
        parts.append(svg.words(left - 8, top + height / 2 + 4, _short(domain), "end", "name"))
        for dot in (dot for dot in dots if dot.domain == domain):
            offset = (algorithms.index(dot.algorithm) - (len(algorithms) - 1) / 2) * _BETWEEN
            parts += _drawn(dot, marks[dot.algorithm], x, top + height / 2 + offset)
    label = f"Accuracy on each test domain of {table.title}, chosen by {table.selection}; the table has the numbers."
    return svg.drawing(_WIDTH, bottom + _BOTTOM, label, *parts)


def _drawn(dot: Dot, mark: Mark, x: svg.Scale, y: float) -> list[Markup]:
    error = dot.error or 0.0
    bar = [svg.line(x(dot.mean - error), y, x(dot.mean + error), y, f"error {mark.class_}")] if error else []
    return [*bar, mark.at(x(dot.mean), y, str(dot))]


def _axis(x: svg.Scale, bottom: float) -> list[Markup]:
    numbers = svg.ticks(x.low, x.high, 6)
    return [
        *(svg.line(x(value), _TOP, x(value), bottom, "grid") for value in numbers),
        *(svg.words(x(value), bottom + 16, f"{value:g}", "middle") for value in numbers),
        svg.words((x.start + x.end) / 2, bottom + 34, "accuracy, %", "middle", "axis-title"),
    ]


def _chance(x: svg.Scale, bottom: float, chance: float) -> list[Markup]:
    if not x.low < chance < x.high:
        return [svg.words(x.end, bottom + 34, f"chance: {chance:.3g}", "end")]
    return [
        svg.line(x(chance), _TOP, x(chance), bottom, "chance"),
        svg.words(x(chance), _TOP - 6, f"chance, {chance:.3g}", "middle"),
    ]


def _short(name: str) -> str:
    return name if len(name) <= 22 else f"{name[:21]}…"
