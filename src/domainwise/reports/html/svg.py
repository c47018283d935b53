"""Drawings as SVG text: what is written into it cannot break out, and colours come from the page's style."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from domainwise.reports.html.page_data import Variant


def element(tag: str, *content: Markup | str, **attributes: str | float | None) -> Markup:
    """`<tag ...>content</tag>`. A trailing underscore of a name is dropped, others are hyphens; None leaves one out."""
    given = Markup("").join(
        Markup(' {}="{}"').format(name.rstrip("_").replace("_", "-"), _shown(value))
        for name, value in attributes.items()
        if value is not None
    )
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(tag), given, Markup("").join(map(escape, content)))


def drawing(width: float, height: float, label: str, *content: Markup) -> Markup:
    """A whole drawing, with the words that stand for it where it cannot be seen."""
    return element(
        "svg", *content, class_="plot", viewBox=f"0 0 {width:g} {height:g}", width=width, role="img", aria_label=label
    )


def words(x: float, y: float, text: str, anchor: str = "start", class_: str | None = None) -> Markup:
    return element("text", text, x=x, y=y, text_anchor=None if anchor == "start" else anchor, class_=class_)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    return element("path", d=f"M{_shown(x1)} {_shown(y1)}L{_shown(x2)} {_shown(y2)}", class_=class_)


def polyline(points: Sequence[tuple[float, float]], class_: str) -> Markup:
    return element("path", d="M" + "L".join(f"{_shown(x)} {_shown(y)}" for x, y in points), class_=class_)


def band(points: Sequence[tuple[float, float, float]], class_: str) -> Markup:
    """The area between the second and third number of each point."""
    around = [*((x, low) for x, low, _ in points), *((x, high) for x, _, high in reversed(points))]
    return element("path", d="M" + "L".join(f"{_shown(x)} {_shown(y)}" for x, y in around) + "Z", class_=class_)


@dataclass(frozen=True)
class Scale:
    """From numbers to places on the paper."""

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def __call__(self, value: float) -> float:
        of: Callable[[float], float] = math.log10 if self.is_log else float
        width = of(self.high) - of(self.low)
        share = (of(value) - of(self.low)) / width if width else 0.5
        return self.start + share * (self.end - self.start)


def spread(
    values: Iterable[float], *, at_least: float, limits: tuple[float, float] | None = None
) -> tuple[float, float]:
    """Bounds with some room around all values, no narrower than `at_least`, so that noise does not look like much."""
    there = list(values)
    low, high = min(there), max(there)
    room = max(0.06 * (high - low), (at_least - (high - low)) / 2)
    low, high = low - room, high + room
    return (max(low, limits[0]), min(high, limits[1])) if limits else (low, high)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers between the bounds, at most so many and at least two where the bounds differ."""
    if high <= low:
        return [low]
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    for step in (power * factor for factor in (1, 2, 2.5, 5, 10, 20)):
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first + 1 <= most:
            break
    return [index * step for index in range(first, last + 1)]


def log_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Powers of ten between positive bounds, with twice and five times each where there is room."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 2, 5), (1,)):
        found = [factor * 10.0**power for power in powers for factor in factors]
        found = [value for value in found if low <= value <= high]
        if len(found) <= most:
            break
    return found


def left_axis(scale: Scale, left: float, right: float, title: str, shown: Callable[[float], str]) -> list[Markup]:
    """Lines across the drawing with their numbers at the left, and what they count above them."""
    marks = ticks(scale.low, scale.high)
    return [
        words(8, scale.end - 14, title, class_="axis-title"),
        *(line(left, scale(value), right, scale(value), "grid") for value in marks),
        *(words(left - 6, scale(value) + 3.5, shown(value), "end") for value in marks),
    ]


def _shown(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")


# As many as style.css has colours for, of a palette that stays apart for colour-blind eyes.
COLOURS = 7
# Around the origin, of about the same area.
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
class Mark:
    colour: int
    shape: int

    @property
    def class_(self) -> str:
        return f"c{self.colour}"

    def at(self, x: float, y: float, title: str = "") -> Markup:
        """The mark around a point, with words that show when one points at it."""
        inside = [element("title", title)] if title else []
        place = f"translate({x:.1f} {y:.1f})"
        return element("path", *inside, d=_SHAPES[self.shape], transform=place, class_=f"mark {self.class_}")

    def alone(self) -> Markup:
        """For a legend, beside the name."""
        return element(
            "svg", self.at(0, 0), viewBox="-6 -6 12 12", width=12, height=12, class_="key", aria_hidden="true"
        )


def marks_of(names: Sequence[str], variants: Mapping[str, Variant]) -> dict[str, Mark]:
    """Variants of a method share its colour and differ in shape; methods differ in both."""
    methods = list(dict.fromkeys(variants.get(name, Variant(name)).method for name in names))
    used = [0] * COLOURS
    found = {}
    for name in names:
        place = methods.index(variants.get(name, Variant(name)).method)
        colour = place % COLOURS
        # Counts of colours and shapes have no common factor, so pairs repeat only after all were there.
        shape = used[colour] if variants else place
        used[colour] += 1
        found[name] = Mark(colour, shape % len(_SHAPES))
    return found
