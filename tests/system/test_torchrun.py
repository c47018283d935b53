"""One run over several processes is the run of one: same numbers, one folder, and no process left waiting."""

import json
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from run_outcome import assert_identical, read_outcome
from shared_runs import EXACT, INEXACT, LONG, SMALL, make_config
from warm_python import WarmProcess, WarmPython

from domainwise import train
from easy_images import DOMAINS, write_easy_images

TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
SHARED_RUNS = Path(__file__).with_name("shared_runs.py")
FILES = ["best.safetensors", "checkpoint.pt", "config.json", "done", "last.safetensors", "records.jsonl"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, warm_python: WarmPython) -> Path:
    """A folder with all cases, trained by two processes."""
    folder = tmp_path_factory.mktemp("shared")
    process = warm_python.start(*TORCHRUN, SHARED_RUNS, folder)
    assert process.wait() == 0, process.err
    return folder


def train_words(case: dict[str, Any], output: Path) -> list[str]:
    """Return the command line of a case."""
    settings = {**SMALL, **case, "output": output}
    words = ["-m", "domainwise", "train"]
    for option, name in (("-H", "hparams"), ("--dataset-option", "dataset_options")):
        for key, value in settings.pop(name, {}).items():
            words += [option, f"{key}={value}"]
    for key, value in settings.items():
        option = f"--{key.replace('_', '-')}"
        words += [option] if value is True else [option, str(value)]
    return words


def read_observations(shared: Path, rank: int) -> dict[str, Any]:
    observations: dict[str, Any] = json.loads((shared / f"rank{rank}.json").read_text())
    return observations


def assert_close(a: Any, b: Any) -> None:
    """Check that two nested values are equal up to rounding."""
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for key in a:
            assert_close(a[key], b[key])
    elif isinstance(a, list):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_close(one, other)
    elif isinstance(a, float | torch.Tensor):
        torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), atol=2e-5, rtol=1e-4)
    else:
        assert a == b


@pytest.mark.parametrize("name", EXACT)
def test_two_processes_end_where_one_does(name: str, shared: Path, tmp_path: Path) -> None:
    train(make_config(EXACT[name], tmp_path / "alone"))
    together, alone = read_outcome(shared / name), read_outcome(tmp_path / "alone")
    assert together["files"] == FILES
    assert_close(together["records"], alone["records"])
    assert_close(together["weights"], alone["weights"])
    perturbation = {key for key in alone["checkpoint"]["algorithm"] if key.startswith("perturbation.")}
    assert bool(perturbation) == (name.split()[0] in ("at", "uat", "mat", "ldat"))
    for key in perturbation - {"perturbation._extra_state"}:
        assert_close(together["checkpoint"]["algorithm"][key], alone["checkpoint"]["algorithm"][key])
    assert [read_observations(shared, rank)[name] for rank in (0, 1)] == [{"end": "3 records", "notes": []}] * 2


def test_methods_that_compare_samples_of_a_batch_warn_once(shared: Path) -> None:
    shard = "its own 4 of 8 images per domain"
    notes = {name: read_observations(shared, 0)[name]["notes"] for name in INEXACT}
    assert notes == {
        "coral": [f"coral compares the samples of a batch: each of 2 processes uses {shard}"],
        "at released": [f"at compares the samples of a batch: each of 2 processes uses {shard}"],
        "live": [f"batch norm is live: each of 2 processes normalizes over {shard}"],
    }
    assert not any(read_observations(shared, 1)[name]["notes"] for name in INEXACT)


def test_batch_norm_statistics_are_means_over_processes(shared: Path, tmp_path: Path) -> None:
    train(make_config(INEXACT["live"], tmp_path / "alone"))
    alone, together = (
        safetensors.torch.load_file(folder / "last.safetensors") for folder in (tmp_path / "alone", shared / "live")
    )
    # The mean of the means of equal shards is the mean of the batch.
    assert_close(together["featurizer.1.running_mean"], alone["featurizer.1.running_mean"])
    assert together["featurizer.1.running_mean"].abs().max() > 1e-3


