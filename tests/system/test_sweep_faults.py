"""Sweeps with real processes: killed, interrupted, out of disk space, started twice, damaged; and then resumed."""

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sweep_processes import (
    PLACEMENT,
    RUNS,
    find_workers,
    open_files,
    read_records,
    send_signal,
    sweep_spec,
    sweep_words,
)
from warm_python import WarmProcess, WarmPython

from domainwise.storage.run_folder import RunFolder, RunStatus
from domainwise.storage.sweep_folder import PlannedRun
from domainwise.sweeps.runner import SweepCallbacks, SweepOutcome, run_sweep

Cli = Callable[..., Any]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sweep without faults."""
    folder = tmp_path_factory.mktemp("undisturbed") / "sweep"
    assert run_sweep(sweep_spec(), folder, placement=PLACEMENT) == SweepOutcome(done=4, failed=0)
    assert sorted(read_records(folder)) == sorted(RUNS)
    return folder


def start_sweep(warm_python: WarmPython, folder: Path) -> WarmProcess:
    """Start a sweep as a process of its own, and return when both of its workers have something to lose."""
    process = warm_python.start("-m", "domainwise", *sweep_words(folder))
    process.wait_until(lambda: len(list(folder.glob("*/checkpoint.pt"))) >= 2)
    return process


@pytest.mark.parametrize("victim", ["worker", "fork server"])
def test_a_killed_process_costs_only_the_steps_since_the_last_checkpoint(
    undisturbed: Path, tmp_path: Path, victim: str
) -> None:
    victims: list[int] = []

    def kill_once(run: PlannedRun, status: RunStatus) -> None:
        if status.state == "running" and status.step > 20 and not victims:
            server, workers = find_workers(os.getpid())
            victims.append(workers[0] if victim == "worker" else server)
            send_signal(victims)

    callbacks = SweepCallbacks(on_status=kill_once)
    outcome = run_sweep(sweep_spec(), tmp_path / "sweep", placement=PLACEMENT, callbacks=callbacks)
    assert victims
    assert outcome == SweepOutcome(done=4, failed=0)
    assert read_records(tmp_path / "sweep") == read_records(undisturbed)


def test_a_killed_sweep_leaves_no_process_and_resumes(
    undisturbed: Path, tmp_path: Path, warm_python: WarmPython, domainwise: Cli
) -> None:
    process = start_sweep(warm_python, tmp_path / "sweep")
    server, workers = find_workers(process.pid)
    assert len(workers) == 2
    send_signal([process.pid])
    assert process.wait() == -signal.SIGKILL
    deadline = time.monotonic() + 60
    while remaining := [pid for pid in (server, *workers) if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, f"processes {remaining} outlived the sweep"
        time.sleep(0.01)
    outcome = domainwise(*sweep_words(tmp_path / "sweep"))
    assert outcome.code == 0, outcome.err
    assert read_records(tmp_path / "sweep") == read_records(undisturbed)


def test_a_running_sweep_keeps_others_out_saves_on_ctrl_c_and_resumes(
    undisturbed: Path, tmp_path: Path, warm_python: WarmPython, domainwise: Cli
) -> None:
    folder = tmp_path / "sweep"
    process = start_sweep(warm_python, folder)
    server, workers = find_workers(process.pid)
    send_signal(workers, signal.SIGSTOP)  # so that the runs do not finish meanwhile
    second = domainwise(*sweep_words(folder))
    assert second.code == 2
    assert f"a sweep is already running in {folder}: process {process.pid} on " in second.err
    assert second.err.count("\n") == 1
    status = domainwise("sweep", "status", folder)
    assert len(re.findall(r"^running, \d+ steps recorded: ", status.out, re.MULTILINE)) == 2
    # A lock lasts as long as any process has its file open, so only the process that took it may.
    lock = str(folder / ".lock")
    assert [lock in open_files(pid) for pid in (process.pid, server, *workers)] == [True, False, False, False]

    process.interrupt()
    send_signal(workers, signal.SIGCONT)
    assert process.wait() == 130
    assert process.err.splitlines()[-1].endswith("of 4 runs are done; rerun the same command to resume")
    assert "Traceback" not in process.err
    resumed = domainwise(*sweep_words(folder))
    assert resumed.code == 0, resumed.err
    assert read_records(folder) == read_records(undisturbed)


def test_a_full_disk_fails_the_runs_and_they_can_be_retried(
    undisturbed: Path, tmp_path: Path, warm_python: WarmPython, domainwise: Cli
) -> None:
    folder = tmp_path / "sweep"
    # Checkpoints are larger than this; configs and records are not.
    process = warm_python.start("-m", "domainwise", *sweep_words(folder), max_size=60_000)
    assert process.wait() == 1
    assert "failed: 4" in process.out
    assert "Traceback" not in process.err
    assert "File too large" in (folder / RUNS[0] / "failed.txt").read_text()
    assert not list(folder.glob("*/.*.partial"))
    assert domainwise(*sweep_words(folder)).code == 1
    retried = domainwise(*sweep_words(folder, "--retry-failed"))
    assert retried.code == 0, retried.err
    assert read_records(folder) == read_records(undisturbed)
    assert not list(folder.glob("*/failed.txt"))


def test_an_incomplete_last_record_is_repeated(undisturbed: Path, tmp_path: Path, domainwise: Cli) -> None:
    folder = tmp_path / "sweep"
    shutil.copytree(undisturbed, folder)
    run = RunFolder(folder / RUNS[1])
    run.done_file.unlink()
    with run.records_file.open("a") as file:
        file.write('{"schema": 1, "step": 4')
    assert domainwise(*sweep_words(folder)).code == 0
    assert read_records(folder) == read_records(undisturbed)


def write_method(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a method whose updates raise or worse, where Python finds it."""
    lines = ["import os", "from domainwise.algorithms import ALGORITHMS", "class Faulty(ALGORITHMS['erm']):"]
    folder.mkdir()
    (folder / f"{folder.name}.py").write_text("\n".join([*lines, "    def update(self, batches):", f"        {body}"]))
    monkeypatch.syspath_prepend(folder)


