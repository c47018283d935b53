"""SVG elements, scales and markers for the plots of a page; all text is escaped.

By hand rather than by matplotlib, whose SVG fixes the colors (no dark mode), has no tooltips, is several times larger
and would make every page wait for its import.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from domainwise.reports.methods import Variant


def element(tag: str, *content: Markup | str, **attributes: str | float | None) -> Markup:
    """Return `<tag ...>content</tag>`.

    Args:
        attributes: a trailing underscore of a name is dropped, other underscores become hyphens; None is left out.
    """
    pairs = Markup("").join(
        Markup(' {}="{}"').format(name.rstrip("_").replace("_", "-"), _format_number(value))
        for name, value in attributes.items()
        if value is not None
    )
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(tag), pairs, Markup("").join(map(escape, content)))


def plot(width: float, height: float, label: str, *content: Markup) -> Markup:
    """Return a whole plot; `label` describes it to screen readers."""
    return element(
        "svg", *content, class_="plot", viewBox=f"0 0 {width:g} {height:g}", width=width, role="img", aria_label=label
    )


def text(x: float, y: float, content: str, anchor: str = "start", class_: str | None = None) -> Markup:
    return element("text", content, x=x, y=y, text_anchor=None if anchor == "start" else anchor, class_=class_)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return polyline([(x1, y1), (x2, y2)], class_)


def polyline(points: Sequence[tuple[float, float]], class_: str, *, is_closed: bool = False) -> Markup:
    path = "L".join(f"{_format_number(x)} {_format_number(y)}" for x, y in points)
    return element("path", d=f"M{path}{'Z' if is_closed else ''}", class_=class_)


def band(points: Sequence[tuple[float, float, float]], class_: str) -> Markup:
    """Return the area between the second and the third number of each point."""
    outline = [*((x, low) for x, low, _ in points), *((x, high) for x, _, high in reversed(points))]
    return polyline(outline, class_, is_closed=True)


@dataclass(frozen=True)
class Scale:
    """A linear or logarithmic map from values to coordinates."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        transform: Callable[[float], float] = math.log10 if self.is_log else float
        width = transform(self.high) - transform(self.low)
        fraction = (transform(value) - transform(self.low)) / width if width else 0.5
        return self.start + fraction * (self.end - self.start)


def axis_limits(
    values: Iterable[float], *, min_width: float, bounds: tuple[float, float] | None = None
) -> tuple[float, float]:
    """Return limits with a margin around all values, at least `min_width` apart, so that noise does not look large."""
    values = list(values)
    low, high = min(values), max(values)
    margin = max(0.06 * (high - low), (min_width - (high - low)) / 2)
    low, high = low - margin, high + margin
    return (max(low, bounds[0]), min(high, bounds[1])) if bounds else (low, high)


def choose_ticks(low: float, high: float, max_count: int = 5) -> list[float]:
    """Return round numbers between the limits, at least two if the limits differ."""
    if high <= low:
        return [low]
    rough = (high - low) / max_count
    power = 10.0 ** math.floor(math.log10(rough))
    for step in (power * factor for factor in (1, 2, 2.5, 5, 10, 20)):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first + 1 <= max_count:
            break
    return [index * step for index in range(first, last + 1)]


def choose_log_ticks(low: float, high: float, max_count: int = 7) -> list[float]:
    """Return the powers of ten between positive limits, with twice and five times each if there is room."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1,)):
        values = [factor * 10.0**power for power in powers for factor in factors]
        ticks = [value for value in values if low <= value <= high]
        if len(ticks) <= max_count:
            break
    return ticks


def left_axis(scale: Scale, left: float, right: float, title: str) -> list[Markup]:
    """Return grid lines with their numbers on the left, and the title above."""
    ticks = choose_ticks(scale.low, scale.high)
    return [
        text(8, scale.end - 14, title, class_="axis-title"),
        *(line(left, scale(value), right, scale(value), "grid") for value in ticks),
        *(text(left - 6, scale(value) + 3.5, f"{value:.4g}", "end") for value in ticks),
    ]


def bottom_axis(scale: Scale, y: float, title: str, ticks: Sequence[float]) -> list[Markup]:
    """Return the numbers below a plot that ends at `y`, and the title below them."""
    return [
        *(text(scale(value), y + 16, f"{value:g}", "middle") for value in ticks),
        text((scale.start + scale.end) / 2, y + 34, title, "middle", "axis-title"),
    ]


def _format_number(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")


# The number of colors in style.css, whose palette is distinguishable for color-blind readers.
NUM_COLORS = 7
# Centered at the origin, of similar area.
_SHAPES = (
    "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z",
    "M-3.5 -3.5H3.5V3.5H-3.5Z",
    "M0 -4.6L4.6 3.6H-4.6Z",
    "M0 -5L5 0L0 5L-5 0Z",
    "M0 4.6L4.6 -3.6H-4.6Z",
    "M-1.5 -4.5H1.5V-1.5H4.5V1.5H1.5V4.5H-1.5V1.5H-4.5V-1.5H-1.5Z",
    "M-4.5 -3L-3 -4.5L0 -1.5L3 -4.5L4.5 -3L1.5 0L4.5 3L3 4.5L0 1.5L-3 4.5L-4.5 3L-1.5 0Z",
    "M-5 -2.2H5V2.2H-5Z",
)


@dataclass(frozen=True)
class Marker:
    """The color and shape of a method."""

    color: int
    shape: int

    @property
    def css_class(self) -> str:
        return f"c{self.color}"

    def draw(self, x: float, y: float, tooltip: str = "") -> Markup:
        """Return the marker at a point."""
        title = [element("title", tooltip)] if tooltip else []
        position = f"translate({x:.1f} {y:.1f})"
        return element("path", *title, d=_SHAPES[self.shape], transform=position, class_=f"marker {self.css_class}")

    def draw_legend_key(self) -> Markup:
        """Return the marker as a drawing of its own, for a legend."""
        return element(
            "svg", self.draw(0, 0), viewBox="-6 -6 12 12", width=12, height=12, class_="key", aria_hidden="true"
        )


def assign_markers(names: Sequence[str], variants: Mapping[str, Variant]) -> dict[str, Marker]:
    """Return a marker per name. Variants of a method share its color and differ in shape; methods differ in both."""
    methods = list(dict.fromkeys(variants.get(name, Variant(name)).method for name in names))
    used = [0] * NUM_COLORS
    markers = {}
    for name in names:
        index = methods.index(variants.get(name, Variant(name)).method)
        color = index % NUM_COLORS
        # The numbers of colors and shapes have no common factor, so every combination occurs before one repeats.
        shape = used[color] if variants else index
        used[color] += 1
        markers[name] = Marker(color, shape % len(_SHAPES))
    return markers
