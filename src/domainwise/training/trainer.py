"""`Trainer`: trains one run into its folder, or resumes it; a killed run resumes to the bit."""

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from domainwise.algorithms import Algorithm
from domainwise.algorithms.base import read_measurements
from domainwise.averaging import WeightAverage, build_average
from domainwise.data.batches import draw_batches
from domainwise.data.dataset import Split, assign_roles, split_domains
from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.errors import DomainwiseError, RunInterrupted
from domainwise.networks.finetuning import compile_, count_parameters, explain_compilation
from domainwise.perturbations import LowRankPerturbation, MultiplePerturbation, Perturbation
from domainwise.seeds import seed_hash
from domainwise.selection.score import selection_score
from domainwise.storage.run_folder import SCHEMA, Record, RunFolder
from domainwise.training.checkpoint import check_entries, check_progress
from domainwise.training.config import RunConfig, newer_defaults
from domainwise.training.device import (
    autocast,
    get_random_state,
    pick_device,
    seeded_torch,
    set_random_state,
)
from domainwise.training.distributed import join_process_group, sharding_caveats
from domainwise.training.evaluation import evaluate, measure_holdout_loss
from domainwise.training.loading import (
    build_algorithm,
    describe_data,
    extract_method_state,
    merge_holdouts,
    warn_of_new_revision,
)
from domainwise.training.probing import fit_classifier_
from domainwise.training.registry import DatasetCache, RunSeeds, derive_seeds, keep_recorded_name, resolve_config
from domainwise.training.schedule import PlateauSchedule, planned_factor, read_factors
from domainwise.training.tracking import check_logger, track_run

# On a device other than the CPU, how many updates may be under way before the host reads what they measured.
_READ_EVERY = 10
# In fp16, gradients that are not finite at this scale of the loss, the smallest number of fp16, are not finite at any.
_MIN_SCALE = 2.0**-24
OnNetwork = Callable[[int, int], None]
OnStart = Callable[[RunConfig, int], None]
OnStep = Callable[[int, float], None]
OnRecord = Callable[[Record], None]


def _ignore(*_: object) -> None:
    """A callback that does nothing."""


@dataclass(frozen=True)
class RunResult:
    """A finished or paused run: its folder, its config with every default filled in, and its records."""

    folder: Path
    config: RunConfig
    records: list[Record]

    @property
    def last(self) -> Record:
        return self.records[-1]


