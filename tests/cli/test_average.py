"""`domainwise average`: a sweep, a run with its start, and errors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from domainwise.sweeps.runner import run_sweep
from domainwise.sweeps.spec import SweepSpec
from in_process_engine import train_in_process

Call = Callable[..., Any]
SETTINGS = {
    "steps": 2,
    "batch_size": 8,
    "shared_start": True,
    "dataset_options": {"train_count": 40, "test_count": 10, "image_size": 16, "shifts": (8.0,)},
}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("average") / "sweep"
    run_sweep(
        SweepSpec(("silhouettes",), ("erm",), draws=2, settings=SETTINGS),
        folder,
        engine=train_in_process,
        placement={"device": "cpu"},
    )
    return folder


def first_run(sweep: Path) -> Path:
    return next(path for path in sweep.glob("*draw0*"))


def test_a_sweep(domainwise: Call, sweep: Path, tmp_path: Path) -> None:
    result = domainwise("average", sweep, "-o", tmp_path / "soups", "--device", "cpu")
    assert result.code == 0, result.err
    rows = [line.split() for line in result.out.splitlines()]
    assert next(row[3:7] for row in rows if row[:1] == ["erm"]) == ["uniform", "2", "of", "2"]
    assert "uniform: " in result.out
    assert "points on the test domain over the best single run" in result.out
    again = domainwise("average", sweep, "-o", tmp_path / "soups", "--device", "cpu", "--rule", "greedy", "--json")
    (soup,) = json.loads(again.out)
    assert soup["rule"] == "greedy"
    assert (soup["method"], soup["trial"], soup["test_domains"], soup["candidates"]) == ("erm", 0, ["shift_8"], 2)
    assert soup["folder"] == str(tmp_path / "soups" / f"{first_run(sweep).name}-greedy")
    record = json.loads((Path(soup["folder"]) / "records.jsonl").read_text())
    assert soup["test"] == record["accuracy"]["shift_8"]["main"]
    assert soup["members"] == record["soup"]["members"]


def test_a_run_with_its_start(domainwise: Call, sweep: Path, tmp_path: Path) -> None:
    result = domainwise("average", first_run(sweep), "--alpha", 0.5, "-o", tmp_path / "half", "--device", "cpu")
    assert result.code == 0, result.err
    assert "interpolated" in result.out
    assert (tmp_path / "half" / "done").exists()
    assert domainwise("report", tmp_path / "half").code == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("{run}",), "is a single run; give a sweep, or --alpha to interpolate it with its start"),
        (("{sweep}", "--alpha", "0.5"), "--alpha interpolates a single run, but"),
        (("{run}", "--alpha", "1.5"), "alpha must be at least 0 and at most 1, got 1.5"),
        (("{sweep}", "--rule", "greddy"), "did you mean 'greedy'?"),
        (("{empty}",), "error: "),
    ],
)
def test_errors_are_one_line(
    words: tuple[str, ...], message: str, domainwise: Call, sweep: Path, tmp_path: Path
) -> None:
    result = domainwise("average", *(word.format(sweep=sweep, run=first_run(sweep), empty=tmp_path) for word in words))
    assert result.code == 2
    assert message in result.err
    assert "Traceback" not in result.err
    assert result.err.count("\n") == 1
