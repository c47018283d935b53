"""Figures: reproducible bytes, ids that do not clash on a page, and an error for unknown formats."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from domainwise.errors import DomainwiseError
from domainwise.figures import FORMATS, render_inline_svg, write_figure


def plot() -> Figure:
    figure = Figure()
    figure.subplots().plot([0, 1], [1, 0], "o-", clip_on=True)
    return figure


@pytest.mark.parametrize("kind", FORMATS)
def test_figures_are_reproducible(kind: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_figure(tmp_path / f"new/{name}.{kind}", plot())
    one, two = ((tmp_path / f"new/{name}.{kind}").read_bytes() for name in ("one", "two"))
    assert one == two
    assert len(one) > 1000


def test_ids_have_the_prefix_and_resolve() -> None:
    text = render_inline_svg(plot(), "curve")
    root = ElementTree.fromstring(text)
    ids = {element.get("id") for element in root.iter() if element.get("id")}
    assert ids
    assert all(name is not None and name.startswith("curve-") for name in ids)
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', text))
    assert used
    assert used <= ids


def test_an_unknown_format_raises_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(DomainwiseError, match="png, svg, pdf"):
        write_figure(tmp_path / "a.gif", plot())
