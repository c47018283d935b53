"""Sweeps on Ray: the same numbers as on this machine's processes, and workers and nodes that die."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sweep_faults import kill, processes, records, sweep

from domainwise.sweeps import local_engine as local
from domainwise.sweeps.engine import EngineCallbacks
from domainwise.training import RunConfig, RunResult

# Ray makes its workers the last to get a processor, and beside other tests they would hardly get one.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112

ray = pytest.importorskip("ray", reason="Ray is not installed")
ray_engine = pytest.importorskip("domainwise.sweeps.ray_engine")


def configs(folder: Path, steps: int = 300) -> list[RunConfig]:
    return [
        RunConfig(
            dataset_options={"train_count": 120, "test_count": 20, "image_size": 16, "shifts": (0, 8)},
            algorithm=algorithm,
            trial_seed=seed,
            steps=steps,
            record_every=20,
            batch_size=16,
            device="cpu",
            threads=1,
            output=folder / f"{algorithm}{seed}",
        )
        for seed in (0, 1)
        for algorithm in ("erm", "mat")
    ]


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("local")
    local.run_all(configs(folder), workers=2)
    return records(folder)


class Killer:
    """Does something once, at the first word of a run that is under way."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.act, self.has_acted = act, False

    def __call__(self, run: int, step: int) -> None:
        if not self.has_acted and step > 20:
            self.has_acted = True
            self.act()


def test_a_killed_worker_is_replaced_and_its_run_goes_on_from_files_that_came_back(
    tmp_path: Path, expected: dict[str, Any]
) -> None:
    def act() -> None:
        (victim, *_) = processes(os.getpid(), "ray::_train")
        kill([victim])

    killer = Killer(act)
    done: list[RunResult | None] = ray_engine.run_all(
        configs(tmp_path), EngineCallbacks(on_progress=killer), workers=2, results="pulled"
    )
    assert killer.has_acted
    assert all(result is not None for result in done)
    assert records(tmp_path) == expected
    for run in tmp_path.iterdir():
        names = {"best.safetensors", "checkpoint.pt", "config.json", "done", "last.safetensors", "records.jsonl"}
        assert {file.name for file in run.iterdir()} == names


@pytest.fixture
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    yield made
    made.shutdown()


def test_a_whole_node_that_dies_costs_nothing_but_time(tmp_path: Path, expected: dict[str, Any], cluster: Any) -> None:
    doomed = cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()

    def act() -> None:
        cluster.add_node(num_cpus=2)
        cluster.remove_node(doomed, allow_graceful=False)

    killer = Killer(act)
    done = ray_engine.run_all(
        configs(tmp_path), EngineCallbacks(on_progress=killer), workers=2, address=cluster.address, results="pulled"
    )
    assert killer.has_acted
    assert all(result is not None for result in done)
    assert records(tmp_path) == expected


def test_stopping_saves_and_going_on_ends_the_same(tmp_path: Path, expected: dict[str, Any]) -> None:
    from domainwise.errors import RunInterrupted

    began = time.monotonic()
    moved: list[int] = []
    with pytest.raises(RunInterrupted, match="of 4 runs are done"):
        ray_engine.run_all(
            configs(tmp_path),
            EngineCallbacks(on_progress=lambda run, step: moved.append(step), should_stop=lambda: bool(moved)),
            workers=2,
        )
    assert time.monotonic() - began < 100
    assert not all((tmp_path / config.folder().name / "done").exists() for config in configs(tmp_path))
    ray_engine.run_all(configs(tmp_path), workers=2)
    assert records(tmp_path) == expected


def test_the_command_line_gives_the_same_numbers_with_either_engine(tmp_path: Path) -> None:
    by_ray = sweep(tmp_path / "ray", "--engine", "ray", "--results", "shared", steps=30)
    assert by_ray.returncode == 0, by_ray.stderr
    by_processes = sweep(tmp_path / "local", steps=30)
    assert by_processes.returncode == 0, by_processes.stderr
    assert records(tmp_path / "ray") == records(tmp_path / "local")
    assert len(records(tmp_path / "ray")) == 4


def test_a_cluster_that_is_not_there(tmp_path: Path) -> None:
    outcome = sweep(tmp_path / "sweep", "--engine", "ray", "--address", "127.0.0.1:1", steps=5)
    assert outcome.returncode == 2
    assert "no Ray cluster can be reached at 127.0.0.1:1" in outcome.stderr
