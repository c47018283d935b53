"""Matplotlib figures as files and inline SVG, with the same bytes every time."""

import io
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.text import Text

from domainwise.errors import unknown_choice
from domainwise.storage.files import write_atomic

FORMATS = ("png", "svg", "pdf")
# Without dates, and with SVG ids that depend on the content alone.
_RC: Any = {"svg.hashsalt": "domainwise", "svg.fonttype": "none"}
_METADATA = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}


def check_figure_format(path: Path) -> str:
    """Return the format that the suffix of `path` names: png, svg or pdf.

    Raises:
        DomainwiseError: For any other suffix. Call this before work whose figure would be lost.
    """
    name = path.suffix.lower().removeprefix(".")
    if name not in FORMATS:
        raise unknown_choice("figure format", name or str(path), FORMATS)
    return name


def write_figure(path: Path, figure: Figure) -> None:
    """Write the figure in the format that the suffix of `path` names."""
    name = check_figure_format(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, render_figure(figure, name))


def render_figure(figure: Figure, name: str = "png", dpi: int = 150) -> bytes:
    """Return the figure as the bytes of a png, svg or pdf file."""
    content = io.BytesIO()
    # Names of folders and classes are no mathematics, even with dollar signs. Numbers at ticks are not there yet.
    for text in figure.findobj(Text):
        if isinstance(text, Text) and text.get_text():
            text.set_parse_math(False)
    with matplotlib.rc_context(_RC):
        figure.savefig(content, format=name, dpi=dpi, metadata=_METADATA[name])
    return content.getvalue()
