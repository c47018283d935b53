"""One run, from its config to its folder; killed at any moment, it goes on as if it had not been."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from domainwise.data import Dataset
from domainwise.data.places import OnProgress, silent
from domainwise.data.splits import Roles, Split, splits_of
from domainwise.errors import DomainwiseError
from domainwise.runs.build import data_facts
from domainwise.runs.config import RunConfig, build_dataset, resolved, run_seed
from domainwise.runs.device import autocast, pick_device
from domainwise.runs.in_progress import OnRecord, OnStep, RunInProgress
from domainwise.runs.randomness import torch_settings
from domainwise.runs.ranks import Ranks, joined
from domainwise.runs.store import Record, RunFolder
from domainwise.runs.tracking import check_logger, tracked


@dataclass(frozen=True)
class RunResult:
    """Where a run is, what it was, and what it measured."""

    folder: Path
    config: RunConfig
    records: list[Record]

    @property
    def last(self) -> Record:
        return self.records[-1]


OnStart = Callable[[RunConfig, int], None]


def train(
    config: RunConfig,
    *,
    on_data: OnProgress = silent,
    on_start: OnStart = lambda config, step: None,
    on_step: OnStep = lambda step, loss: None,
    on_record: OnRecord = lambda record: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> RunResult:
    """Train as `config` says, or go on with what its folder holds, and return the outcome.

    Under `torchrun` the processes share the run: each takes its part of every batch, and the first alone writes, logs
    and calls back.

    Args:
        on_data: called while the dataset's images are read and decoded, which happens once.
        on_start: called before the first update with the config, nothing left open, and the updates done before.
        on_step: called after every update with the number of updates done and the loss.
        on_record: called with each record, those of an earlier part of the run first.
        should_stop: asked after every update; True saves the state and raises `RunInterrupted`.
    """
    device = pick_device(config.device)
    with joined(device) as ranks, ExitStack() as held:
        if not ranks.is_first:
            on_data, on_start, on_step, on_record = silent, _unheard, _unheard, _unheard
        with ranks.agreed():
            check_logger(config.logger)
            precision = autocast(device, config.precision)
            dataset = build_dataset(config, on_data)
            config, roles = resolved(config, dataset)
            splits = _splits(config, dataset, roles, ranks)
        run = RunInProgress(config, dataset, roles, splits, device, RunFolder(config.folder()), ranks)
        with ranks.agreed():
            if ranks.is_first:
                run.folder.create()
                held.enter_context(run.folder.locked())
                run.folder.claim(config.identity(), data_facts(dataset, roles, run.splits))
        if not ranks.first_says(run.folder.is_done):
            with torch_settings(config.threads, run_seed(config, dataset), device):
                with ranks.agreed():
                    run.start()
                    if ranks.is_first:
                        run.log = held.enter_context(tracked(config, is_resumed=run.step > 0))
                on_start(config, run.step)
                for record in run.records:
                    on_record(record)
                run.go_on(precision, on_step, on_record, should_stop)
        with ranks.agreed():
            return RunResult(run.folder.path, config, run.complete_records())


def _unheard(*_: object) -> None:
    """What ranks other than the first call instead of the caller's functions."""


def _splits(config: RunConfig, dataset: Dataset, roles: Roles, ranks: Ranks) -> dict[str, Split]:
    assert config.batch_size is not None
    if config.batch_size % ranks.count:
        raise DomainwiseError(
            f"a batch of {config.batch_size} images cannot be shared equally by {ranks.count} processes; "
            f"choose a batch size that is a multiple of {ranks.count}"
        )
    splits = splits_of(dataset, config.trial_seed)
    for name in roles.train:
        count = len(splits[name].main)
        if count < config.batch_size:
            raise DomainwiseError(
                f"domain {name!r} has {count} images to train on, fewer than a batch of {config.batch_size}; "
                "choose a smaller batch size"
            )
    return splits
