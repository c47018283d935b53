"""Worker processes share the machine: processors are divided among them, GPUs dealt out, data made once a trial."""

import os
from pathlib import Path

import pytest
import torch

from domainwise.algorithms import ALGORITHMS
from domainwise.algorithms.base import Batches
from domainwise.errors import DomainwiseError, RunInterrupted
from domainwise.sweeps.engine import EngineCallbacks, available_cpus
from domainwise.sweeps.local_engine import run_all
from domainwise.training import RunConfig

OPTIONS = {"train_count": 60, "test_count": 20, "image_size": 16, "shifts": (0, 8)}


class Telling(ALGORITHMS["erm"]):  # type: ignore[name-defined,misc]
    """ERM whose loss tells which process it is in, which GPUs that sees, and its threads."""

    def update(self, batches: Batches) -> dict[str, float]:
        gpu = float(os.environ.get("CUDA_VISIBLE_DEVICES", "-1"))
        return {"loss": 1.0, "process": float(os.getpid()), "gpu": gpu, "threads": float(torch.get_num_threads())}


class Wrong(ALGORITHMS["erm"]):  # type: ignore[name-defined,misc]
    def update(self, batches: Batches) -> dict[str, float]:
        raise DomainwiseError("this is\nnot right")


def configs(folder: Path, algorithm: type, count: int, steps: int = 2) -> list[RunConfig]:
    return [
        RunConfig(
            algorithm=algorithm,
            dataset_options=OPTIONS,
            steps=steps,
            batch_size=8,
            device="cpu",
            output=folder / str(number),
        )
        for number in range(count)
    ]


def test_workers_are_used_again_and_share_processors_and_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    results = run_all(configs(tmp_path, Telling, 6), workers=2)
    terms = [result.last["terms"] for result in results if result is not None]
    assert len(terms) == 6
    processes = {term["process"]: term["gpu"] for term in terms}
    assert len(processes) <= 2
    assert os.getpid() not in processes
    assert set(processes.values()) <= {3.0, 5.0}
    assert len(set(processes.values())) == len(processes)
    assert {term["threads"] for term in terms} == {max(1, available_cpus() // 2)}
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3,5"


def test_without_anyone_to_tell_a_failed_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DomainwiseError, match=r"^this is not right$"):
        run_all(configs(tmp_path, Wrong, 1), workers=1)


def test_stopping_between_steps_saves(tmp_path: Path) -> None:
    steps: list[int] = []
    callbacks = EngineCallbacks(on_progress=lambda run, step: steps.append(step), should_stop=lambda: bool(steps))
    with pytest.raises(RunInterrupted, match="0 of 1 runs are done"):
        run_all(configs(tmp_path, Telling, 1, steps=1_000_000), callbacks, workers=1)
    checkpoint = torch.load(tmp_path / "0" / "checkpoint.pt", weights_only=True)
    assert checkpoint["step"] >= steps[0]
