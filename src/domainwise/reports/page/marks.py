"""A colour and a shape for every method: told apart without colours, too."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from domainwise.reports.page.svg import element
from domainwise.reports.page.variants import Variant

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
