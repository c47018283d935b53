"""A run in progress: one update after another, what is measured between them, and its checkpoints."""

import math
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from domainwise.algorithms import Algorithm
from domainwise.data import Dataset
from domainwise.data.batches import draw_batches
from domainwise.data.dataset import Roles, Split, split_domains
from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.errors import DomainwiseError, RunInterrupted
from domainwise.perturbations import LowRankPerturbation, MultiplePerturbation, Perturbation
from domainwise.storage.run_folder import SCHEMA, Record, RunFolder
from domainwise.training.config import RunConfig, build_dataset, resolved, run_seed
from domainwise.training.device import autocast, pick_device, random_state, set_random_state, torch_settings
from domainwise.training.distributed import Ranks, joined, notes_on_shares
from domainwise.training.evaluation import evaluate, selection_score
from domainwise.training.loading import build_algorithm, data_facts
from domainwise.training.tracking import check_logger, tracked

OnStep = Callable[[int, float], None]
OnRecord = Callable[[Record], None]


@dataclass
class RunInProgress:
    """A run in progress: what is fixed, then what a checkpoint holds."""

    config: RunConfig
    dataset: Dataset
    roles: Roles
    splits: dict[str, Split]
    device: torch.device
    folder: RunFolder
    ranks: Ranks
    log: OnRecord = lambda record: None
    algorithm: Algorithm = field(init=False)
    generator: torch.Generator = field(init=False)
    step: int = 0
    measured: list[dict[str, float]] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    best: float = -1.0

    def start(self) -> None:
        """Build the algorithm and restore the newest checkpoint, if there is one."""
        self.generator = torch.Generator().manual_seed(torch.initial_seed())
        facts = data_facts(self.dataset, self.roles, self.splits)
        self.algorithm = build_algorithm(self.config, facts, self.generator).to(self.device)
        self.algorithm.network.to(memory_format=torch.channels_last)
        checkpoint = self.folder.read_checkpoint()
        if checkpoint is not None:
            self._restore(checkpoint)

    def go_on(
        self,
        precision: Any,
        on_step: OnStep,
        on_record: OnRecord,
        should_stop: Callable[[], bool],
    ) -> None:
        assert self.config.steps is not None
        assert self.config.record_every is not None
        self.algorithm.train()
        notes = notes_on_shares(self.algorithm, self.config, self.ranks)
        for note in (*notes, *notes_on_snapshots(self.algorithm, self.config)) if self.ranks.is_first else ():
            warnings.warn(note, stacklevel=3)
        seed = run_seed(self.config, self.dataset)
        since, started = self.step, time.perf_counter()
        while self.step < self.config.steps:
            batches = self._batches()
            with precision, self.ranks.own_draws(self.generator, seed, self.step):
                measured = self.algorithm.update(batches)
            if notes:
                self.ranks.average_(self.algorithm.buffers())
            measured, is_to_stop = self._over_ranks(measured, should_stop)
            loss = measured["loss"]
            if not math.isfinite(loss):
                raise DomainwiseError(
                    f"the loss is {loss} at step {self.step}: training diverged. Try a lower lr or epsilon"
                )
            self.measured.append(measured)
            self.step += 1
            on_step(self.step, loss)
            if (self.step - 1) % self.config.record_every == 0 or self.step == self.config.steps:
                seconds = (time.perf_counter() - started) / (self.step - since)
                record = self._record(seconds)
                self.log(record)
                on_record(record)
                since, started = self.step, time.perf_counter()
            elif is_to_stop():
                with self.ranks.agreed():
                    self._save()
                raise RunInterrupted(f"stopped after {self.step} steps")
        with self.ranks.agreed():
            if self.ranks.is_first:
                self.folder.write_done()

    def _over_ranks(
        self, measured: dict[str, float], should_stop: Callable[[], bool]
    ) -> tuple[dict[str, float], Callable[[], bool]]:
        """What was measured as means over ranks, and whether any is to stop: one message for both."""
        if self.ranks.count == 1:
            return measured, should_stop
        *means, stopping = self.ranks.means([*measured.values(), float(should_stop())])
        return dict(zip(measured, means, strict=True)), lambda: stopping > 0

    def complete_records(self) -> list[Record]:
        """All records of the run that its folder calls done."""
        assert self.config.steps is not None
        records = self.folder.read_records()
        if not records or records[-1]["step"] != self.config.steps - 1:
            raise DomainwiseError(
                f"the run is done, but {self.folder.records_file} does not reach its last step, "
                f"{self.config.steps - 1}; restore it, or delete that folder to train again"
            )
        return records

    def _batches(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        assert self.config.batch_size is not None
        # Every rank draws the whole batch, so that their generators stay together, and keeps its share.
        whole = draw_batches(
            [(self.dataset.domains[self.dataset.index(name)], self.splits[name].main) for name in self.roles.train],
            self.config.batch_size,
            self.generator,
            self.device,
            is_augmented=bool(self.config.augment),
        )
        return [(self.ranks.share(x), self.ranks.share(y)) for x, y in whole]

    def _record(self, seconds_per_step: float) -> Record:
        """Measure, and write everything: the checkpoint last, because it says that the rest is there."""
        accuracy = evaluate(
            self.algorithm, self.dataset, self.splits, self.roles, self.config.evaluate, self.device, self.ranks
        )
        record = {
            "schema": SCHEMA,
            "step": self.step - 1,
            "dataset": self.dataset.name,
            "algorithm": self.config.algorithm_name,
            "trial_seed": self.config.trial_seed,
            "hparams_seed": self.config.hparams_seed,
            "train_domains": self.roles.train,
            "validation_domains": self.roles.validation,
            "test_domains": self.roles.test,
            "roles": self.roles.assignment,
            "hparams": {
                "batch_size": self.config.batch_size,
                "dropout": self.config.dropout,
                **self.config.hparams,
            },
            "accuracy": accuracy,
            **_means(self.measured),
            "seconds_per_step": seconds_per_step,
            **self.algorithm.describe(),
        }
        self.records.append(record)
        self.measured.clear()
        score = selection_score(accuracy, self.roles)
        is_best, self.best = score > self.best, max(score, self.best)
        if self.ranks.is_first:
            self.folder.write_records(self.records)
            weights = self.algorithm.network.state_dict()
            for which in ("best", "last") if is_best else ("last",):
                self.folder.write_weights(which, weights)
            if self.config.keep_perturbations and (kept := snapshot(self.algorithm)):
                self.folder.write_perturbation(self.step - 1, kept)
            self._save()
        return record

    def _save(self) -> None:
        if not self.ranks.is_first:
            return
        self.folder.write_checkpoint(
            {
                "step": self.step,
                "measured": self.measured,
                "records": len(self.records),
                "best": self.best,
                "algorithm": self.algorithm.state_dict(),
                "generator": self.generator.get_state(),
                "random": random_state(self.device),
            }
        )

    def _restore(self, checkpoint: dict[str, Any]) -> None:
        try:
            self.step, self.measured = checkpoint["step"], checkpoint["measured"]
            self.best = checkpoint["best"]
            self.algorithm.load_state_dict(checkpoint["algorithm"])
            self.generator.set_state(checkpoint["generator"])
            set_random_state(self.device, checkpoint["random"])
            count = checkpoint["records"]
        except (KeyError, RuntimeError, TypeError) as error:
            first = str(error).splitlines()[0]
            raise DomainwiseError(f"{self.folder.checkpoint_file} does not fit this run: {first}") from error
        records = self.folder.read_records()
        if len(records) < count:
            raise DomainwiseError(
                f"{self.folder.records_file} has {len(records)} records, the checkpoint beside it {count}; restore it"
            )
        self.records = records[:count]
        if self.ranks.is_first:
            self.folder.write_records(self.records)  # without what is newer than the checkpoint, or half a line


def _means(measured: list[dict[str, float]]) -> dict[str, Any]:
    """The loss and the method's own terms, as means over the updates since the last record."""
    values: dict[str, list[float]] = {}
    for each in measured:
        for name, value in each.items():
            values.setdefault(name, []).append(value)
    terms = {name: math.fsum(given) / len(given) for name, given in values.items()}
    loss = terms.pop("loss")
    return {"loss": loss, "terms": terms} if terms else {"loss": loss}


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
    on_data: OnProgress = ignore_progress,
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
            on_data, on_start, on_step, on_record = ignore_progress, _unheard, _unheard, _unheard
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
    splits = split_domains(dataset, config.trial_seed)
    for name in roles.train:
        count = len(splits[name].main)
        if count < config.batch_size:
            raise DomainwiseError(
                f"domain {name!r} has {count} images to train on, fewer than a batch of {config.batch_size}; "
                "choose a smaller batch size"
            )
    return splits


@torch.no_grad()
def snapshot(algorithm: Algorithm) -> dict[str, Tensor]:
    """The perturbation that lives on from update to update, by the names of its parts; empty where none does.

    `delta` (domains, *shape) is what is added to a domain's images. Beside it stands what it is made of: `components`
    (domains, count, *shape) and `mixing_weights` (domains, count), or the factors `left` and `right`.
    """
    perturbation = getattr(algorithm, "perturbation", None)
    if not isinstance(perturbation, Perturbation):
        return {}
    parts = {"delta": perturbation.delta()} if perturbation.is_kept else {}
    if isinstance(perturbation, MultiplePerturbation):
        parts["components"] = perturbation.deltas
        if perturbation.is_kept:
            parts["mixing_weights"] = perturbation.mixing_weights()
    if isinstance(perturbation, LowRankPerturbation):
        parts |= {"left": perturbation.left, "right": perturbation.right}
    return parts


def notes_on_snapshots(algorithm: Algorithm, config: RunConfig) -> list[str]:
    """A line for whoever asked to keep what the method does not have."""
    if not config.keep_perturbations or snapshot(algorithm):
        return []
    return [f"{config.algorithm_name} has no perturbation that lives on from update to update: none is kept"]
