"""SIGTERM and SIGHUP save a run as Ctrl-C does, and what the terminal's user asked to ignore stays ignored."""

import json
import signal
import sys
from pathlib import Path

import pytest
import torch
from sweep_processes import sweep_spec, sweep_words
from warm_python import WarmPython

from children import start_child

WORDS = [
    *("train", "--algorithm", "erm", "--threads", "1", "--device", "cpu", "--steps", "100000", "--record-every", "11"),
    *("--dataset-option", "train_count=120", "--dataset-option", "test_count=40", "--dataset-option", "shifts=(0,8)"),
    *("--batch-size", "16"),
]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=str)
def test_training_saves_and_stops(number: signal.Signals, tmp_path: Path, warm_python: WarmPython) -> None:
    process = warm_python.start("-m", "domainwise", *WORDS, "--output", tmp_path / "run")
    process.wait_until((tmp_path / "run" / "records.jsonl").exists)
    process.signal(number)
    assert process.wait(60) == 130
    assert "rerun the same command to resume" in process.err
    assert torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["step"] > 1


def test_children_of_tests_get_ctrl_c_even_if_the_tests_ignore_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        program = "import time; print('ready', flush=True); time.sleep(60)"
        with start_child([sys.executable, "-c", program], seconds=30) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == -signal.SIGINT
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_child_that_hangs_is_killed() -> None:
    with start_child([sys.executable, "-c", "import time; time.sleep(60)"], seconds=0.2) as process:
        assert process.wait(20) == -signal.SIGKILL


def test_a_sweep_saves_and_stops_when_the_terminal_closes(tmp_path: Path, warm_python: WarmPython) -> None:
    """The whole process group gets the signal, as with Ctrl-C."""
    folder = tmp_path / "sweep"
    process = warm_python.start("-m", "domainwise", *sweep_words(folder, spec=sweep_spec(steps=100_000, draws=1)))
    process.wait_until(lambda: len(list(folder.glob("*/records.jsonl"))) == 2)
    process.signal(signal.SIGHUP, is_group=True)
    assert process.wait(60) == 130
    assert process.err.splitlines()[-1].endswith("0 of 2 runs are done; rerun the same command to resume")
    assert "Traceback" not in process.err
    for run in folder.glob("*/records.jsonl"):
        # Each run saved where it was, not where its last record was.
        last = json.loads(run.read_text().splitlines()[-1])["step"]
        assert torch.load(run.parent / "checkpoint.pt", weights_only=True)["step"] > last