class Trainer:
    """Trains the run that `config` describes: `Trainer(config).fit()`.

    Under `torchrun` the processes share the run: each takes its shard of every batch, and only the first writes, logs
    and calls back.

    Args:
        on_data: called while images are read and decoded, which happens once.
        on_network: called before `on_start` with the number of the network's parameters, and of those that are trained.
        on_start: called before the first update with the config, every default filled in, and the updates already done.
        on_step: called after every update with the number of updates done and the newest loss that was read: on the
            CPU that of the update; elsewhere every tenth is read, because the device would wait for the host.
        on_record: called with each record, first with those of an earlier part of the run.
        should_stop: asked after every update; True saves the state and raises `RunInterrupted`.
        datasets: where the dataset comes from; share one between consecutive runs to build their data once.
    """

    def __init__(
        self,
        config: RunConfig,
        *,
        on_data: OnProgress = ignore_progress,
        on_network: OnNetwork = _ignore,
        on_start: OnStart = _ignore,
        on_step: OnStep = _ignore,
        on_record: OnRecord = _ignore,
        should_stop: Callable[[], bool] = lambda: False,
        datasets: DatasetCache | None = None,
    ) -> None:
        self.config = config
        self.on_data, self.on_network, self.on_start = on_data, on_network, on_start
        self.on_step, self.on_record = on_step, on_record
        self.should_stop = should_stop
        self.datasets = datasets or DatasetCache()
        self.log: OnRecord = _ignore
        # What a checkpoint holds, besides the algorithm and the random state.
        self.step = 0
        self.measurements: list[dict[str, float]] = []
        # What the latest updates measured, not yet read from the device, and the newest loss that was.
        self.unread: list[Mapping[str, float]] = []
        self.loss = math.nan
        self.records: list[Record] = []
        self.best_score = -1.0
        self.schedule: PlateauSchedule | None = None

    def fit(self) -> RunResult:
        """Train from the start or from the newest checkpoint, and return the result."""
        self.device = pick_device(self.config.device)
        with join_process_group(self.device) as self.world, ExitStack() as stack:
            if not self.world.is_main:
                self.on_data = self.on_network = self.on_start = self.on_step = self.on_record = _ignore
            with self.world.synchronize_errors():
                if self.config.logger is not None:
                    check_logger(self.config.logger)
                precision = autocast(self.device, self.config.precision)
                self.config = keep_recorded_name(self.config)
                # Wrong names of domains are reported before all images are decoded.
                named = (self.config.train_domains, self.config.test_domains)
                self.dataset = self.datasets.build(
                    self.config, self.on_data, lambda listing: assign_roles(listing, *named)
                )
                self.config, self.roles = resolve_config(self.config, self.dataset)
                self.splits = self._split()
            self.folder = RunFolder(self.config.folder())
            self.seeds = derive_seeds(self.config, self.dataset)
            with seeded_torch(self.config.threads, self.seeds.weights, self.device):
                with self.world.synchronize_errors():
                    # Before anything is written, so that a run that cannot start does not claim the folder.
                    if not self.folder.is_done:
                        self._build()
                    if self.world.is_main:
                        self.folder.create()
                        stack.enter_context(self.folder.lock())
                        self.folder.claim(
                            self.config.identity(),
                            describe_data(self.dataset, self.roles, self.splits),
                            {**newer_defaults(), "hparams": self.config.algorithm_class().Hparams.complete({})},
                        )
                        warn_of_new_revision(self.folder, self.dataset)
                if not self.world.broadcast_flag(self.folder.is_done):
                    with self.world.synchronize_errors():
                        self._start_or_restore()
                        if self.config.logger is not None and self.world.is_main:
                            self.log = stack.enter_context(track_run(self.config, is_resumed=self.step > 0))
                    self.on_network(*count_parameters(self.algorithm.network))
                    self.on_start(self.config, self.step)
                    for record in self.records:
                        self.on_record(record)
                    with explain_compilation() if self.config.compile else nullcontext():
                        self._train(precision)
            with self.world.synchronize_errors():
                result = RunResult(self.folder.path, self.config, self._read_complete_records())
                if self.world.is_main and self.folder.is_done:
                    self._prune()
                return result

    def _split(self) -> dict[str, Split]:
        batch_size, processes = self._setting("batch_size"), self.world.size
        if batch_size % processes:
            raise DomainwiseError(
                f"batch size {batch_size} is not divisible by {processes} processes; choose a multiple of {processes}"
            )
        splits = split_domains(self.dataset, self.config.trial_seed)
        if self.config.refit is not None:
            splits = merge_holdouts(splits, self.roles.train)
        for name in self.roles.train:
            count = len(splits[name].main)
            if count < batch_size:
                raise DomainwiseError(
                    f"domain {name!r} has only {count} training images for a batch size of {batch_size}; "
                    "choose a smaller batch size"
                )
        return splits

    def _build(self) -> None:
        """Build everything that training needs, or raise the error of what cannot be built."""
        self.generators = _make_generators(self.config, self.seeds)
        data = describe_data(self.dataset, self.roles, self.splits)
        self.algorithm = build_algorithm(self.config, data, self.generators["method"]).to(self.device)
        self.algorithm.network.to(memory_format=torch.channels_last)
        if self.config.precision == "fp16":
            self.algorithm.scale_losses_(torch.amp.GradScaler(self.device.type))
        if self.config.compile:
            compile_(self.algorithm.network)
        if self.config.average == "swad":
            self._require_holdouts("swad")
        if self.config.refit is not None:
            self.factors = read_factors(RunFolder(self.config.refit).read_records())
        elif self.config.lr_schedule == "plateau":
            self._require_holdouts("lr_schedule plateau")
            self.schedule = PlateauSchedule()

    def _start_or_restore(self) -> None:
        checkpoint = self.folder.read_checkpoint()
        if checkpoint is None:
            self._prepare_start()
        self.average = self._build_average()
        if checkpoint is not None:
            self._restore(checkpoint)

    def _prepare_start(self) -> None:
        """Fit the classifier and keep the initial weights, if that was asked for."""
        network = self.algorithm.network
        if self.config.probe_steps is not None:
            fit_classifier_(
                *(network, self.dataset, self.splits, self.roles.train),
                steps=self.config.probe_steps,
                lr=self.config.probe_lr,
                seed=seed_hash("probe", self.seeds.weights),
                device=self.device,
            )
        if self.config.shared_start and self.world.is_main:
            self.folder.write_weights("start", network.state_dict())

    def _build_average(self) -> WeightAverage | None:
        if self.config.average is None:
            return None
        return build_average(self.config.average, self.algorithm.network, **self.config.average_options)

    def _require_holdouts(self, what: str) -> None:
        if not any(len(self.splits[name].holdout) for name in self.roles.train):
            raise DomainwiseError(f"{what} needs holdout images of the training domains, and there are none")

    def _measure_loss(self) -> float:
        return measure_holdout_loss(
            *(self.algorithm.predict, self.dataset, self.splits, self.roles, self.device, self.world)
        )

    @contextmanager
    def _averaged_weights(self) -> Iterator[None]:
        """Let the algorithm predict with the averaged network, if there is one."""
        network = self.algorithm.network
        if self.average is not None:
            self.algorithm.network = self.average.averaged_network()
        try:
            yield
        finally:
            self.algorithm.network = network

    def _train(self, precision: Any) -> None:
        steps, record_steps = self._setting("steps"), frozenset(self.config.record_steps())
        last_step = min(steps, self.config.stop_after or steps)
        self.algorithm.train()
        caveats = sharding_caveats(self.algorithm, self.config, self.world)
        if self.world.is_main:
            for caveat in (*caveats, *_snapshot_caveats(self.algorithm, self.config)):
                warnings.warn(caveat, stacklevel=3)
        read_every = 1 if self.device.type == "cpu" else _READ_EVERY
        first_step, start = self.step, time.perf_counter()
        while self.step < last_step and self.lr_factor > 0:
            batches = self._draw_batches()
            self.algorithm.lr_factor = self.lr_factor
            with precision, self.world.seed_per_rank(self.generators["method"], self.seeds.method, self.step):
                if self.config.seeding == "common":
                    self.algorithm.dropout_seed = seed_hash(self.seeds.dropout, self.step, self.world.rank)
                    self.algorithm.seed_dropout_()
                measurement = self.algorithm.update(batches)
            if caveats:
                self.world.average_(self.algorithm.buffers())
            if self.average is not None:
                self.average.update_(self.algorithm.network, self._measure_loss)
            self.unread.append(measurement)
            self.step += 1
            is_recorded = self.step - 1 in record_steps
            should_stop = self._synchronize(is_recorded or self.step == last_step or self.step % read_every == 0)
            self.on_step(self.step, self.loss)
            if is_recorded:
                record = self._record((time.perf_counter() - start) / (self.step - first_step))
                self.log(record)
                self.on_record(record)
                first_step, start = self.step, time.perf_counter()
            elif should_stop():
                if self.unread:
                    self._synchronize(is_due=True)
                with self.world.synchronize_errors():
                    self._save()
                raise RunInterrupted(f"stopped after {self.step} steps")
        with self.world.synchronize_errors():
            if self.step < steps and self.lr_factor > 0:
                # Right after a record, everything is saved already.
                if self.measurements:
                    self._save()
            elif self.world.is_main:
                self.folder.write_done(None if self.step == steps else self.step - 1)

    def _synchronize(self, is_due: bool) -> Callable[[], bool]:
        """Return whether any rank should stop; if due, read the means of what all measured. One message for both.

        Raises:
            DomainwiseError: training has diverged.
        """
        measured = read_measurements(self.unread) if is_due else []
        should_stop = self.should_stop
        if self.world.size > 1:
            values = [value for measurement in measured for value in measurement.values()]
            *values, stopping = self.world.mean_floats([*values, float(self.should_stop())])
            means = iter(values)
            measured = [{name: next(means) for name in measurement} for measurement in measured]
            should_stop = partial(bool, stopping)
        if is_due:
            self.unread.clear()
        for step, measurement in enumerate(measured, start=self.step - len(measured)):
            self.loss = measurement["loss"]
            if not math.isfinite(self.loss) and not self._may_recover():
                raise DomainwiseError(
                    f"training diverged: the loss is {self.loss} at step {step}; try a lower lr or epsilon"
                )
        scaler = self.algorithm.scaler
        if measured and scaler is not None and scaler.get_scale() < _MIN_SCALE:
            raise DomainwiseError(
                f"training diverged: the gradients are not finite at step {self.step - 1}; try a lower lr or epsilon"
            )
        self.measurements += measured
        return should_stop

    def _may_recover(self) -> bool:
        """Return whether updates that overflow are skipped; each halves the scale, and below 1 it is not to blame."""
        scaler = self.algorithm.scaler
        return scaler is not None and scaler.get_scale() >= 1

    def _draw_batches(self) -> list[tuple[Tensor, Tensor]]:
        # Every rank draws the whole batch, so that their generators stay in step, and keeps its shard.
        batches = draw_batches(
            [(self.dataset.domains[self.dataset.index(name)], self.splits[name].main) for name in self.roles.train],
            self._setting("batch_size"),
            self.generators["batches"],
            self.device,
            augmentation=self.generators["augmentation"] if self.config.augment else None,
            is_strong=self.config.augment == "strong",
        )
        return [(self.world.shard(x), self.world.shard(y)) for x, y in batches]

    def _record(self, seconds_per_step: float) -> Record:
        """Evaluate and write everything; the checkpoint last, because it says that the rest is there."""
        with self._averaged_weights():
            measured = evaluate(
                *(self.algorithm, self.dataset, self.splits, self.roles, self.config.evaluate),
                *(self.device, self.world, self.config.attack_radius, self.config.metrics),
            )
            weights = self.algorithm.network.state_dict()
            learning_rate = self._adjust_learning_rate()
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
            **measured,
            **_average_measurements(self.measurements),
            **learning_rate,
            "seconds_per_step": seconds_per_step,
            **self.algorithm.describe(),
        }
        self.records.append(record)
        self.measurements.clear()
        score = selection_score(record)
        # Without holdouts there is nothing to select by, and the newest model is the best.
        is_best = score > self.best_score or self.config.refit is not None
        self.best_score = max(score, self.best_score)
        if self.world.is_main:
            self.folder.write_records(self.records)
            if is_best:
                self.folder.write_weights("best", weights)
            self.folder.write_weights("last", weights)
            if self.config.keep_perturbations and (tensors := snapshot_perturbation(self.algorithm)):
                self.folder.write_perturbation(self.step - 1, tensors)
            self._save()
        return record

    @property
    def lr_factor(self) -> float:
        """What the method's learning rates are multiplied by; 0 ends training."""
        if (planned := self._plan_factor()) is not None:
            return planned
        # Records during the warm-up have its factors, which are over.
        has_factor = self.records and self.records[-1]["step"] + 1 >= self.config.lr_warmup
        return float(self.records[-1].get("lr_factor", 1.0)) if has_factor else 1.0

    def _plan_factor(self) -> float | None:
        return planned_factor(self.step, self._setting("steps"), self.config.lr_schedule, self.config.lr_warmup)

    def _adjust_learning_rate(self) -> dict[str, float]:
        """Return what a record says about the learning rate of the updates after it; nothing if it is constant."""
        if self.config.refit is not None:
            return {"lr_factor": self.factors[self.step - 1]} if self.step - 1 in self.factors else {}
        planned = self._plan_factor()
        if self.schedule is None:
            is_constant = planned is None and not self.config.lr_warmup
            return {} if is_constant else {"lr_factor": 1.0 if planned is None else planned}
        loss = self._measure_loss()
        if not self.algorithm.is_warming_up and planned is None:
            self.schedule.step(loss)
        return {"holdout_loss": loss, "lr_factor": self.schedule.factor if planned is None else planned}

    def _save(self) -> None:
        if self.world.is_main:
            self.folder.write_checkpoint(
                {
                    "step": self.step,
                    "measured": self.measurements,
                    "records": len(self.records),
                    "best": self.best_score,
                    "algorithm": self.algorithm.state_dict(),
                    "average": None if self.average is None else self.average.state_dict(),
                    "schedule": None if self.schedule is None else self.schedule.state_dict(),
                    "generators": {name: each.get_state() for name, each in self.generators.items()},
                    "random": get_random_state(self.device),
                }
            )

    def _restore(self, checkpoint: dict[str, Any]) -> None:
        records = self.folder.read_records()
        try:
            check_entries(checkpoint, self._setting("steps"))
            count = checkpoint["records"]
            if len(records) >= count:
                check_progress(checkpoint, records[:count])
            self.step, self.measurements = checkpoint["step"], checkpoint["measured"]
            self.best_score = checkpoint["best"]
            self.algorithm.load_state_dict(checkpoint["algorithm"])
            if self.average is not None:
                self.average.load_state_dict(checkpoint["average"])
            if self.schedule is not None:
                self.schedule.load_state_dict(checkpoint["schedule"])
            # Before there were common random numbers, a run had a single generator.
            states = checkpoint.get("generators") or dict.fromkeys(self.generators, checkpoint["generator"])
            for name, generator in self.generators.items():
                generator.set_state(states[name])
            set_random_state(self.device, checkpoint["random"])
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            reason = f"missing key {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
            raise DomainwiseError(
                f"{self.folder.checkpoint_file} does not match this run: {reason}; restore it, or delete it to train "
                "from the start"
            ) from error
        if len(records) < count:
            raise DomainwiseError(
                f"{self.folder.records_file} has {len(records)} records, but the checkpoint counts {count}; restore it"
            )
        self.records = records[:count]
        if self.world.is_main:
            # Without anything newer than the checkpoint, and without an incomplete line.
            self.folder.write_records(self.records)

    def _prune(self) -> None:
        """Remove what is not to be kept of a finished run, also of one that was killed before it did that itself."""
        if self.config.keep != "all" and (checkpoint := self.folder.read_checkpoint()) is not None:
            is_averaged = self.config.average is not None
            self.folder.write_method_state(extract_method_state(checkpoint["algorithm"], with_network=is_averaged))
        self.folder.prune(self.config.keep)

    def _read_complete_records(self) -> list[Record]:
        """Return the records of a run that its folder calls done, or of one that has paused."""
        records, last_step = self.folder.read_records(), self.folder.find_last_step(self._setting("steps"))
        if self.folder.is_done and (not records or records[-1]["step"] != last_step):
            raise DomainwiseError(
                f"the run is done, but {self.folder.records_file} does not reach its last step, {last_step}; "
                "restore it, or delete the folder to train again"
            )
        return records

    def _setting(self, name: str) -> int:
        """Return a setting that `resolve_config` has filled in."""
        value = getattr(self.config, name)
        assert isinstance(value, int)
        return value


