"""Every method compared with one of them, pair by pair."""

import pytest
from report_runs import on_each, run, runs_of

from domainwise.errors import DomainwiseError
from domainwise.reports import build_report
from domainwise.reports.cells import Table
from domainwise.selection.runs import Runs


def compare(runs: Runs, baseline: str) -> Table:
    return build_report(runs, compare_to=baseline).tables[-1]


def test_pairs_are_cells_that_both_methods_have() -> None:
    records = [
        *on_each("erm", (0.5, 0.6, 0.7)),
        run("erm", "a", 0.9, dataset="other", domains=("a", "b")),
        run("erm", "art", 0.1, trial=1),
        run("mat", "art", 0.52),
        run("mat", "a", 0.96, dataset="other", domains=("a", "b")),
        run("mat", "b", 0.96, dataset="other", domains=("a", "b")),
        run("mat", "sketch", 0.96, dataset="third", domains=("a", "sketch")),
        run("mat", "cartoon", 0.5, trial=1),
        run("zeta", "sketch", 0.5, trial=4),
    ]
    table = compare(runs_of(records), "erm")
    assert table.title == "Compared to erm"
    assert [row.algorithm for row in table.rows] == ["mat", "zeta"]
    difference, pairs, wins, p = table.rows[0].cells
    assert difference.mean == pytest.approx(4.0)
    assert difference.error == pytest.approx(2 / 2**0.5)
    assert (pairs.mean, wins.mean, p.mean) == (2.0, 2.0, 0.5)
    assert [cell.mean for cell in table.rows[1].cells] == [None] * 4
    assert "zeta: no test domain and trial in common with erm." in table.footnotes
    assert "The smallest possible p with 2 pairs is 0.5." in table.footnotes
    assert any("p is optimistic" in note for note in table.footnotes)


def test_unknown_baseline() -> None:
    with pytest.raises(DomainwiseError, match="unknown method to compare to 'erm'"):
        compare(runs_of(on_each("mat", (0.5, 0.6, 0.7))), "erm")


def test_single_method() -> None:
    table = compare(runs_of(on_each("mat", (0.5, 0.6, 0.7))), "mat")
    assert table.rows == ()
    assert "There is no other method." in table.footnotes
