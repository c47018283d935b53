"""The dots are the table's numbers, at the places that the axis says."""

import re
from pathlib import Path

import pytest

from domainwise.reports import make_report
from domainwise.reports.cells import Cell, Column, Row, Table
from domainwise.reports.html.page_data import Variant
from domainwise.reports.html.plots import dots_of, draw_dots
from domainwise.reports.html.svg import COLOURS, Mark, marks_of
from domainwise.selection.runs import read_runs
from run_folders import DOMAINS, write_grid, write_run

MARKS = {"erm": Mark(0, 0), "mat": Mark(1, 1)}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    write_grid(tmp_path, "erm", 0.4)
    write_grid(tmp_path, "mat", 0.5)
    return make_report(read_runs([tmp_path])).tables[0]


def test_every_cell_of_a_test_domain_is_a_dot(table: Table) -> None:
    dots = {(dot.algorithm, dot.domain): (dot.mean, dot.error) for dot in dots_of(table)}
    assert len(dots) == 2 * len(DOMAINS)
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            if column.kind == "domain":
                assert dots[row.algorithm, column.domain] == (cell.mean, cell.error)
    assert dots["mat", "sketch"][0] == pytest.approx(72)


def test_a_missing_cell_has_no_dot(tmp_path: Path) -> None:
    write_run(tmp_path / "one", "erm", "art")
    write_run(tmp_path / "two", "mat", "sketch")
    drawing = draw_dots(make_report(read_runs([tmp_path])).tables[0], MARKS)
    assert drawing is not None
    assert re.findall(r"<title>(.*?)</title>", drawing) == ["erm on art: 70.0", "mat on sketch: 70.0"]


def test_marks_stand_where_the_axis_says() -> None:
    columns = (Column("art", "domain", "toy", "art"),)
    table = Table("toy", "training_domain", columns, (Row("erm", (Cell(40.0, 2.0, 3),)), Row("mat", (Cell(60.0),))), ())
    drawing = draw_dots(table, MARKS, chance=50)
    assert drawing is not None
    places = {
        words: float(x) for x, words in re.findall(r'translate\(([\d.]+) [\d.]+\)"[^>]*><title>(.*?)</title>', drawing)
    }
    ticks = {float(value): float(x) for x, value in re.findall(r'<text x="([\d.]+)"[^>]*>(\d+)</text>', drawing)}
    assert places["erm on art: 40.0 ± 2.0"] == pytest.approx(ticks[40], abs=0.2)
    assert places["mat on art: 60.0"] == pytest.approx(ticks[60], abs=0.2)
    assert ">chance, 50</text>" in drawing
    (bar,) = re.findall(r'd="M([\d.]+) [\d.]+L([\d.]+) [\d.]+" class="error', drawing)
    width = (ticks[60] - ticks[40]) / 20
    assert float(bar[1]) - float(bar[0]) == pytest.approx(4 * width, abs=0.3)


def test_chance_beyond_the_axis_is_told_in_words(table: Table) -> None:
    drawing = str(draw_dots(table, MARKS, chance=1))
    assert ">chance: 1</text>" in drawing
    assert 'class="chance"' not in drawing
    assert "chance" not in str(draw_dots(table, MARKS))


def test_a_table_without_numbers_has_no_drawing() -> None:
    columns = (Column("art", "domain", "toy", "art"),)
    assert draw_dots(Table("toy", "training_domain", columns, (Row("erm", (Cell(None),)),), ()), MARKS) is None


def test_no_two_methods_look_alike() -> None:
    names = [f"method {number}" for number in range(30)]
    assert len(set(marks_of(names, {}).values())) == 30
    few = [marks_of(names, {})[name] for name in names[:COLOURS]]
    assert len({mark.colour for mark in few}) == len({mark.shape for mark in few}) == COLOURS


def test_variants_share_a_colour_and_differ_in_shape() -> None:
    variants = {each.name: each for each in (Variant("mat", (("epsilon", 0.1),)), Variant("mat", (("epsilon", 1),)))}
    marks = marks_of(["erm", *variants], variants)
    assert marks["mat, epsilon 0.1"].colour == marks["mat, epsilon 1"].colour != marks["erm"].colour
    assert marks["mat, epsilon 0.1"].shape != marks["mat, epsilon 1"].shape
