"""A small sweep for tests with real processes, those processes, and the records it leaves."""

import json
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from domainwise.sweeps.spec import SweepSpec

DATA = {"train_count": 120, "test_count": 20, "image_size": 16, "shifts": (0, 8)}
PLACEMENT = {"device": "cpu"}
STEPS = 100
RUNS = [f"silhouettes-{name}-shift_0-shift_8-draw{draw}-trial0" for draw in (0, 1) for name in ("erm", "mat")]


def sweep_spec(steps: int = STEPS, algorithms: tuple[str, ...] = ("erm", "mat"), draws: int = 2) -> SweepSpec:
    settings = {"steps": steps, "record_every": 20, "batch_size": 16, "dataset_options": DATA}
    return SweepSpec(("silhouettes",), algorithms, draws=draws, settings=settings)


def sweep_words(folder: Path, *words: str, spec: SweepSpec | None = None) -> list[str]:
    """Return the arguments of `domainwise` for the sweep, on two workers."""
    spec = spec or sweep_spec()
    return [
        *("sweep", "--dataset", "silhouettes", "--draws", str(spec.draws), "--steps", str(spec.settings["steps"])),
        *(word for algorithm in spec.algorithms for word in ("--algorithm", algorithm)),
        *(word for name, value in DATA.items() for word in ("--dataset-option", f"{name}={value}")),
        *(
            "--search",
            spec.search,
            "--record-every",
            "20",
            "--batch-size",
            "16",
            "--device",
            "cpu",
            "--workers",
            "2",
            "-o",
            str(folder),
        ),
        *words,
    ]


def find_descendants(ancestor: int, command: str) -> list[int]:
    """Return the processes below `ancestor` whose command line contains `command`, parents first."""
    parents, commands = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                commands[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (OSError, ValueError):
                continue

    def depth(pid: int) -> int:
        """Return the number of generations below the ancestor, or 0."""
        generations = 0
        while pid in parents:
            pid, generations = parents[pid], generations + 1
            if pid == ancestor:
                return generations
        return 0

    return sorted((pid for pid, line in commands.items() if command in line and depth(pid)), key=depth)


def find_workers(sweep: int) -> tuple[int, list[int]]:
    """Return the fork server and the workers of a process that runs a sweep."""
    server, *workers = find_descendants(sweep, "multiprocessing.forkserver")
    return server, workers


def send_signal(pids: Iterable[int], number: signal.Signals = signal.SIGKILL) -> None:
    for pid in pids:
        os.kill(pid, number)


def open_files(pid: int) -> set[str]:
    """Return the names of the files that a process has open."""
    names = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            names.add(os.readlink(descriptor))
        except FileNotFoundError:
            continue
    return names


def read_records(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the records of every run, without the time that they took."""
    records = {}
    for file in sorted(folder.glob("*/records.jsonl")):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        records[file.parent.name] = [
            {key: value for key, value in line.items() if key != "seconds_per_step"} for line in lines
        ]
    return records
