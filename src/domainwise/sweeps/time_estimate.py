"""Estimates how long runs take: times a few steps of each method on each dataset, and multiplies."""

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
from domainwise.training.evaluation import RECORD_ATTACK_COST, select_parts
from domainwise.training.registry import DatasetCache, resolve_config

_STEPS = 4
# Evaluation is timed on about this many images per domain and scaled up to all of them.
_IMAGES = 256


@dataclass(frozen=True)
class RunCost:
    """What a run of a method on a dataset costs, in seconds.

    Args:
        start: to build the data and the network.
        image: per step and image of a domain's batch.
        record: per record.
    """

    start: float
    image: float
    record: float

    def estimate(self, config: RunConfig) -> float:
        """Return the seconds of a run with the steps and the batch size of `config`, or until it pauses."""
        assert config.steps is not None
        assert config.record_every is not None
        assert config.batch_size is not None
        steps = min(config.steps, config.stop_after or config.steps)
        records = sum(step < steps for step in config.record_steps())
        return self.start + steps * config.batch_size * self.image + records * self.record


# By dataset and method.
RunCosts = dict[tuple[str, str], RunCost]


def estimate_seconds(
    configs: Sequence[RunConfig],
    workers: int,
    on_measure: Callable[[str], None] = lambda task: None,
    costs: RunCosts | None = None,
    datasets: DatasetCache | None = None,
) -> float:
    """Return the seconds that the runs take on this machine, `workers` at a time.

    Args:
        on_measure: called with what is timed next.
        costs: costs that are already known; those measured here are added.
        datasets: where the datasets come from. Each is built once: another trial has as many images.
    """
    costs = {} if costs is None else costs
    datasets = datasets or DatasetCache()
    total = 0.0
    for config in sorted(configs, key=lambda config: config.dataset_name):
        dataset = datasets.build(replace(config, trial_seed=0))
        config, _ = resolve_config(config, dataset)
        key = (config.dataset_name, config.algorithm_name)
        if key not in costs:
            on_measure(f"{config.algorithm_name} on {config.dataset_name}")
            threads = config.threads or max(1, available_cpus() // workers)
            costs[key] = _measure_cost(replace(config, threads=threads), dataset)
        total += costs[key].estimate(config)
    return total / max(1, min(workers, len(configs)))


def _measure_cost(config: RunConfig, dataset: Dataset) -> RunCost:
    assert config.batch_size is not None
    subset = _subsample(dataset, max(_IMAGES, 2 * config.batch_size))
    steps: list[float] = []
    records: list[float] = []
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        shortened = replace(
            config, steps=_STEPS, record_every=_STEPS, record_first=True, output=Path(folder) / "run", logger=None
        )
        train(
            replace(shortened, dataset=lambda seed: subset, dataset_options={}),
            on_step=lambda step, loss: steps.append(time.perf_counter()),
            on_record=lambda record: records.append(time.perf_counter()),
        )
    scale = _count_evaluated(config, dataset) / _count_evaluated(config, subset)
    return _cost_from_times(start, steps, records, config.batch_size, scale)


def _cost_from_times(
    start: float, steps: Sequence[float], records: Sequence[float], batch_size: int, scale: float
) -> RunCost:
    """Return the cost by the times at which steps and records were done; a full record takes `scale` times as long."""
    # The first step also allocates memory and warms up caches, so it counts as part of the start.
    step = (steps[-1] - records[0]) / (len(steps) - 1)
    return RunCost(max(0.0, steps[0] - step - start), step / batch_size, (records[-1] - steps[-1]) * scale)


def _subsample(dataset: Dataset, limit: int) -> Dataset:
    """Return the dataset with at most `limit` images per domain, evenly spaced."""
    return replace(dataset, domains=tuple(_subsample_domain(domain, limit) for domain in dataset.domains))


def _subsample_domain(domain: Domain, limit: int) -> Domain:
    indices = torch.linspace(0, len(domain) - 1, min(limit, len(domain))).long()
    masks = None if domain.masks is None else domain.masks[indices]
    return replace(domain, images=domain.images[indices], labels=domain.labels[indices], masks=masks)


def _count_evaluated(config: RunConfig, dataset: Dataset) -> int:
    """Return the number of images that a record evaluates, with the cost of its attack in images."""
    roles = assign_roles(dataset, config.train_domains, config.test_domains)
    splits = split_domains(dataset, config.trial_seed)
    count = sum(map(len, select_parts(dataset, splits, roles, config.evaluate).values()))
    if config.attack_radius is None:
        return count
    return count + sum(RECORD_ATTACK_COST + len(splits[name].holdout) for name in roles.train)