def test_a_run_that_raises_is_reported_and_the_others_continue(
    tmp_path: Path, domainwise: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_method(tmp_path / "raising", "raise ZeroDivisionError('nothing to divide by')", monkeypatch)
    spec = sweep_spec(5, ("erm", "mat", "raising:Faulty"))
    outcome = domainwise(*sweep_words(tmp_path / "sweep", spec=spec))
    assert outcome.code == 1
    assert "done: 4 of 6 runs" in outcome.out
    status = domainwise("sweep", "status", tmp_path / "sweep")
    failures = [line for line in status.out.splitlines() if line.startswith("failed: ")]
    assert len(failures) == 2
    assert all(line.endswith("ZeroDivisionError: nothing to divide by") for line in failures)
    assert "Traceback" in next((tmp_path / "sweep").glob("*faulty*draw0*/failed.txt")).read_text()


def test_a_run_whose_process_always_dies_fails_after_three_attempts(
    tmp_path: Path, domainwise: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_method(tmp_path / "deadly", "os.kill(os.getpid(), 9)", monkeypatch)
    outcome = domainwise(*sweep_words(tmp_path / "sweep", spec=sweep_spec(5, ("deadly:Faulty",), draws=1)))
    assert outcome.code == 1
    assert "its process died 3 times, last by signal 9, SIGKILL" in outcome.err


def test_a_different_config_in_the_folder_is_refused(undisturbed: Path, tmp_path: Path, domainwise: Cli) -> None:
    folder = tmp_path / "sweep"
    shutil.copytree(undisturbed, folder)
    other = domainwise(*sweep_words(folder, spec=sweep_spec(101)))
    assert other.code == 2
    assert f"the sweep in {folder} was started with steps 100, not 101" in other.err
    # A run whose config was edited fails alone.
    run = RunFolder(folder / RUNS[0])
    config = json.loads(run.config_file.read_text())
    config["config"]["batch_size"] = 17
    run.config_file.write_text(json.dumps(config))
    run.done_file.unlink()
    outcome = domainwise(*sweep_words(folder))
    assert outcome.code == 1
    assert "contains a different run: batch_size is 17 there and 16 here" in outcome.err
