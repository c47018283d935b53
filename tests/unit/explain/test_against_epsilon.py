"""Accuracy against the epsilon of training: the right record of each run, means by hand, and what is refused."""

import json
import math
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from domainwise.errors import DomainwiseError
from domainwise.explain.plots.accuracy import draw_against_epsilon, means_against_epsilon, measured


def write_run(
    folder: Path,
    method: str,
    epsilon: float | None,
    trial: int,
    accuracy: float,
    test: str = "sketch",
    done: bool = True,
    dataset: str = "pacs",
    worse: tuple[tuple[float, float], ...] = (),
) -> None:
    """A run as it lies on the disk.

    Args:
        worse: holdout and test accuracy of records before the one that selection takes.
    """
    folder.mkdir(parents=True)
    pairs = (*worse, (0.9, accuracy), (0.9, 0.01))
    records = [_record(step, method, epsilon, trial, test, dataset, *pair) for step, pair in enumerate(pairs)]
    (folder / "config.json").write_text(json.dumps({"config": {"steps": len(pairs)}, "data": {}}))
    (folder / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if done:
        (folder / "done").touch()


def _record(
    step: int, method: str, epsilon: float | None, trial: int, test: str, dataset: str, holdout: float, accuracy: float
) -> dict[str, Any]:
    return {
        "schema": 1,
        "step": step,
        "dataset": dataset,
        "algorithm": method,
        "trial_seed": trial,
        "hparams_seed": 0,
        "train_domains": ["art"],
        "validation_domains": [],
        "test_domains": [test],
        "roles": "left_out",
        "hparams": {} if epsilon is None else {"epsilon": epsilon},
        "accuracy": {"art": {"holdout": holdout}, test: {"holdout": 0.5, "main": accuracy}},
    }


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """MAT with two radii and ERM, three trials each, on one test domain; equal draws, which a table would refuse."""
    for trial, (small, large, plain) in enumerate([(0.6, 0.7, 0.5), (0.62, 0.74, 0.5), (0.58, 0.66, 0.53)]):
        write_run(tmp_path / f"s{trial}", "mat", 0.1, trial, small)
        write_run(tmp_path / f"l{trial}", "mat", 1.0, trial, large)
        write_run(tmp_path / f"e{trial}", "erm", None, trial, plain)
    return tmp_path


def test_means_and_errors_over_trials(sweep: Path) -> None:
    means = means_against_epsilon(measured([sweep]))
    rows = {(row["method"], row["epsilon"]): row for row in means.iter_rows(named=True)}
    assert list(rows) == [("erm", None), ("mat", 0.1), ("mat", 1.0)]
    assert rows["mat", 1.0]["mean"] == pytest.approx(0.7)
    # Deviations 0, .04 and -.04: variance .0032 / 3, over three trials.
    assert rows["mat", 1.0]["error"] == pytest.approx(math.sqrt(0.0032 / 3 / 3))
    assert rows["erm", None]["mean"] == pytest.approx(0.51)
    assert {row["count"] for row in rows.values()} == {3}


def test_the_record_is_the_first_of_those_with_the_highest_holdout(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "mat", 0.1, 0, 0.4, worse=((0.7, 0.99), (0.8, 0.2)))
    assert measured([tmp_path])["accuracy"].to_list() == [0.4]


def test_the_average_needs_every_test_domain(tmp_path: Path) -> None:
    for trial, (one, other) in enumerate([(0.4, 0.8), (0.5, 0.7)]):
        write_run(tmp_path / f"a{trial}", "mat", 0.1, trial, one, "sketch")
        write_run(tmp_path / f"b{trial}", "mat", 0.1, trial, other, "photo")
    write_run(tmp_path / "c", "erm", None, 0, 0.99, "photo")
    frame = measured([tmp_path])
    average = frame.filter(pl.col("domain") == "average")
    assert average["accuracy"].to_list() == pytest.approx([0.6, 0.6])
    assert set(average["method"]) == {"mat"}
    assert frame["domain"].unique(maintain_order=True).to_list()[-1] == "average"


def test_a_single_run_has_no_error(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "mat", 0.1, 0, 0.4)
    assert means_against_epsilon(measured([tmp_path]))["error"].to_list() == [None]


def test_runs_that_are_not_done_are_left_out_and_counted(sweep: Path) -> None:
    write_run(sweep / "x", "mat", 0.5, 0, 0.9, done=False)
    with pytest.warns(UserWarning, match="1 run is left out"):
        frame = measured([sweep])
    assert 0.5 not in frame["epsilon"].to_list()


def test_one_place_filled_twice_is_refused(sweep: Path) -> None:
    write_run(sweep / "again", "mat", 1.0, 2, 0.1)
    with pytest.raises(DomainwiseError, match=r"both mat with epsilon 1, trial 2, tested on sketch"):
        measured([sweep])


def test_several_datasets_are_refused(sweep: Path) -> None:
    write_run(sweep / "other", "mat", 1.0, 0, 0.1, dataset="nico")
    with pytest.raises(DomainwiseError, match="nico, pacs"):
        measured([sweep])


def test_no_finished_run_is_said(tmp_path: Path) -> None:
    write_run(tmp_path / "x", "mat", 0.5, 0, 0.9, done=False)
    with pytest.warns(UserWarning, match="not finished"), pytest.raises(DomainwiseError, match="no finished runs"):
        measured([tmp_path])


def test_the_figure_has_a_curve_for_a_radius_and_a_level_without(sweep: Path) -> None:
    figure = draw_against_epsilon(measured([sweep]))
    figure.draw_without_rendering()
    (panel,) = figure.axes
    lines = {str(line.get_label()): line for line in panel.lines}
    assert set(lines) == {"MAT (n = 3)", "ERM (n = 3)"}
    assert list(lines["MAT (n = 3)"].get_xdata()) == [0.1, 1.0]
    assert list(lines["MAT (n = 3)"].get_ydata()) == pytest.approx([0.6, 0.7])
    assert list(lines["ERM (n = 3)"].get_ydata()) == pytest.approx([0.51, 0.51])
    assert panel.get_xscale() == "log"


def test_a_curve_of_uneven_trials_says_so(sweep: Path) -> None:
    write_run(sweep / "one", "mat", 5.0, 0, 0.4)
    (panel,) = draw_against_epsilon(measured([sweep])).axes
    assert {str(line.get_label()) for line in panel.lines} == {"MAT (n = 1 to 3)", "ERM (n = 3)"}
