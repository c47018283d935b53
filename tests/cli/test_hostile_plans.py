"""Looking at a sweep writes nothing, whatever its plan says."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from run_folders import write_run

Cli = Callable[..., Any]
LINE = {"dataset": "toy", "algorithm": "erm", "test_domains": ["art"], "trial_seed": 0, "hparams_seed": 0}


def write_sweep(folder: Path, run: str) -> Path:
    folder.mkdir()
    (folder / "sweep.toml").write_text('datasets = ["toy"]\nalgorithms = ["erm"]\n')
    (folder / "plan.jsonl").write_text(json.dumps({"run": run, **LINE}) + "\n")
    return folder


def list_files(folder: Path) -> dict[Path, tuple[int, int]]:
    return {path: (path.lstat().st_mtime_ns, path.lstat().st_size) for path in folder.rglob("*")}


@pytest.mark.parametrize("run", ["{outside}", "../outside", "..", ".", "x/../../outside", "a\x00b", ""])
@pytest.mark.parametrize("command", [("sweep", "status"), ("report",)])
def test_a_plan_cannot_lead_out_of_its_sweep(
    domainwise: Cli, tmp_path: Path, run: str, command: tuple[str, ...]
) -> None:
    outside = write_run(tmp_path / "outside", "erm", "art", is_done=False)
    (outside / ".lock").touch()
    sweep = write_sweep(tmp_path / "sweep", run.format(outside=outside))
    before = list_files(tmp_path)
    outcome = domainwise(*command, sweep)
    assert outcome.code == 2
    assert f"{sweep / 'plan.jsonl'} is damaged at line 1: run: " in outcome.err
    assert list_files(tmp_path) == before


@pytest.mark.parametrize("command", [("sweep", "status"), ("report", "--unfinished")])
def test_looking_writes_nothing(domainwise: Cli, tmp_path: Path, command: tuple[str, ...]) -> None:
    sweep = write_sweep(tmp_path / "sweep", "one")
    run = write_run(sweep / "one", "erm", "art", is_done=False)
    (run / ".lock").touch()
    before = list_files(tmp_path)
    outcome = domainwise(*command, sweep)
    assert outcome.code == 0, outcome.err
    assert list_files(tmp_path) == before