def test_every_process_observes_the_end_and_only_the_first_has_callbacks(shared: Path) -> None:
    first, second = read_observations(shared, 0), read_observations(shared, 1)
    assert (first["has callbacks"], second["has callbacks"]) == (True, False)
    ends = {name: first[name]["end"] for name in ("done", "different run", "diverged", "stopped")}
    assert ends == {name: second[name]["end"] for name in ends}
    assert ends["done"] == "3 records"
    assert ends["different run"].startswith(f"DomainwiseError: {shared / 'erm'} contains a different run: ")
    assert ends["diverged"].startswith("DomainwiseError: training diverged: the loss is ")
    # Only the second process was asked to stop, after the update that follows the first record.
    assert ends["stopped"] == "RunInterrupted: stopped after 2 steps"
    assert torch.load(shared / "stopped" / "checkpoint.pt", weights_only=True)["step"] == 2


def run_until(
    warm_python: WarmPython, words: list[str], folder: Path, stop: Callable[[WarmProcess], None]
) -> WarmProcess:
    """Start torchrun, stop it after a new record, and wait until it has ended, which takes less than 30 s."""
    records = folder / "records.jsonl"
    before = records.read_text() if records.exists() else ""
    process = warm_python.start(*TORCHRUN, *words)
    process.wait_until(lambda: records.exists() and records.read_text() != before)
    stop(process)
    assert process.wait(30) != 0
    assert not (folder / "done").exists()
    return process


def interrupt_agent(torchrun: WarmProcess) -> None:
    os.kill(torchrun.pid, signal.SIGINT)


def terminate_agent(torchrun: WarmProcess) -> None:
    os.kill(torchrun.pid, signal.SIGTERM)


