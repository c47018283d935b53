"""Pictures and tables that a caller adds to the page."""

import base64
from dataclasses import dataclass

from markupsafe import Markup

from domainwise.errors import DomainwiseError


@dataclass(frozen=True)
class TextTable:
    """A table; its last `numbers` columns are set to the right, and `notes` stand under it."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: int = 0
    notes: tuple[str, ...] = ()


_PNG = b"\x89PNG"


@dataclass(frozen=True)
class Picture:
    """A picture with its words, as an `<svg>` element or the bytes of a PNG.

    Args:
        alt: what is to be seen, for those who cannot see it.
        svg: put into the page as it is, so it must come from a drawing of one's own; its ids must be its own, too.
    """

    title: str
    caption: str
    alt: str
    svg: str = ""
    png: bytes = b""

    def __post_init__(self) -> None:
        if bool(self.svg) == bool(self.png):
            raise DomainwiseError(f"picture {self.title!r} needs either svg or png, and one of them only")
        if self.svg and not self.svg.lstrip().startswith("<svg"):
            raise DomainwiseError(f"the svg of picture {self.title!r} must begin with <svg")
        if self.png and not self.png.startswith(_PNG):
            raise DomainwiseError(f"the png of picture {self.title!r} is no PNG file")
        if not self.alt:
            raise DomainwiseError(f"picture {self.title!r} needs an alt: words for those who cannot see it")

    def markup(self) -> Markup:
        """The picture in a page, without its title and caption."""
        if self.svg:
            return Markup('<div role="img" aria-label="{}">{}</div>').format(self.alt, Markup(self.svg))
        data = base64.b64encode(self.png).decode()
        return Markup('<img alt="{}" src="data:image/png;base64,{}">').format(self.alt, data)
