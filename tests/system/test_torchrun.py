"""One run over two processes is the run of one: same numbers, one folder, and no process is left waiting."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from shared_runs import EXACT, INEXACT, LONG, SMALL, config
from test_kill import assert_identical, outcome

from domainwise import train

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
SHARED_RUNS = Path(__file__).with_name("shared_runs.py")
FILES = [".lock", "best.safetensors", "checkpoint.pt", "config.json", "done", "last.safetensors", "records.jsonl"]
PATIENCE = 300


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all cases, trained by two processes."""
    folder = tmp_path_factory.mktemp("shared")
    trained = subprocess.run([*TORCHRUN, str(SHARED_RUNS), str(folder)], capture_output=True, text=True, timeout=600)
    assert trained.returncode == 0, trained.stderr
    return folder


def command(case: dict[str, Any], output: Path) -> list[str]:
    """The command line of a case."""
    settings = {**SMALL, **case, "output": output}
    words = ["-m", "domainwise", "train"]
    for option, name in (("-H", "hparams"), ("--dataset-option", "dataset_options")):
        for key, value in settings.pop(name, {}).items():
            words += [option, f"{key}={value}"]
    for key, value in settings.items():
        words += [f"--{key.replace('_', '-')}", str(value)]
    return words


def told_to(shared: Path, rank: int) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((shared / f"rank{rank}.json").read_text())
    return told


def assert_close(one: Any, other: Any) -> None:
    """Equal but for rounding, through whatever nesting."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_close(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for mine, its in zip(one, other, strict=True):
            assert_close(mine, its)
    elif isinstance(one, float | torch.Tensor):
        torch.testing.assert_close(torch.as_tensor(one), torch.as_tensor(other), atol=2e-5, rtol=1e-4)
    else:
        assert one == other


@pytest.mark.parametrize("name", EXACT)
def test_two_processes_end_where_one_does(name: str, shared: Path, tmp_path: Path) -> None:
    train(config(EXACT[name], tmp_path / "alone"))
    together, expected = outcome(shared / name), outcome(tmp_path / "alone")
    assert sorted(file.name for file in (shared / name).iterdir()) == FILES
    assert_close(together["records"], expected["records"])
    assert_close(together["weights"], expected["weights"])
    perturbation = {key for key in expected["checkpoint"]["algorithm"] if key.startswith("perturbation.")}
    assert bool(perturbation) == (name.split()[0] in ("at", "uat", "mat", "ldat"))
    for key in perturbation - {"perturbation._extra_state"}:
        assert_close(together["checkpoint"]["algorithm"][key], expected["checkpoint"]["algorithm"][key])
    assert [told_to(shared, rank)[name] for rank in (0, 1)] == [{"end": "3 records", "notes": []}] * 2


def test_what_looks_across_a_batch_says_so_once(shared: Path) -> None:
    share = "2 processes uses its own 4 of 8 images per domain"
    notes = {name: told_to(shared, 0)[name]["notes"] for name in INEXACT}
    assert notes == {
        "coral": [f"coral compares the samples of a batch: each of {share}"],
        "at released": [f"at compares the samples of a batch: each of {share}"],
        "live": ["batch norm is live: each of 2 processes normalizes over its own 4 of 8 images per domain"],
    }
    assert not any(told_to(shared, 1)[name]["notes"] for name in INEXACT)


def test_statistics_of_batch_norm_are_means_over_processes(shared: Path, tmp_path: Path) -> None:
    train(config(INEXACT["live"], tmp_path / "alone"))
    alone, together = (
        safetensors.torch.load_file(folder / "last.safetensors") for folder in (tmp_path / "alone", shared / "live")
    )
    # The mean of equal shares' means is the mean of the whole.
    assert_close(together["featurizer.1.running_mean"], alone["featurizer.1.running_mean"])
    assert together["featurizer.1.running_mean"].abs().max() > 1e-3


def test_every_process_hears_how_a_run_ended_and_the_first_alone_is_called_back(shared: Path) -> None:
    first, second = told_to(shared, 0), told_to(shared, 1)
    assert (first["has called back"], second["has called back"]) == (True, False)
    ends = {name: first[name]["end"] for name in ("done", "another run", "diverged", "stopped")}
    assert ends == {name: second[name]["end"] for name in ends}
    assert ends["done"] == "3 records"
    assert ends["another run"].startswith(f"DomainwiseError: {shared / 'erm'} contains a different run: ")
    assert ends["diverged"].startswith("DomainwiseError: training diverged: the loss is ")
    # The second process alone was asked to stop, after the update that follows the first record.
    assert ends["stopped"] == "RunInterrupted: stopped after 2 steps"
    assert torch.load(shared / "stopped" / "checkpoint.pt", weights_only=True)["step"] == 2


def run_until(words: list[str], folder: Path, stop: Callable[[subprocess.Popen[str]], None]) -> str:
    """Start torchrun, stop it in some way after a new record, and return what it and its processes said."""
    records = folder / "records.jsonl"
    before = records.read_text() if records.exists() else ""
    with subprocess.Popen([*TORCHRUN, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        deadline = time.monotonic() + PATIENCE
        while not records.exists() or records.read_text() == before:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        stop(process)
        said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert not (folder / "done").exists()
    return said


def kill_the_second_rank(torchrun: subprocess.Popen[str]) -> None:
    children = Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children").read_text().split()
    (second,) = (pid for pid in children if b"\0RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes())
    os.kill(int(second), signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="finds the processes under /proc")
def test_stopped_killed_and_resumed_it_ends_with_the_same_numbers(shared: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    words = command(LONG, folder)
    said = run_until(words, folder, lambda process: process.send_signal(signal.SIGINT))
    assert said.count("rerun the same command to resume") == 1
    assert said.count("note: mat compares the samples of a batch") == 1
    # It saved where it was, not where the last record was.
    saved = torch.load(folder / "checkpoint.pt", weights_only=True)
    assert len(saved["measured"]) == (saved["step"] - 1) % 50 > 0
    run_until(words, folder, kill_the_second_rank)
    last = subprocess.run([*TORCHRUN, *words], capture_output=True, text=True, timeout=PATIENCE)
    assert last.returncode == 0, last.stderr
    assert last.stdout.count("done: ") == 1
    assert_identical(outcome(folder), outcome(shared / "long"))


def started_by_hand(words: list[str]) -> tuple[list[int], str]:
    """Exit codes and all output of two processes that nobody stops when the other fails."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    processes = [
        subprocess.Popen(
            [sys.executable, *words],
            env={**os.environ, **meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=PATIENCE)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], "".join(said)


def test_a_batch_that_cannot_be_shared_is_one_line(tmp_path: Path) -> None:
    codes, said = started_by_hand(command({"algorithm": "erm", "batch_size": 7}, tmp_path / "run"))
    assert codes == [2, 2]
    assert said == ("error: batch size 7 is not divisible by 2 processes; choose a multiple of 2\n")
    assert not (tmp_path / "run").exists()


def test_a_folder_with_another_run_ends_all_processes(shared: Path) -> None:
    before = outcome(shared / "erm")
    codes, said = started_by_hand(command({"algorithm": "mat"}, shared / "erm"))
    assert codes == [2, 2]
    assert said.startswith(f"error: {shared / 'erm'} contains a different run: ")
    assert said.count("\n") == 1
    assert_identical(outcome(shared / "erm"), before)
