"""Sweeps on Ray: the same numbers as with the local engine, also when workers and nodes die."""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sweep_processes import (
    PLACEMENT,
    find_descendants,
    read_records,
    send_signal,
    sweep_spec,
    sweep_words,
)

from domainwise.errors import RunInterrupted
from domainwise.storage.sweep_folder import SweepFolder
from domainwise.sweeps import local_engine, ray_engine
from domainwise.sweeps.engine import EngineCallbacks
from domainwise.sweeps.runner import SweepOutcome, make_engine, run_sweep
from domainwise.sweeps.spec import SweepSpec
from domainwise.training import RunConfig
from easy_images import write_easy_images

# Ray gives its workers the lowest priority, and next to other tests they would hardly run.
os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112

ray = pytest.importorskip("ray", reason="Ray is not installed")


def make_configs(folder: Path, steps: int = 150) -> list[RunConfig]:
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
    local_engine.run_all(make_configs(folder), workers=2)
    return read_records(folder)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A cluster whose head node runs nothing, and one node with two CPUs."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    cluster.node = cluster.add_node(num_cpus=2)
    cluster.wait_for_nodes()
    yield cluster
    cluster.shutdown()


class ActOnce:
    """Does something once, when a run is in progress."""

    def __init__(self, act: Callable[[], None]) -> None:
        self.act, self.is_done = act, False

    def __call__(self, run: int, step: int) -> None:
        if not self.is_done and step > 20:
            self.is_done = True
            self.act()


@pytest.mark.slow
def test_a_race_on_ray_stops_the_same_draws_as_the_local_engine(tmp_path: Path, cluster: Any) -> None:
    settings = {"steps": 20, "record_every": 4, "batch_size": 8, "network": "small_cnn", "augment": False}
    spec = SweepSpec(
        (str(write_easy_images(tmp_path / "colors")),),
        ("erm", "mat"),
        test_domains=("light",),
        grid={"lr": (0.01, 1e-8)},
        search="race",
        settings={**settings, "dataset_options": {"image_size": 16}},
    )
    engines = {
        "local": make_engine("local", workers=2),
        "ray": make_engine("ray", workers=2, address=cluster.address, results="pulled"),
    }
    for name, engine in engines.items():
        outcome = run_sweep(spec, tmp_path / name, engine=engine, placement=PLACEMENT)
        assert outcome == SweepOutcome(done=2, failed=0, stopped=2)
    assert read_records(tmp_path / "ray") == read_records(tmp_path / "local")
    local, ray = (
        {run.name: status for run, status in SweepFolder(tmp_path / name).read_statuses().items()} for name in engines
    )
    assert ray == local


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_its_run_resumes_from_copied_files(
    tmp_path: Path, expected: dict[str, Any], cluster: Any
) -> None:
    killer = ActOnce(lambda: send_signal(find_descendants(os.getpid(), f"ray::{ray_engine.TASK_NAME}")[:1]))
    results = ray_engine.run_all(
        make_configs(tmp_path),
        EngineCallbacks(on_progress=killer),
        workers=2,
        address=cluster.address,
        results="pulled",
    )
    assert killer.is_done
    assert all(result is not None for result in results)
    assert read_records(tmp_path) == expected
    for run in tmp_path.iterdir():
        names = {"best.safetensors", "config.json", "done", "last.safetensors", "method.safetensors", "records.jsonl"}
        assert {file.name for file in run.iterdir()} == names


@pytest.mark.slow
def test_stopping_saves_and_resuming_ends_the_same(tmp_path: Path, expected: dict[str, Any], cluster: Any) -> None:
    start = time.monotonic()
    steps: list[int] = []
    callbacks = EngineCallbacks(on_progress=lambda run, step: steps.append(step), should_stop=lambda: bool(steps))
    with pytest.raises(RunInterrupted, match="of 4 runs are done"):
        ray_engine.run_all(make_configs(tmp_path), callbacks, workers=2, address=cluster.address)
    assert time.monotonic() - start < 100
    assert not all((config.folder() / "done").exists() for config in make_configs(tmp_path))
    ray_engine.run_all(make_configs(tmp_path), workers=2, address=cluster.address)
    assert read_records(tmp_path) == expected


@pytest.mark.slow
def test_a_node_that_dies_costs_only_time(tmp_path: Path, expected: dict[str, Any], cluster: Any) -> None:
    def replace_node() -> None:
        cluster.add_node(num_cpus=2)
        cluster.remove_node(cluster.node, allow_graceful=False)

    killer = ActOnce(replace_node)
    results = ray_engine.run_all(
        make_configs(tmp_path),
        EngineCallbacks(on_progress=killer),
        workers=2,
        address=cluster.address,
        results="pulled",
    )
    assert killer.is_done
    assert all(result is not None for result in results)
    assert read_records(tmp_path) == expected


def test_the_command_line_starts_ray_and_gives_the_same_numbers_as_the_local_engine(
    tmp_path: Path, domainwise: Callable[..., Any]
) -> None:
    spec = sweep_spec(30)
    with_ray = domainwise(*sweep_words(tmp_path / "ray", "--engine", "ray", "--results", "shared", spec=spec))
    assert with_ray.code == 0, with_ray.err
    local = domainwise(*sweep_words(tmp_path / "local", spec=spec))
    assert local.code == 0, local.err
    assert read_records(tmp_path / "ray") == read_records(tmp_path / "local")
    assert len(read_records(tmp_path / "ray")) == 4


def test_a_cluster_that_cannot_be_reached(tmp_path: Path, domainwise: Callable[..., Any]) -> None:
    outcome = domainwise(*sweep_words(tmp_path / "sweep", "--engine", "ray", "--address", "127.0.0.1:1"))
    assert outcome.code == 2
    assert "error: could not connect to the Ray cluster at 127.0.0.1:1" in outcome.err
