"""Times are measured on few images, and scaled up to all of them."""

from pathlib import Path
from typing import Any

import pytest

from domainwise.data import Dataset, silhouettes
from domainwise.sweeps import time_estimate
from domainwise.sweeps.time_estimate import RunCost, RunCosts, describe_unmeasured, estimate_seconds
from domainwise.training import RunConfig
from domainwise.training.registry import DatasetCache, resolve_config


def test_estimate_of_start_images_and_records() -> None:
    config = RunConfig("silhouettes", "erm", steps=101, record_every=50, batch_size=8)
    # 101 steps of 8 images per domain, and records after steps 50 and 100.
    assert RunCost(start=2.0, image=0.01, record=5.0).estimate(config) == pytest.approx(2 + 101 * 8 * 0.01 + 2 * 5)


def test_estimate_of_a_run_that_pauses() -> None:
    config = RunConfig("silhouettes", "erm", steps=101, record_every=50, batch_size=8, stop_after=51)
    records = sum(step < 51 for step in config.record_steps())
    assert RunCost(start=2.0, image=0.01, record=5.0).estimate(config) == pytest.approx(2 + 51 * 8 * 0.01 + records * 5)


def test_cost_from_the_times_of_a_short_run() -> None:
    # Starts at 10; the first step ends at 13; three steps of 2 s each; a record of 1.5 s.
    cost = time_estimate._cost_from_times(10.0, [13.0, 15.0, 17.0, 19.0], 20.5, batch_size=4, scale=3.0)
    assert cost == RunCost(start=1.0, image=0.5, record=4.5)


@pytest.mark.parametrize("record_first", [False, True])
@pytest.mark.parametrize(("steps", "record_every"), [(1, 1), (10, 3), (10, 5), (11, 5), (10, 20)])
def test_number_of_records(steps: int, record_every: int, record_first: bool) -> None:
    config = RunConfig("silhouettes", "erm", steps=steps, record_every=record_every, record_first=record_first)
    for stop in range(1, steps + 1):
        expected = sum(step < stop for step in config.record_steps())
        assert time_estimate._count_records(config, stop) == expected


def test_estimate_of_more_records_than_fit_into_memory() -> None:
    config = RunConfig("silhouettes", "erm", steps=2**31 - 1, record_every=1, batch_size=1)
    assert RunCost(start=0.0, image=0.0, record=1.0).estimate(config) == pytest.approx(2**31 - 1)


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
    assert sizes == [10, 256, 10, 256]
    assert set(costs) == {("silhouettes", "erm"), ("silhouettes", "uat")}
    assert datasets.builds == 1
    assert not list(tmp_path.iterdir())
    estimate_seconds(configs, 2, tasks.append, costs, datasets)
    assert (len(tasks), len(sizes)) == (2, 4)


def test_a_warm_up_is_longer_than_what_is_measured() -> None:
    config = RunConfig("silhouettes", "erm", steps=300, lr_warmup=250, device="cpu", batch_size=4)
    assert estimate_seconds([config], 1) > 0


def test_a_method_that_would_take_too_long_is_measured_on_few_images(tmp_path: Path) -> None:
    dataset = silhouettes(0, image_size=16, train_count=400, test_count=40)
    config, _ = resolve_config(RunConfig("silhouettes", "erm", batch_size=32, output=tmp_path, threads=1), dataset)
    sizes: list[int] = []

    def note(config: RunConfig, dataset: Dataset, steps: int, batch_size: int, images: int) -> RunCost:
        sizes.append(batch_size)
        return RunCost(start=0.0, image=1 / 32, record=0.0)  # 4 s for four full steps

    for seconds, expected in ((8.0, [2, 32]), (2.0, [2, 15]), (0.1, [2])):
        sizes.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(time_estimate, "_time_steps", note)
            time_estimate._measure_cost(config, dataset, seconds)
        assert sizes == expected


def test_methods_beyond_the_time_limit_cost_as_much_as_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(time_estimate, "MAX_SECONDS", 0.0)
    options = {"image_size": 16, "train_count": 40, "test_count": 20}
    settings: dict[str, Any] = {"dataset_options": options, "steps": 10, "record_every": 5, "batch_size": 4}
    configs = [RunConfig("silhouettes", name, output=tmp_path, **settings) for name in ("erm", "uat", "mat")]
    costs: RunCosts = {}
    seconds = estimate_seconds(configs, 1, costs=costs)
    assert list(costs) == [("silhouettes", "erm")]
    assert seconds == pytest.approx(3 * costs["silhouettes", "erm"].estimate(configs[0]))
    assert describe_unmeasured(configs, costs).endswith("as much as the other methods: mat, uat")
    assert describe_unmeasured(configs[:1], costs) == ""


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