def kill_rank(rank: int, torchrun: WarmProcess) -> None:
    children = Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children").read_text().split()
    (child,) = (pid for pid in children if f"\0RANK={rank}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes())
    os.kill(int(child), signal.SIGKILL)


def start_ranks(
    warm_python: WarmPython, words: list[str], count: int = 2, die: dict[int, str] | None = None
) -> list[WarmProcess]:
    """Run a command in several processes without torchrun, so that nothing stops one when another fails.

    Args:
        die: when the process of a rank dies.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(count)}
    processes = [
        warm_python.start(
            *words, env={**rendezvous, "RANK": str(rank), "LOCAL_RANK": str(rank)}, die=(die or {}).get(rank, "")
        )
        for rank in range(count)
    ]
    for process in processes:
        process.wait(60)
    return processes


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_torchrun_ends_when_the_first_process_is_killed(tmp_path: Path, warm_python: WarmPython) -> None:
    words = train_words({**LONG, "steps": 3000, "record_every": 5}, tmp_path / "run")
    killed = run_until(warm_python, words, tmp_path / "run", partial(kill_rank, 0))
    assert killed.err.count("error: process 1 of 2 lost its connection to another, which has ended") == 1


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")
def test_stopped_killed_and_resumed_it_ends_with_the_same_numbers(tmp_path: Path, warm_python: WarmPython) -> None:
    uninterrupted = warm_python.start(*TORCHRUN, *train_words(LONG, tmp_path / "uninterrupted"))
    assert uninterrupted.wait() == 0, uninterrupted.err
    folder = tmp_path / "run"
    words = train_words(LONG, folder)
    stopped = run_until(warm_python, words, folder, interrupt_agent)
    assert stopped.err.count("rerun the same command to resume") == 1
    assert "compares the samples of a batch" not in stopped.err  # attacks see the samples of all processes
    # It saved where it was, not where the last record was.
    checkpoint = torch.load(folder / "checkpoint.pt", weights_only=True)
    assert len(checkpoint["measured"]) == (checkpoint["step"] - 1) % 50 > 0
    for rank in (1, 0):
        killed = run_until(warm_python, words, folder, partial(kill_rank, rank))
        assert killed.err.count(f"error: process {1 - rank} of 2 lost its connection to another, which has ended") == 1
    terminated = run_until(warm_python, words, folder, terminate_agent)
    assert terminated.err.count("rerun the same command to resume") == 1
    processes = start_ranks(warm_python, words)
    assert [process.poll() for process in processes] == [0, 0], processes[0].err
    assert [process.out.count("done: ") for process in processes] == [1, 0]
    assert_identical(read_outcome(folder), read_outcome(tmp_path / "uninterrupted"))


# Of 13 images per domain 2 are held out, which is fewer than processes, and no part can be shared equally.
UNEVEN: dict[str, Any] = {
    "dataset_options": {"image_size": 16, "train_count": 13, "test_count": 7, "shifts": (0, 8)},
    "batch_size": 6,
    "lr_schedule": "plateau",
}
KILLED: dict[str, Any] = {
    **UNEVEN,
    "algorithm": "mat",
    "hparams": {"weights": "sample", "count": 3},
    "dropout": 0.1,
    "steps": 25,
    "record_every": 10,
}


def test_the_example_of_distributed_data_parallel(tmp_path: Path, warm_python: WarmPython) -> None:
    script = Path(__file__).parents[2] / "docs" / "examples" / "ddp_train.py"
    images = write_easy_images(tmp_path / "photos", count=12)
    options = {"--image-size": 32, "--batch-size": 12, "--epochs": 3, "--model": "mobilenet_v2"}
    options |= {"--epsilon": "8/255 rms", "--output": tmp_path / "model.pt"}
    words = [script, images, *(word for option in options.items() for word in option)]
    processes = start_ranks(warm_python, list(map(str, words)))
    assert [process.poll() for process in processes] == [0, 0], processes[0].err
    radii = [float(radius) for radius in re.findall(r"loss [\d.]+, radius ([\d.]+)", processes[0].out)]
    assert len(radii) == 3
    assert radii[-1] == round(8 / 255 * (3 * 32 * 32) ** 0.5, 3)
    assert processes[1].out == ""
    saved = torch.load(tmp_path / "model.pt", weights_only=True)
    assert saved["perturbation"]["deltas"].shape[0] == len(DOMAINS)
    assert saved["perturbation"]["_extra_state"]["updates"] == 3 * (3 * 2 * 12 // 2 // 12)


def test_three_processes_with_unequal_shares_end_where_one_does(tmp_path: Path, warm_python: WarmPython) -> None:
    case = {**UNEVEN, "algorithm": "erm", "attack_radius": 0.5}
    processes = start_ranks(warm_python, train_words(case, tmp_path / "together"), count=3)
    assert [process.poll() for process in processes] == [0, 0, 0], processes[0].err
    train(make_config(case, tmp_path / "alone"))
    together, alone = read_outcome(tmp_path / "together"), read_outcome(tmp_path / "alone")
    assert_close(together["records"], alone["records"])
    assert_close(together["weights"], alone["weights"])


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, warm_python: WarmPython) -> dict[str, Any]:
    """The outcome of the run of three processes that no one kills."""
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    processes = start_ranks(warm_python, train_words(KILLED, folder), count=3)
    assert [process.poll() for process in processes] == [0, 0, 0], processes[0].err
    return read_outcome(folder)


@pytest.mark.parametrize("victim", [0, 1])
def test_the_death_of_a_process_ends_the_others_with_one_line(
    victim: int, uninterrupted: dict[str, Any], tmp_path: Path, warm_python: WarmPython
) -> None:
    words = train_words(KILLED, tmp_path / "run")
    start = time.monotonic()
    processes = start_ranks(warm_python, words, count=3, die={victim: "after-step 15.3"})
    assert time.monotonic() - start < 30
    for rank, process in enumerate(processes):
        if rank == victim:
            assert process.poll() == -signal.SIGKILL
            continue
        assert process.poll() == 2
        lost = f"error: process {rank} of 3 lost its connection to another, which has ended"
        assert process.err.splitlines()[-1] == f"{lost}; rerun the same command to resume"
        assert "Traceback" not in process.err
        assert rank == 0 or (process.out + process.err).count("\n") == 1
    assert torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True)["step"] == 11
    processes = start_ranks(warm_python, words, count=3)
    assert [process.poll() for process in processes] == [0, 0, 0], processes[0].err
    assert_identical(read_outcome(tmp_path / "run"), uninterrupted)


def test_a_batch_that_cannot_be_sharded_is_a_one_line_error(tmp_path: Path, warm_python: WarmPython) -> None:
    processes = start_ranks(warm_python, train_words({"algorithm": "erm", "batch_size": 7}, tmp_path / "run"))
    assert [process.poll() for process in processes] == [2, 2]
    error = "error: batch size 7 is not divisible by 2 processes; choose a multiple of 2\n"
    assert [process.out + process.err for process in processes] == [error, ""]
    assert not (tmp_path / "run").exists()


def test_a_folder_with_a_different_run_ends_all_processes(shared: Path, warm_python: WarmPython) -> None:
    before = read_outcome(shared / "erm")
    processes = start_ranks(warm_python, train_words({"algorithm": "mat"}, shared / "erm"))
    assert [process.poll() for process in processes] == [2, 2]
    first, second = (process.out + process.err for process in processes)
    assert first.startswith(f"error: {shared / 'erm'} contains a different run: ")
    assert first.count("\n") == 1
    assert second == ""
    assert_identical(read_outcome(shared / "erm"), before)
