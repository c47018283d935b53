"""Figures: reproducible bytes, and an error for unknown formats."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from domainwise.errors import DomainwiseError
from domainwise.figures import FORMATS, render_figure, write_figure


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


def test_an_unknown_format_raises_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(DomainwiseError, match="png, svg, pdf"):
        write_figure(tmp_path / "a.gif", plot())


def test_names_are_no_mathematics_but_numbers_may_be() -> None:
    figure = Figure()
    panel = figure.subplots()
    panel.plot([1, 1000], [1, 2], label="legend$^$")
    panel.set(xscale="log", title="title$^$")
    panel.set_yticks([1, 2], labels=["tick$^$", "two"])
    panel.legend()
    drawn = render_figure(figure, "svg").decode()
    assert all(f">{name}$^$<" in drawn for name in ("title", "legend", "tick"))
    # Powers of ten are drawn as such, and named in a comment.
    assert drawn.count("mathdefault") == drawn.count("<!-- $\\mathdefault") > 0
