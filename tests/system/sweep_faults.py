"""What the tests of sweeps under faults share: a small sweep, its processes, and what it left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

SWEEP = [
    *("sweep", "--dataset", "silhouettes", "--algorithm", "erm", "--algorithm", "mat", "--trials", "1", "--draws", "2"),
    *("--dataset-option", "train_count=120", "--dataset-option", "test_count=20", "--dataset-option", "image_size=16"),
    *("--dataset-option", "shifts=(0,8)"),
    *("--record-every", "25", "--batch-size", "16", "--device", "cpu", "--workers", "2"),
]
RUNS = [f"silhouettes-{name}-shift_0-shift_8-draw{draw}-trial0" for draw in (0, 1) for name in ("erm", "mat")]


def command(folder: Path, *words: str, steps: int = 200) -> list[str]:
    return [sys.executable, "-m", "domainwise", *SWEEP, "--steps", str(steps), "-o", str(folder), *words]


def sweep(folder: Path, *words: str, steps: int = 200, **settings: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(folder, *words, steps=steps), capture_output=True, text=True, timeout=300, **settings)


def begun(folder: Path, *words: str, steps: int = 200) -> "subprocess.Popen[str]":
    """A sweep that has made a record, so that there is something to lose."""
    process = subprocess.Popen(
        command(folder, *words, steps=steps), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for(lambda: any(folder.glob("*/checkpoint.pt")), process)
    return process


def wait_for(condition: Callable[[], bool], process: "subprocess.Popen[str]", seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, f"the sweep ended: {process.communicate()}"
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.02)


def processes(ancestor: int, name: str) -> list[int]:
    """Descendants of a process whose command line has `name` in it."""
    parents, lines = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                lines[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (OSError, ValueError):
                continue

    def descends(pid: int) -> bool:
        while pid in parents:
            pid = parents[pid]
            if pid == ancestor:
                return True
        return False

    return [pid for pid, line in lines.items() if name in line and descends(pid)]


def kill(pids: Sequence[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


def records(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The records of every run, without the time that they took."""
    found = {}
    for file in sorted(folder.glob("*/records.jsonl")):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        found[file.parent.name] = [{k: v for k, v in line.items() if k != "seconds_per_step"} for line in lines]
    return found
