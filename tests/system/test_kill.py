"""A run that is killed at any moment resumes as if nothing had happened."""

import json
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from run_outcome import assert_identical, read_outcome
from warm_python import WarmPython

Cli = Callable[..., Any]
# Everything random at once: mixing weights drawn per sample, dropout, and the order of batches.
RUN = [
    *("train", "--algorithm", "mat", "-H", "weights=sample", "-H", "count=3", "--dropout", "0.1", "--threads", "1"),
    *("--dataset-option", "train_count=120", "--dataset-option", "test_count=40", "--dataset-option", "shifts=(0,8)"),
    *("--steps", "180", "--record-every", "11", "--batch-size", "16", "--device", "cpu", "--keep", "all"),
]


def test_a_run_killed_at_ten_random_moments_ends_with_the_same_weights_and_records(
    tmp_path: Path, warm_python: WarmPython, domainwise: Cli
) -> None:
    killed = tmp_path / "killed"
    draw = random.Random(0)
    moments: list[tuple[str, float]] = [
        *[("after-step", draw.uniform(2, 30)) for _ in range(4)],
        *[("before-rename", draw.randint(2, 9)) for _ in range(4)],
        *[("after-rename", draw.randint(2, 9)) for _ in range(2)],
    ]
    draw.shuffle(moments)
    for when, moment in moments:
        process = warm_python.start("-m", "domainwise", *RUN, "--output", killed, die=f"{when} {moment}")
        assert process.wait() == -signal.SIGKILL, (process.out, process.err)
        assert not (killed / "done").exists()
    for folder in ("killed", "uninterrupted"):
        outcome = domainwise(*RUN, "--output", tmp_path / folder)
        assert outcome.code == 0, outcome.err
    assert_identical(read_outcome(killed), read_outcome(tmp_path / "uninterrupted"))


def test_ctrl_c_saves_and_a_second_process_is_kept_out(
    tmp_path: Path, warm_python: WarmPython, domainwise: Cli
) -> None:
    folder = tmp_path / "run"
    words = [*RUN, "--steps", "100000", "--output", str(folder)]
    records = folder / "records.jsonl"
    process = warm_python.start("-m", "domainwise", *words)
    process.wait_until(records.exists)
    second = domainwise(*words)
    assert (second.code, second.err) == (2, f"error: another process is training in {folder}\n")
    process.interrupt()
    assert process.wait() == 130
    assert "rerun the same command to resume" in process.err
    checkpoint = torch.load(folder / "checkpoint.pt", weights_only=True)
    # It saved where it was, not where the last record was.
    assert checkpoint["step"] - 1 > json.loads(records.read_text().splitlines()[-1])["step"]
    assert len(checkpoint["measured"]) == (checkpoint["step"] - 1) % 11
