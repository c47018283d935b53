"""Every method compared with one of them, trial by trial."""

import pytest
from report_runs import Pair, on_each, run, runs_of

from domainwise.errors import DomainwiseError
from domainwise.reports import build_report
from domainwise.reports.cells import Table, format_cell
from domainwise.selection.runs import Runs


def compare(runs: Runs, baseline: str) -> Table:
    return build_report(runs, compare_to=baseline).tables[-1]


def trials_of(method: str, accuracies: list[tuple[float, float, float]]) -> list[Pair]:
    return [record for trial, each in enumerate(accuracies) for record in on_each(method, each, trial=trial)]


def test_methods_are_judged_by_trials_that_both_have() -> None:
    records = [
        *trials_of("erm", [(0.5, 0.6, 0.7)] * 4),
        # Differences of 2, 3 and 4 points; the fourth trial has no run on sketch.
        *trials_of("mat", [(0.52, 0.62, 0.72), (0.51, 0.61, 0.77), (0.54, 0.64, 0.74)]),
        run("mat", "art", 0.9, trial=3),
        run("mat", "cartoon", 0.9, trial=3),
        run("zeta", "sketch", 0.5, trial=4),
    ]
    table = compare(runs_of(records), "erm")
    assert table.title == "Compared to erm"
    assert [row.algorithm for row in table.rows] == ["mat", "zeta"]
    difference, trials, wins, verdict, needed = table.rows[0].cells
    assert difference.mean == pytest.approx(3.0)
    # The t quantile with 2 degrees of freedom at 97.5 %, for two methods, is 6.2053.
    assert difference.interval == pytest.approx((3 - 6.2053 / 3**0.5, 3 + 6.2053 / 3**0.5), abs=1e-3)
    assert format_cell(difference, table.columns[0]) == "+3.0 [-0.6, +6.6]"
    assert (difference.trials, trials.mean, wins.mean) == (3, 3.0, 3.0)
    assert verdict.text == "inconclusive"
    assert needed.mean == 4.0
    assert [cell.mean for cell in table.rows[1].cells] == [None] * 5
    assert "zeta: no trial with the same test domains as erm." in table.footnotes
    assert any("97.5 % confidence intervals" in note and "within ± 1." in note for note in table.footnotes)


def test_the_margin_decides_between_holds_and_no_practical_difference() -> None:
    records = [
        *trials_of("erm", [(0.5, 0.6, 0.7)] * 4),
        *trials_of("mat", [(0.505, 0.605, 0.705), (0.506, 0.606, 0.706), (0.504, 0.604, 0.704), (0.505, 0.605, 0.705)]),
    ]
    (row,) = compare(runs_of(records), "erm").rows
    assert (row.cells[3].text, row.cells[4].reason) == ("no practical difference", "decided")
    (row,) = build_report(runs_of(records), compare_to="erm", margin=0.1).tables[-1].rows
    assert row.cells[3].text == "holds"


def test_one_trial_is_inconclusive() -> None:
    table = compare(runs_of([*on_each("erm", (0.5, 0.6, 0.7)), *on_each("mat", (0.6, 0.7, 0.8))]), "erm")
    difference, _, _, verdict, needed = table.rows[0].cells
    assert (format_cell(difference, table.columns[0]), verdict.text) == ("+10.0", "inconclusive")
    assert needed.reason == "the spread between trials is unknown with a single one"
    assert "95 % confidence intervals over trials. No" in table.footnotes[0]


def test_unknown_baseline() -> None:
    with pytest.raises(DomainwiseError, match="unknown method to compare to 'erm'"):
        compare(runs_of(on_each("mat", (0.5, 0.6, 0.7))), "erm")


def test_single_method() -> None:
    table = compare(runs_of(on_each("mat", (0.5, 0.6, 0.7))), "mat")
    assert table.rows == ()
    assert "There is no other method." in table.footnotes
