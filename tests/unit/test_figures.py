"""Figures come out the same every time, complete, and keep to themselves on a page."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from domainwise.errors import DomainwiseError
from domainwise.figures import KINDS, as_inline_svg, write_figure


def drawn() -> Figure:
    figure = Figure()
    figure.subplots().plot([0, 1], [1, 0], "o-", clip_on=True)
    return figure


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_bytes_each_time(kind: str, tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_figure(tmp_path / f"new/{name}.{kind}", drawn())
    one, two = ((tmp_path / f"new/{name}.{kind}").read_bytes() for name in ("one", "two"))
    assert one == two
    assert len(one) > 1000


def test_names_inside_have_the_prefix_and_are_found() -> None:
    text = as_inline_svg(drawn(), "curve")
    root = ElementTree.fromstring(text)
    ids = {element.get("id") for element in root.iter() if element.get("id")}
    assert ids
    assert all(name is not None and name.startswith("curve-") for name in ids)
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', text))
    assert used
    assert used <= ids


def test_another_kind_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DomainwiseError, match="png, svg, pdf"):
        write_figure(tmp_path / "a.gif", drawn())
