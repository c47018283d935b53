"""Worker processes: forked from a server, reused from run to run, with their share of CPUs and GPUs."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sweep_processes import find_workers

from domainwise.algorithms import ALGORITHMS
from domainwise.algorithms.base import Batches
from domainwise.data import Dataset, silhouettes
from domainwise.errors import DomainwiseError, RunInterrupted
from domainwise.sweeps.engine import EngineCallbacks, available_cpus
from domainwise.sweeps.fork_server import start_fork_server
from domainwise.sweeps.local_engine import run_all
from domainwise.training import RunConfig, train

OPTIONS = {"train_count": 60, "test_count": 20, "image_size": 16, "shifts": (0, 8)}


class Reporting(ALGORITHMS["erm"]):  # type: ignore[name-defined,misc]
    """ERM that reports its process, GPU, threads and a variable of the environment as terms of the loss."""

    def update(self, batches: Batches) -> dict[str, float]:
        super().update(batches)
        return {
            "loss": 1.0,
            "process": float(os.getpid()),
            "gpu": float(os.environ.get("CUDA_VISIBLE_DEVICES", "-1")),
            "threads": float(torch.get_num_threads()),
            "is_cuda_initialized": float(torch.cuda.is_initialized()),
            "variable": float(os.environ.get("DOMAINWISE_TEST", "-1")),
        }


class Raising(ALGORITHMS["erm"]):  # type: ignore[name-defined,misc]
    def update(self, batches: Batches) -> dict[str, float]:
        raise DomainwiseError("this is\nnot right")


def build_and_log(seed: int, log: str) -> Dataset:
    with open(log, "a") as file:
        file.write(f"{os.getpid()} {seed}\n")
    return silhouettes(seed, **OPTIONS)  # type: ignore[arg-type]


def make_configs(folder: Path, algorithm: type, count: int, steps: int = 2, threads: int | None = 1) -> list[RunConfig]:
    return [
        RunConfig(
            algorithm=algorithm,
            dataset_options=OPTIONS,
            steps=steps,
            batch_size=8,
            device="cpu",
            threads=threads,
            output=folder / str(number),
        )
        for number in range(count)
    ]


def test_workers_are_reused_and_share_cpus_and_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start_fork_server()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    # Set after the server has started.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setenv("DOMAINWISE_TEST", "7")
    results = run_all(make_configs(tmp_path, Reporting, 6, threads=None), workers=2)
    terms = [result.last["terms"] for result in results if result is not None]
    assert len(terms) == 6
    gpus = {term["process"]: term["gpu"] for term in terms}
    assert len(gpus) <= 2
    assert os.getpid() not in gpus
    assert set(gpus.values()) <= {3.0, 5.0}
    assert len(set(gpus.values())) == len(gpus)
    assert {term["threads"] for term in terms} == {max(1, available_cpus() // 2)}
    assert {term["variable"] for term in terms} == {7.0}
    assert {term["is_cuda_initialized"] for term in terms} == {0.0}
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3,5"
    # The last run of a sweep has as many threads as it would have had next to others.
    (last,) = run_all(make_configs(tmp_path / "last", Reporting, 1, threads=None), EngineCallbacks(total=6), workers=2)
    assert last is not None
    assert last.last["terms"]["threads"] == max(1, available_cpus() // 2)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (alone,) = run_all(make_configs(tmp_path / "alone", Reporting, 1, threads=None), workers=1)
    assert alone is not None
    assert alone.last["terms"]["threads"] == 1


def test_the_server_has_imported_torch_and_started_no_thread(tmp_path: Path) -> None:
    run_all(make_configs(tmp_path, Reporting, 1), workers=1)
    server, workers = find_workers(os.getpid())
    assert workers == []
    maps = Path(f"/proc/{server}/maps").read_text()
    assert "libtorch_cpu" in maps
    # Polars starts threads when it is imported, and OpenBLAS if there are more than OMP_NUM_THREADS=1 allows.
    assert "polars" not in maps
    if os.environ.get("OMP_NUM_THREADS") == "1":
        assert len(list(Path(f"/proc/{server}/task").iterdir())) == 1


def test_a_worker_computes_with_several_threads_as_this_process_does(tmp_path: Path) -> None:
    configs = [
        replace(make_configs(tmp_path, ALGORITHMS["mat"], 1, threads=2)[0], output=tmp_path / name)
        for name in ("worker", "here")
    ]
    (result,) = run_all(configs[:1], workers=1)
    assert result is not None
    train(configs[1])
    for which in ("best", "last"):
        first, second = (tmp_path / name / f"{which}.safetensors" for name in ("worker", "here"))
        assert first.read_bytes() == second.read_bytes()


def test_a_worker_builds_the_data_of_consecutive_runs_once(tmp_path: Path) -> None:
    configs = [
        RunConfig(
            dataset=build_and_log,
            dataset_options={"log": str(tmp_path / "log")},
            algorithm="erm",
            trial_seed=seed,
            steps=1,
            batch_size=8,
            device="cpu",
            threads=1,
            output=tmp_path / f"{seed}-{number}",
        )
        for seed in (0, 1)
        for number in range(3)
    ]
    run_all(configs, workers=1)
    lines = (tmp_path / "log").read_text().splitlines()
    assert [line.split()[1] for line in lines] == ["0", "1"]


def test_a_failed_run_raises_without_a_callback(tmp_path: Path) -> None:
    with pytest.raises(DomainwiseError, match=r"^this is not right$"):
        run_all(make_configs(tmp_path, Raising, 1), workers=1)


def test_stopping_between_records_saves(tmp_path: Path) -> None:
    steps: list[int] = []
    callbacks = EngineCallbacks(on_progress=lambda run, step: steps.append(step), should_stop=lambda: bool(steps))
    with pytest.raises(RunInterrupted, match="0 of 1 runs are done"):
        run_all(make_configs(tmp_path, Reporting, 1, steps=1_000_000), callbacks, workers=1)
    checkpoint = torch.load(tmp_path / "0" / "checkpoint.pt", weights_only=True)
    assert checkpoint["step"] >= steps[0]
