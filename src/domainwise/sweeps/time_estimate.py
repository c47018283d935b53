"""How long a sweep will take: a few real steps of each method on each dataset, and multiplication."""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from domainwise.data import Dataset, Domain
from domainwise.data.dataset import assign_roles, split_domains
from domainwise.sweeps.engine import available_cpus
from domainwise.training import RunConfig, train
from domainwise.training.evaluation import select_parts
from domainwise.training.registry import DatasetCache, resolve_config

_STEPS = 4
# Of a domain, at least: how long a record takes is told from so many and reckoned up to all.
_IMAGES = 256


@dataclass(frozen=True)
class Cost:
    """Seconds to begin a run, of a step for each image a domain, and of a record."""

    start: float
    image: float
    record: float

    def of(self, config: RunConfig) -> float:
        assert config.steps is not None
        assert config.record_every is not None
        assert config.batch_size is not None
        # After the first step, every so many, and after the last.
        records = 1 + -(-(config.steps - 1) // config.record_every)
        return self.start + config.steps * config.batch_size * self.image + records * self.record


Costs = dict[tuple[str, str], Cost]


def estimate_seconds(
    configs: Sequence[RunConfig],
    workers: int,
    on_measured: Callable[[str], None] = lambda what: None,
    known: Costs | None = None,
) -> float:
    """What the runs will take on this machine, `workers` at a time.

    Args:
        on_measured: told what is measured next.
        known: costs by dataset and method that were measured before; what is measured here is added.
    """
    costs: Costs = {} if known is None else known
    total = 0.0
    datasets = DatasetCache()
    for config in sorted(configs, key=lambda config: config.dataset_name):
        data = datasets.build(config)
        config, _ = resolve_config(config, data)
        key = (config.dataset_name, config.algorithm_name)
        if key not in costs:
            on_measured(f"{config.algorithm_name} on {config.dataset_name}")
            costs[key] = _measured(replace(config, threads=config.threads or max(1, available_cpus() // workers)), data)
        total += costs[key].of(config)
    return total / max(1, min(workers, len(configs)))


def _measured(config: RunConfig, data: Dataset) -> Cost:
    assert config.batch_size is not None
    few = _thinned(data, max(_IMAGES, 2 * config.batch_size))
    steps: list[float] = []
    records: list[float] = []
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        shortened = replace(config, steps=_STEPS, record_every=_STEPS, output=Path(folder) / "run", logger=None)
        train(
            replace(shortened, dataset=lambda seed: few, dataset_options={}),
            on_step=lambda step, loss: steps.append(time.perf_counter()),
            on_record=lambda record: records.append(time.perf_counter()),
        )
    return _cost(began, steps, records, config.batch_size, _evaluated(config, data) / _evaluated(config, few))


def _cost(began: float, steps: Sequence[float], records: Sequence[float], batch_size: int, growth: float) -> Cost:
    """From the times at which steps and records were done; all images are so many times those evaluated here."""
    # The first step also pays for what later ones find ready, so it counts as part of the beginning.
    step = (steps[-1] - records[0]) / (len(steps) - 1)
    return Cost(max(0.0, steps[0] - step - began), step / batch_size, (records[-1] - steps[-1]) * growth)


def _thinned(data: Dataset, most: int) -> Dataset:
    """At most so many images of each domain, from all over it."""
    return replace(data, domains=tuple(_some(domain, most) for domain in data.domains))


def _some(domain: Domain, most: int) -> Domain:
    chosen = torch.linspace(0, len(domain) - 1, min(most, len(domain))).long()
    masks = None if domain.masks is None else domain.masks[chosen]
    return replace(domain, images=domain.images[chosen], labels=domain.labels[chosen], masks=masks)


def _evaluated(config: RunConfig, data: Dataset) -> int:
    parts = assign_roles(data, config.train_domains, config.test_domains)
    return sum(map(len, select_parts(data, split_domains(data, config.trial_seed), parts, config.evaluate).values()))
