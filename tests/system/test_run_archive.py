"""Runs packed into one file come back as the same records, and with the mark of the sequential test."""

import subprocess
import sys
from pathlib import Path

import pytest

from domainwise.reproduction.runner import SEQUENTIAL_FILE
from domainwise.selection import read_runs
from run_folders import write_run

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "run_archive.py"


def archive(*arguments: str | Path) -> str:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.slow
@pytest.mark.parametrize("is_sequential", [False, True])
def test_unpacked_runs_are_those_that_were_packed(tmp_path: Path, is_sequential: bool) -> None:
    source, file, target = tmp_path / "source", tmp_path / "runs.jsonl", tmp_path / "target"
    for trial in range(2):
        for name in ("erm", "mat"):
            write_run(source / "runs" / f"{name}-{trial}", name, "sketch", trial=trial)
    write_run(source / "runs" / "unfinished", "at", "sketch", is_done=False)
    if is_sequential:
        (source / SEQUENTIAL_FILE).touch()

    assert archive("pack", source, file) == f"{file}: 4 runs\n"
    assert archive("unpack", file, target) == f"{target}: 4 runs\n"

    before, after = (
        read_runs([folder]).frame.drop("run").sort("algorithm", "trial", "step") for folder in (source, target)
    )
    assert len(before) == 8
    assert before.equals(after)
    assert (target / SEQUENTIAL_FILE).exists() == is_sequential
    assert not (target / "runs" / "unfinished").exists()
