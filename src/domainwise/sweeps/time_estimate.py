"""Estimates how long runs take: times a few steps of each method on each dataset, and multiplies."""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from statistics import fmean

import torch

from domainwise.data import Dataset, Domain
from domainwise.data.dataset import assign_roles, split_domains
from domainwise.sweeps.engine import share_cpus
from domainwise.training import RunConfig, train
from domainwise.training.evaluation import RECORD_ATTACK_COST, select_parts
from domainwise.training.registry import DatasetCache, resolve_config

# Seconds for all measurements of an estimate; a large network takes longer for its first step alone.
MAX_SECONDS = 8.0
_STEPS = 4
# Evaluation is timed on about this many images per domain and scaled up to all of them.
_IMAGES = 256
# Two steps of this batch size, on this many images per domain, show what a full measurement would take.
_PROBE_BATCH, _PROBE_IMAGES = 2, 10


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
        assert config.batch_size is not None
        steps = min(config.steps, config.stop_after or config.steps)
        return self.start + steps * config.batch_size * self.image + _count_records(config, steps) * self.record


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

    Measuring takes about `MAX_SECONDS`, shared by the datasets. Methods that are then left are taken to cost as much as
    the others do on average; at least one per dataset is measured.

    Args:
        on_measure: called with what is timed next.
        costs: costs that are already known; those measured here are added.
        datasets: where the datasets come from. Each is built once: another trial has as many images.
    """
    costs = {} if costs is None else costs
    datasets = datasets or DatasetCache()
    by_dataset: dict[str, dict[tuple[object, ...], list[RunConfig]]] = {}
    for config in configs:
        # All that a cost depends on besides the method; whatever else was drawn makes no difference.
        work = (config.steps, config.record_every, config.record_first, config.batch_size, config.stop_after)
        by_dataset.setdefault(config.dataset_name, {}).setdefault((config.algorithm_name, *work), []).append(config)
    total, start = 0.0, time.perf_counter()
    for number, name in enumerate(sorted(by_dataset), start=1):
        groups = list(by_dataset[name].values())
        dataset = datasets.build(replace(groups[0][0], trial_seed=0))
        resolved = [resolve_config(group[0], dataset)[0] for group in groups]
        deadline = start + MAX_SECONDS * number / len(by_dataset)
        _measure_costs(costs, name, resolved, dataset, share_cpus(workers), deadline, on_measure)
        known = [cost for (each, _), cost in costs.items() if each == name]
        average = RunCost(*(fmean(values) for values in zip(*map(astuple, known), strict=True)))
        for config, group in zip(resolved, groups, strict=True):
            total += len(group) * costs.get((name, config.algorithm_name), average).estimate(config)
    return total / max(1, min(workers, len(configs)))


def describe_unmeasured(configs: Sequence[RunConfig], costs: RunCosts) -> str:
    """Return which part of an estimate was not measured, for the user; empty if all was."""
    pairs = {(config.dataset_name, config.algorithm_name) for config in configs}
    missing = sorted({method for name, method in pairs - set(costs)})
    if not missing:
        return ""
    methods = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    return f"not measured, and taken to cost as much as the other methods: {methods}"


def _measure_costs(
    costs: RunCosts,
    name: str,
    configs: Sequence[RunConfig],
    dataset: Dataset,
    threads: int,
    deadline: float,
    on_measure: Callable[[str], None],
) -> None:
    """Add the costs of the methods on a dataset that are not known, at least one, until the deadline."""
    methods = {config.algorithm_name: config for config in configs if (name, config.algorithm_name) not in costs}
    has_cost = any(each == name for each, _ in costs)
    for index, (method, config) in enumerate(methods.items()):
        left = deadline - time.perf_counter()
        if has_cost and left <= 0:
            return
        on_measure(f"{method} on {name}")
        threads = config.threads or threads
        costs[name, method] = _measure_cost(replace(config, threads=threads), dataset, left / (len(methods) - index))
        has_cost = True


def _measure_cost(config: RunConfig, dataset: Dataset, seconds: float = MAX_SECONDS) -> RunCost:
    """Time two steps of a few images and then, as far as that fits into `seconds`, some of a full batch."""
    assert config.batch_size is not None
    start = time.perf_counter()
    small = min(_PROBE_BATCH, config.batch_size)
    cost = _time_steps(config, dataset, 2, small, _PROBE_IMAGES)
    images = max(_IMAGES, 2 * config.batch_size)
    evaluated = _count_evaluated(config, _subsample(dataset, images)) / _count_evaluated(config, dataset)
    needed = cost.start + _STEPS * config.batch_size * cost.image + evaluated * cost.record
    share = min(1.0, (start + seconds - time.perf_counter()) / needed)
    batch_size = int(share * config.batch_size)
    if batch_size <= small < config.batch_size:
        return cost
    return _time_steps(config, dataset, _STEPS, max(small, batch_size), max(_PROBE_IMAGES, int(share * images)))


def _time_steps(config: RunConfig, dataset: Dataset, steps: int, batch_size: int, images: int) -> RunCost:
    """Train for a few steps on at most `images` per domain, and return the cost with the whole dataset."""
    subset = _subsample(dataset, images)
    ends: list[float] = []
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        shortened = replace(
            config,
            steps=steps,
            record_every=steps,
            record_first=False,
            stop_after=None,
            batch_size=batch_size,
            lr_warmup=0,  # may be longer than these few steps
            output=Path(folder) / "run",
            logger=None,
        )
        train(
            replace(shortened, dataset=lambda seed: subset, dataset_options={}),
            on_step=lambda step, loss: ends.append(time.perf_counter()),
            on_record=lambda record: ends.append(time.perf_counter()),
        )
    scale = _count_evaluated(config, dataset) / _count_evaluated(config, subset)
    return _cost_from_times(start, ends[:-1], ends[-1], batch_size, scale)


def _cost_from_times(start: float, steps: Sequence[float], record: float, batch_size: int, scale: float) -> RunCost:
    """Return the cost by the times at which steps and a record were done; a full record takes `scale` times as long."""
    # The first step also allocates memory and warms up caches, so it counts as part of the start.
    step = (steps[-1] - steps[0]) / (len(steps) - 1)
    return RunCost(max(0.0, steps[0] - step - start), step / batch_size, (record - steps[-1]) * scale)


def _count_records(config: RunConfig, steps: int) -> int:
    """Return how many of `config.record_steps()` are below `steps`, without listing them: there may be billions."""
    assert config.steps is not None
    assert config.record_every is not None
    regular = range(0 if config.record_first else config.record_every, config.steps, config.record_every)
    has_last = steps == config.steps and config.steps - 1 not in regular
    return len(range(regular.start, min(steps, config.steps), regular.step)) + has_last


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
