"""Figures of matplotlib as files and as part of a page, the same bytes every time they are drawn."""

import io
import re
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from domainwise.errors import unknown
from domainwise.storage.files import write_atomic

KINDS = ("png", "svg", "pdf")
# Without dates, and with names inside that depend on the content alone.
_SETTINGS: Any = {"svg.hashsalt": "domainwise", "svg.fonttype": "none"}
_NO_DATE = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}


def write_figure(path: Path, figure: Figure) -> None:
    """Write the figure as what the ending of `path` says: png, svg or pdf."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in KINDS:
        raise unknown("kind of picture", kind or str(path), KINDS)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, as_bytes(figure, kind))


def as_bytes(figure: Figure, kind: str = "png", dpi: int = 150) -> bytes:
    content = io.BytesIO()
    with matplotlib.rc_context(_SETTINGS):
        figure.savefig(content, format=kind, dpi=dpi, metadata=_NO_DATE[kind])
    return content.getvalue()


def as_inline_svg(figure: Figure, prefix: str) -> str:
    """The figure as an `<svg>` element for a page.

    Args:
        prefix: of all names inside, so that several figures on a page do not take one another's.
    """
    text = as_bytes(figure, "svg").decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    return re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", text)
