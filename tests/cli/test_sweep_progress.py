"""The progress of a sweep is counted as runs change, not anew for each of them."""

from pathlib import Path

import pytest

from domainwise.cli.console import SweepProgress, make_console
from domainwise.storage.run_folder import RunStatus
from domainwise.storage.sweep_folder import PlannedRun


def make_runs(count: int) -> list[PlannedRun]:
    return [PlannedRun(Path(str(n)), str(n), "toy", "erm", ("art",), 0, n) for n in range(count)]


def test_the_share_of_all_steps_that_are_done(capsys: pytest.CaptureFixture[str]) -> None:
    runs = make_runs(4)
    progress = SweepProgress(runs, 10, make_console())
    for run, status in zip(runs, (RunStatus("done", 10), RunStatus("unfinished", 5)), strict=False):
        progress.update(run, status)
    assert progress._fraction() == pytest.approx(1.5 / 4)
    assert progress.start_fraction == pytest.approx(1.5 / 4)
    progress.update(runs[1], RunStatus("running", 7))
    progress.update(runs[2], RunStatus("pending"))
    progress.update(runs[2], RunStatus("failed", error="no"))
    assert progress._fraction() == pytest.approx(2.7 / 4)
    assert capsys.readouterr().out == "2/4 2: failed: no\n"
    progress.update(runs[2], RunStatus("running", 1))  # it is tried again
    progress.update(runs[2], RunStatus("done", 10))
    assert capsys.readouterr().out == "2/4 2: done\n"
    progress.expect(10, [0.5, 1.0])
    assert progress._fraction() == pytest.approx(2.7 / 4 / 0.75)
    progress.restart(runs[:2])
    assert (progress._fraction(), progress.ended) == (0.0, set())


def test_steps_that_become_known_later() -> None:
    runs = make_runs(2)
    progress = SweepProgress(runs, None, make_console())
    progress.update(runs[0], RunStatus("running", 5))
    assert progress._fraction() == 0.0
    progress.expect(10, [1.0])
    assert progress._fraction() == pytest.approx(0.25)


def test_an_update_does_not_look_at_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, calls = make_runs(300), []
    share = SweepProgress._share
    monkeypatch.setattr(SweepProgress, "_share", lambda self, status: calls.append(status) or share(self, status))
    progress = SweepProgress(runs, 1, make_console())
    for status in (RunStatus("pending"), RunStatus("running", 0), RunStatus("done", 1)):
        for run in runs:
            progress.update(run, status)
    assert len(calls) <= 2 * 3 * len(runs)
