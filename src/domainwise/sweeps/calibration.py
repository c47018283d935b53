"""How long a sweep will take: a few real steps of each method on each dataset, and multiplication."""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from domainwise.runs import RunConfig, train
from domainwise.runs.config import build_dataset, resolved
from domainwise.sweeps.engine import cores
from domainwise.sweeps.plan import PlannedRun

_STEPS = 4


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


def estimated_seconds(
    runs: Sequence[PlannedRun],
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
    for run in sorted(runs, key=lambda run: run.config.dataset_name):
        config, _ = resolved(run.config, build_dataset(run.config))
        key = (config.dataset_name, config.algorithm_name)
        if key not in costs:
            on_measured(f"{config.algorithm_name} on {config.dataset_name}")
            costs[key] = _measured(replace(config, threads=config.threads or max(1, cores() // workers)))
        total += costs[key].of(config)
    return total / max(1, min(workers, len(runs)))


def _measured(config: RunConfig) -> Cost:
    steps: list[float] = []
    records: list[float] = []
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        train(
            replace(config, steps=_STEPS, record_every=_STEPS, output=Path(folder) / "run", logger=None),
            on_step=lambda step, loss: steps.append(time.perf_counter()),
            on_record=lambda record: records.append(time.perf_counter()),
        )
    # The first step also pays for what later ones find ready, so it counts as part of the beginning.
    step = (steps[-1] - records[0]) / (_STEPS - 1)
    record = records[-1] - steps[-1]
    assert config.batch_size is not None
    return Cost(max(0.0, steps[0] - step - began), step / config.batch_size, record)
