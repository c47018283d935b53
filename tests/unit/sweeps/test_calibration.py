"""How long runs will take: told from few images, and reckoned up to all of them."""

from pathlib import Path

import pytest

from domainwise.data import Dataset, silhouettes
from domainwise.sweeps import time_estimate as calibration
from domainwise.sweeps.plan import PlannedRun
from domainwise.sweeps.time_estimate import Cost, estimate_seconds
from domainwise.training import RunConfig


def test_a_run_costs_its_start_its_images_and_its_records() -> None:
    config = RunConfig("silhouettes", "erm", steps=101, record_every=50, batch_size=8)
    # 101 steps of 8 images a domain, and records after steps 0, 50 and 100.
    assert Cost(start=2.0, image=0.01, record=5.0).of(config) == pytest.approx(2 + 101 * 8 * 0.01 + 3 * 5)


def test_costs_from_the_times_of_a_short_run() -> None:
    # Begun at 10; a first step until 13, its record until 14; three steps of 2 s each; a record of 1.5 s.
    cost = calibration._cost(10.0, [13.0, 16.0, 18.0, 20.0], [14.0, 21.5], batch_size=4, growth=3.0)
    assert cost == Cost(start=1.0, image=0.5, record=4.5)


def test_few_images_are_evaluated_and_all_are_reckoned_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sizes: list[int] = []
    real = calibration.train

    def counted(config: RunConfig, **others: object) -> object:
        data = config.dataset(seed=0)  # type: ignore[operator]
        sizes.extend(len(domain) for domain in data.domains)
        return real(config, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(calibration, "train", counted)
    config = RunConfig("silhouettes", "erm", steps=10, record_every=5, batch_size=4, output=tmp_path)
    run = PlannedRun("erm", config, "silhouettes")
    known: calibration.Costs = {}
    assert estimate_seconds([run], 1, known=known) > 0
    assert set(sizes) == {256}
    assert set(known) == {("silhouettes", "erm")}
    assert not list(tmp_path.iterdir())
    before = len(sizes)
    estimate_seconds([run, run], 2, known=known)
    assert len(sizes) == before


def test_a_record_grows_with_the_images_it_evaluates() -> None:
    def sized(count: int) -> Dataset:
        return silhouettes(0, train_count=count, test_count=count)

    config = RunConfig("silhouettes", "erm")
    small, large = (calibration._evaluated(config, sized(count)) for count in (100, 200))
    assert large == 2 * small