def _make_generators(config: RunConfig, seeds: RunSeeds) -> dict[str, torch.Generator]:
    """Return the sources of batches, their augmentation and the method's draws; in DomainBed it is the same for all."""
    names = ("batches", "augmentation", "method")
    if config.seeding == "domainbed":
        return dict.fromkeys(names, torch.Generator().manual_seed(seeds.method))
    return {name: torch.Generator().manual_seed(getattr(seeds, name)) for name in names}


def train(
    config: RunConfig,
    *,
    on_data: OnProgress = ignore_progress,
    on_network: OnNetwork = _ignore,
    on_start: OnStart = _ignore,
    on_step: OnStep = _ignore,
    on_record: OnRecord = _ignore,
    should_stop: Callable[[], bool] = lambda: False,
    datasets: DatasetCache | None = None,
) -> RunResult:
    """Train a run, or resume it, and return the result; arguments as for `Trainer`."""
    trainer = Trainer(
        config,
        on_data=on_data,
        on_network=on_network,
        on_start=on_start,
        on_step=on_step,
        on_record=on_record,
        should_stop=should_stop,
        datasets=datasets,
    )
    return trainer.fit()


@torch.no_grad()
def snapshot_perturbation(algorithm: Algorithm) -> dict[str, Tensor]:
    """Return the tensors of a perturbation that persists between updates; empty if the method has none.

    `delta` (domains, *shape) is what is added to the images of each domain. What it consists of comes with it:
    `components` (domains, count, *shape) and `mixing_weights` (domains, count), or the factors `left` and `right`.
    """
    perturbation = getattr(algorithm, "perturbation", None)
    if not isinstance(perturbation, Perturbation):
        return {}
    tensors = {"delta": perturbation.delta()} if perturbation.is_kept else {}
    if isinstance(perturbation, MultiplePerturbation):
        tensors["components"] = perturbation.components()
        if perturbation.is_kept:
            tensors["mixing_weights"] = perturbation.mixing_weights()
    if isinstance(perturbation, LowRankPerturbation) and perturbation.solver == "factors":
        tensors |= {"left": perturbation.left, "right": perturbation.right}
    return tensors


def _snapshot_caveats(algorithm: Algorithm, config: RunConfig) -> list[str]:
    if not config.keep_perturbations or snapshot_perturbation(algorithm):
        return []
    return [f"{config.algorithm_name} has no perturbation that persists between updates; nothing to keep"]


def _average_measurements(measurements: Sequence[dict[str, float]]) -> dict[str, Any]:
    """Return the loss and the method's own terms as means over the updates since the last record."""
    # In fp16, updates whose loss overflows are skipped.
    finite = [measurement for measurement in measurements if math.isfinite(measurement["loss"])]
    if not finite:
        raise DomainwiseError("training diverged: no loss since the last record is finite; try a lower lr or epsilon")
    values: dict[str, list[float]] = {}
    for measurement in finite:
        for name, value in measurement.items():
            values.setdefault(name, []).append(value)
    terms = {name: math.fsum(each) / len(each) for name, each in values.items()}
    loss = terms.pop("loss")
    return {"loss": loss, "terms": terms} if terms else {"loss": loss}
