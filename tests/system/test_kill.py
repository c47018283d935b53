"""A run that is killed at any moment goes on as if nothing had happened."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

KILLABLE = Path(__file__).with_name("killable.py")
# Everything random at once: mixing weights drawn for every sample, dropout, and the order of batches.
RUN = [
    *("train", "--algorithm", "mat", "-H", "weights=sample", "-H", "count=3", "--dropout", "0.1", "--threads", "1"),
    *("--dataset-option", "train_count=120", "--dataset-option", "test_count=40", "--dataset-option", "shifts=(0,8)"),
    *("--steps", "180", "--record-every", "11", "--batch-size", "16", "--device", "cpu"),
]


def run(folder: Path, moments: str = "") -> subprocess.CompletedProcess[str]:
    program = [str(KILLABLE), moments] if moments else ["-m", "domainwise"]
    command = [sys.executable, *program, *RUN, "--output", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


def outcome(folder: Path) -> dict[str, Any]:
    """All that a run leaves behind, but for how long its steps took."""
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    for record in records:
        del record["seconds_per_step"]
    weights = {which: safetensors.torch.load_file(folder / f"{which}.safetensors") for which in ("best", "last")}
    checkpoint = torch.load(folder / "checkpoint.pt", weights_only=True)
    return {
        "records": records,
        "weights": weights,
        "checkpoint": checkpoint,
        "files": sorted(p.name for p in folder.iterdir()),
    }


def assert_identical(a: Any, b: Any) -> None:
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b)
    elif isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_identical(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_identical(one, other)
    else:
        assert a == b


def test_killed_at_ten_random_moments_ends_with_the_same_weights_and_records(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    draw = random.Random(0)
    moments: list[tuple[str, float]] = [
        *[("after-step", draw.uniform(2, 30)) for _ in range(4)],
        *[("before-rename", draw.randint(2, 9)) for _ in range(4)],
        *[("after-rename", draw.randint(2, 9)) for _ in range(2)],
    ]
    draw.shuffle(moments)
    killed = run(tmp_path / "killed", ", ".join(f"{when} {moment}" for when, moment in moments))
    ends = [line.split() for line in killed.stdout.splitlines() if line.startswith("ended")]
    assert [end[-1] for end in ends] == [str(-signal.SIGKILL)] * 10, (killed.stdout, killed.stderr)
    assert "done too early" not in killed.stdout
    last = run(tmp_path / "killed")
    assert last.returncode == 0, last.stderr
    assert_identical(outcome(tmp_path / "killed"), outcome(tmp_path / "whole"))


def test_ctrl_c_saves_and_the_same_command_goes_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "domainwise", *RUN, "--steps", "100000", "--output", str(tmp_path / "run")]
    records = tmp_path / "run" / "records.jsonl"
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not records.exists():
            assert process.poll() is None
            time.sleep(0.05)
        second = subprocess.run(command, capture_output=True, text=True, timeout=120)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=120)
    assert second.returncode == 2
    assert second.stderr.strip() == f"error: another process is training in {tmp_path / 'run'}"
    assert process.returncode == 130
    assert "rerun the same command to resume" in errors
    checkpoint = torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)
    # It saved where it was, not where the last record was.
    assert checkpoint["step"] - 1 > json.loads(records.read_text().splitlines()[-1])["step"]
    assert len(checkpoint["measured"]) == (checkpoint["step"] - 1) % 11
