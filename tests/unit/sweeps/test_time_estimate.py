"""Times are measured on few images, and scaled up to all of them."""

from pathlib import Path
from typing import Any

import pytest

from domainwise.data import Dataset, silhouettes
from domainwise.sweeps import time_estimate
from domainwise.sweeps.time_estimate import RunCost, RunCosts, estimate_seconds
from domainwise.training import RunConfig
from domainwise.training.registry import DatasetCache


def test_estimate_of_start_images_and_records() -> None:
    config = RunConfig("silhouettes", "erm", steps=101, record_every=50, batch_size=8)
    # 101 steps of 8 images per domain, and records after steps 50 and 100.
    assert RunCost(start=2.0, image=0.01, record=5.0).estimate(config) == pytest.approx(2 + 101 * 8 * 0.01 + 2 * 5)


def test_estimate_of_a_run_that_pauses() -> None:
    config = RunConfig("silhouettes", "erm", steps=101, record_every=50, batch_size=8, stop_after=51)
    records = sum(step < 51 for step in config.record_steps())
    assert RunCost(start=2.0, image=0.01, record=5.0).estimate(config) == pytest.approx(2 + 51 * 8 * 0.01 + records * 5)


def test_cost_from_the_times_of_a_short_run() -> None:
    # Starts at 10; the first step ends at 13 and its record at 14; three steps of 2 s each; a record of 1.5 s.
    cost = time_estimate._cost_from_times(10.0, [13.0, 16.0, 18.0, 20.0], [14.0, 21.5], batch_size=4, scale=3.0)
    assert cost == RunCost(start=1.0, image=0.5, record=4.5)


class CountingCache(DatasetCache):
    """Counts the datasets that are built."""

    builds = 0

    def build(self, config: RunConfig, *args: object) -> Dataset:
        before = self._dataset
        dataset = super().build(config)
        self.builds += dataset is not before
        return dataset


def test_each_method_is_measured_once_on_few_images(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sizes: list[int] = []
    train = time_estimate.train

    def record_sizes(config: RunConfig, **arguments: object) -> object:
        dataset = config.dataset(seed=0)  # type: ignore[operator]
        sizes.append(max(len(domain) for domain in dataset.domains))
        return train(config, **arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(time_estimate, "train", record_sizes)
    options = {"image_size": 16, "train_count": 400, "test_count": 400}
    settings: dict[str, Any] = {"dataset_options": options, "steps": 10, "record_every": 5, "batch_size": 4}
    configs = [
        RunConfig("silhouettes", method, trial_seed=seed, output=tmp_path / method, **settings)
        for seed in (0, 1, 2)
        for method in ("erm", "uat")
    ]
    costs: RunCosts = {}
    datasets = CountingCache()
    tasks: list[str] = []
    assert estimate_seconds(configs, 1, tasks.append, costs, datasets) > 0
    assert tasks == ["erm on silhouettes", "uat on silhouettes"]
    assert sizes == [256, 256]
    assert set(costs) == {("silhouettes", "erm"), ("silhouettes", "uat")}
    assert datasets.builds == 1
    assert not list(tmp_path.iterdir())
    estimate_seconds(configs, 2, tasks.append, costs, datasets)
    assert len(tasks) == len(sizes) == 2


def test_a_record_scales_with_the_images_it_evaluates() -> None:
    config = RunConfig("silhouettes", "erm")
    small, large = (
        time_estimate._count_evaluated(config, silhouettes(0, train_count=count, test_count=count))
        for count in (100, 200)
    )
    assert large == 2 * small


def test_an_attack_costs_the_same_on_more_images() -> None:
    config, attacked = RunConfig("silhouettes", "erm"), RunConfig("silhouettes", "erm", attack_radius=0.5)
    for count in (100, 200):
        dataset = silhouettes(0, train_count=count, test_count=count)
        extra = time_estimate._count_evaluated(attacked, dataset) - time_estimate._count_evaluated(config, dataset)
        # 20 steps on 32 images, each worth three, and a fifth of the images: in both training domains.
        assert extra == 2 * (20 * 32 * 3 + count // 5)
