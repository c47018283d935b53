"""Every method compared with one of them, trial by trial."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from report_runs import Pair, on_each, plan, run, runs_of

from domainwise.errors import DomainwiseError
from domainwise.reports import build_report
from domainwise.reports.cells import Table, format_cell
from domainwise.selection.runs import Runs, read_runs
from run_folders import write_run


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
    assert needed.text == "at least 4"
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
    assert (format_cell(difference, table.columns[0]), verdict.text) == ("+10.0 (too few trials)", "inconclusive")
    assert needed.reason == "the spread between trials is unknown with a single one"
    assert "95 % confidence intervals over trials. No" in table.footnotes[0]


def write_trials(folder: Path, method: str, accuracy: float, trainings: Sequence[float]) -> None:
    for trial, training in enumerate(trainings):
        for place, domain in enumerate(("art", "cartoon")):
            reached = accuracy + 0.001 * trial * (method != "erm")
            path = folder / f"{method}-{domain}-{trial}"
            write_run(path, method, domain, (reached,), trial=trial, training=0.9 if place else training)


def test_collapsed_runs_are_named_and_leave_the_verdict_open(tmp_path: Path) -> None:
    write_trials(tmp_path, "erm", 0.5, [0.9] * 5)
    write_trials(tmp_path, "mat", 0.6, [0.9, 0.9, 0.25, 0.9, 0.9])
    write_trials(tmp_path, "uat", 0.6, [0.9] * 5)
    table = compare(read_runs([tmp_path]), "erm")
    assert [column.name for column in table.columns][:3] == ["difference to erm", "collapsed", "trials"]
    uat, mat = table.rows
    assert (mat.cells[1].text, mat.cells[4].text) == ("1 of 5", "inconclusive")
    assert (uat.cells[1].text, uat.cells[4].text) == ("0 of 5", "holds")
    assert mat.cells[5].reason == "runs collapsed or failed"
    assert (
        "mat: no verdict, because runs are at chance level or failed in 1 of 5 trials: mat on art in trial 2 is at "
        "chance level." in table.footnotes
    )


def test_a_failed_run_is_part_of_the_verdict() -> None:
    records = [
        *trials_of("erm", [(0.5, 0.6, 0.7)] * 5),
        *(record for trial in range(4) for record in on_each("mat", (0.6, 0.7, 0.8 + trial / 100), trial=trial)),
        run("mat", "art", 0.6, trial=4),
        run("mat", "cartoon", 0.7, trial=4),
    ]
    ended = [plan("mat", name, "done", trial=trial) for name in ("art", "cartoon", "sketch") for trial in range(4)]
    failed = plan("mat", "sketch", "failed", "training diverged: the loss is nan at step 7", trial=4)
    clear = compare(runs_of(records, ended), "erm").rows[0]
    assert clear.cells[3].text == "holds"
    table = compare(runs_of(records, [*ended, failed]), "erm")
    (mat,) = table.rows
    assert (mat.cells[1].text, mat.cells[4].text) == ("1 of 5", "inconclusive")
    assert "mat on sketch in trial 4 failed (training diverged: the loss is nan at step 7)." in " ".join(
        table.footnotes
    )
    # Another draw of the same cell is enough.
    again = plan("mat", "sketch", "done", trial=4, draw=1)
    assert compare(runs_of(records, [*ended, failed, again]), "erm").rows[0].cells[3].text == "holds"


def test_an_interval_wider_than_all_accuracies_is_not_shown() -> None:
    records = [*trials_of("erm", [(0.1, 0.1, 0.1)] * 2), *trials_of("mat", [(0.1, 0.1, 0.1), (0.9, 0.9, 0.9)])]
    table = compare(runs_of(records), "erm")
    assert format_cell(table.rows[0].cells[0], table.columns[0]) == "+40.0 (too few trials)"


def test_unknown_baseline() -> None:
    with pytest.raises(DomainwiseError, match="unknown method to compare to 'erm'"):
        compare(runs_of(on_each("mat", (0.5, 0.6, 0.7))), "erm")


def test_single_method() -> None:
    table = compare(runs_of(on_each("mat", (0.5, 0.6, 0.7))), "mat")
    assert table.rows == ()
    assert "There is no other method." in table.footnotes
