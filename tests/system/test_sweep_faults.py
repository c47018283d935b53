"""Sweeps with real processes: killed, stopped, out of disk, started twice, damaged; and then given again."""

import json
import re
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from sweep_faults import RUNS, begun, command, kill, processes, records, sweep, wait_for

from domainwise.training import RunFolder

WORKER = "spawn_main"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same sweep with nothing in its way."""
    folder = tmp_path_factory.mktemp("undisturbed") / "sweep"
    outcome = sweep(folder)
    assert outcome.returncode == 0, outcome.stderr
    assert "done: 4 of 4 runs" in outcome.stdout
    assert sorted(records(folder)) == sorted(RUNS)
    return folder


def test_a_worker_that_is_killed_only_costs_the_steps_since_its_checkpoint(undisturbed: Path, tmp_path: Path) -> None:
    process = begun(tmp_path / "sweep")
    (victim, *_) = processes(process.pid, WORKER)
    kill([victim])
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert "done: 4 of 4 runs" in out
    assert records(tmp_path / "sweep") == records(undisturbed)


def test_a_sweep_that_is_killed_goes_on_and_its_workers_end_with_it(undisturbed: Path, tmp_path: Path) -> None:
    process = begun(tmp_path / "sweep")
    workers = processes(process.pid, WORKER)
    assert len(workers) == 2
    kill([process.pid])
    process.communicate()
    outcome = sweep(tmp_path / "sweep")
    assert outcome.returncode == 0, outcome.stderr
    assert records(tmp_path / "sweep") == records(undisturbed)
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def test_ctrl_c_saves_and_the_same_command_goes_on(undisturbed: Path, tmp_path: Path) -> None:
    process = begun(tmp_path / "sweep")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1].endswith("of 4 runs are done; rerun the same command to resume")
    assert sweep(tmp_path / "sweep").returncode == 0
    assert records(tmp_path / "sweep") == records(undisturbed)


def test_a_second_sweep_on_the_same_folder_is_told_who_is_there(tmp_path: Path) -> None:
    process = begun(tmp_path / "sweep", steps=100000)
    second = sweep(tmp_path / "sweep", steps=100000)
    status = subprocess.run(
        [sys.executable, "-m", "domainwise", "sweep", "status", str(tmp_path / "sweep")], capture_output=True, text=True
    )
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert second.returncode == 2
    assert f"a sweep is already running in {tmp_path / 'sweep'}: process {process.pid} on " in second.stderr
    assert second.stderr.count("\n") == 1
    assert len(re.findall(r"^running, \d+ steps recorded: ", status.stdout, re.MULTILINE)) == 2


def test_a_full_disk_fails_the_runs_and_they_can_be_tried_again(undisturbed: Path, tmp_path: Path) -> None:
    def small_files() -> None:
        # A checkpoint is larger than this; configs and records are not.
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))

    folder = tmp_path / "sweep"
    outcome = sweep(folder, preexec_fn=small_files)
    assert outcome.returncode == 1
    assert "failed: 4" in outcome.stdout
    assert "Traceback" not in outcome.stderr
    assert "File too large" in (folder / RUNS[0] / "failed.txt").read_text()
    assert not list(folder.glob("*/.*.partial"))
    untried = sweep(folder)
    assert untried.returncode == 1
    retried = sweep(folder, "--retry-failed")
    assert retried.returncode == 0, retried.stderr
    assert records(folder) == records(undisturbed)
    assert not list(folder.glob("*/failed.txt"))


def test_half_a_line_at_the_end_of_records_is_made_again(undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    shutil.copytree(undisturbed, folder)
    run = RunFolder(folder / RUNS[1])
    run.done_file.unlink()
    with run.records_file.open("a") as file:
        file.write('{"schema": 1, "step": 4')
    assert sweep(folder).returncode == 0
    assert records(folder) == records(undisturbed)


def test_a_run_that_raises_leaves_the_others_alone_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "my_methods.py").write_text(
        "from domainwise.algorithms import ALGORITHMS\n\n\n"
        "class Faulty(ALGORITHMS['erm']):\n"
        "    def update(self, batches):\n"
        "        if self.updates == 0:\n"
        "            raise ZeroDivisionError('nothing to divide by')\n"
    )
    words = ("--algorithm", "my_methods:Faulty", "--draws", "2")
    outcome = sweep(tmp_path / "sweep", *words, steps=30, cwd=tmp_path)
    assert outcome.returncode == 1
    assert "done: 4 of 6 runs" in outcome.stdout
    status = subprocess.run(
        [sys.executable, "-m", "domainwise", "sweep", "status", str(tmp_path / "sweep")], capture_output=True, text=True
    )
    failed = [line for line in status.stdout.splitlines() if line.startswith("failed: ")]
    assert len(failed) == 2
    assert all(line.endswith("ZeroDivisionError: nothing to divide by") for line in failed)
    assert "Traceback" in next((tmp_path / "sweep").glob("*faulty*draw0*/failed.txt")).read_text()


def test_another_config_in_the_folder_is_refused(undisturbed: Path, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    shutil.copytree(undisturbed, folder)
    other = sweep(folder, steps=201)
    assert other.returncode == 2
    assert f"the sweep in {folder} was started with settings" in other.stderr
    # A run whose config was changed by hand fails alone.
    run = RunFolder(folder / RUNS[0])
    config = json.loads(run.config_file.read_text())
    config["config"]["batch_size"] = 17
    run.config_file.write_text(json.dumps(config))
    run.done_file.unlink()
    outcome = sweep(folder)
    assert outcome.returncode == 1
    assert "contains a different run: batch_size is 17 there and 16 here" in outcome.stdout


def test_a_worker_that_always_dies_fails_its_run_after_three_times(tmp_path: Path) -> None:
    (tmp_path / "my_methods.py").write_text(
        "import os\n\nfrom domainwise.algorithms import ALGORITHMS\n\n\n"
        "class Deadly(ALGORITHMS['erm']):\n"
        "    def update(self, batches):\n"
        "        os.kill(os.getpid(), 9)\n"
    )
    spread = command(tmp_path / "sweep", "--draws", "1", steps=5)
    first = spread.index("erm")
    words = [*spread[:first], "my_methods:Deadly", *spread[first + 3 :]]
    outcome = subprocess.run(words, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert outcome.returncode == 1
    assert "its process died 3 times, last by signal 9, SIGKILL" in outcome.stdout


def test_wait_for_notices_a_sweep_that_ended(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.wait()
    with pytest.raises(AssertionError, match="the sweep ended"):
        wait_for(lambda: False, process)
