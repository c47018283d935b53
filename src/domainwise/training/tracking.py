"""Records to an experiment tracker as well: TensorBoard, Weights & Biases or MLflow, imported only when asked for."""

import importlib
import importlib.util
import json
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from domainwise.errors import DomainwiseError
from domainwise.seeds import seed_hash
from domainwise.storage.run_folder import Record
from domainwise.training.config import LoggerName, RunConfig

PROJECT = "domainwise"


class Tracker(Protocol):
    """A run as a tracker keeps it. Made of the config, and whether the run goes on with one that it has already."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def end(self, *, is_whole: bool) -> None: ...


def check_logger(name: LoggerName | None) -> None:
    """Refuse a tracker whose package is not here, before any work is done."""
    if name is not None and importlib.util.find_spec(name) is None:
        raise DomainwiseError(f"logger {name!r} needs the package {name}: pip install 'domainwise[{name}]'")


@contextmanager
def tracked(config: RunConfig, *, is_resumed: bool) -> Iterator[Callable[[Record], None]]:
    """Yields what a new record is to be given to. Records from before the run was stopped are there already."""
    if config.logger is None:
        yield lambda record: None
        return
    try:
        tracker = TRACKERS[config.logger](config, is_resumed)
    except Exception as error:  # each package has errors of its own: no key, no server, ...
        raise DomainwiseError(f"{config.logger} did not start: {_line(error)}") from error

    def log(record: Record) -> None:
        try:
            tracker.log(record["step"], scalars(record))
        except Exception as error:  # a server that is away for a while is no reason to stop training
            warnings.warn(
                f"{config.logger} did not take the record of step {record['step']}: {_line(error)}", stacklevel=2
            )

    is_whole = False
    try:
        yield log
        is_whole = True
    finally:
        tracker.end(is_whole=is_whole)


def scalars(record: Record) -> dict[str, float]:
    """What there is to plot of a record, by name."""
    values = {
        f"accuracy/{domain}/{part}": value
        for domain, parts in record["accuracy"].items()
        for part, value in parts.items()
    }
    values["loss"] = record["loss"]
    values["seconds_per_step"] = record["seconds_per_step"]
    values |= {f"terms/{name}": value for name, value in record.get("terms", {}).items()}
    perturbation = record.get("perturbation")
    if isinstance(perturbation, Mapping):
        norms = zip(record["train_domains"], perturbation.get("norm", ()), strict=False)
        values |= {f"perturbation_norm/{domain}": norm for domain, norm in norms}
    return values


class _TensorBoard:
    """Event files in the run folder: `tensorboard --logdir runs`."""

    def __init__(self, config: RunConfig, is_resumed: bool) -> None:
        writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        self.writer = writer(log_dir=str(config.folder() / "tensorboard"))
        if not is_resumed:
            lines = json.dumps(config.identity(), indent=2).splitlines()
            self.writer.add_text("config", "\n".join(f"    {line}" for line in lines))  # indented: code in Markdown

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)
        self.writer.flush()

    def end(self, *, is_whole: bool) -> None:
        self.writer.close()


class _WeightsAndBiases:
    """A run of the project that $WANDB_PROJECT names; $WANDB_MODE=offline keeps it in the run folder."""

    def __init__(self, config: RunConfig, is_resumed: bool) -> None:
        self.run = importlib.import_module("wandb").init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=_stable_name(config),
            name=config.folder().name,
            dir=str(config.folder()),
            config=config.identity(),
            # A new run in the place of one that was deleted takes its id over.
            resume="allow" if is_resumed else None,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def end(self, *, is_whole: bool) -> None:
        self.run.finish(exit_code=0 if is_whole else 1)


class _MLflow:
    """A run of the experiment that $MLFLOW_EXPERIMENT_NAME names, where $MLFLOW_TRACKING_URI says."""

    def __init__(self, config: RunConfig, is_resumed: bool) -> None:
        self.entities = importlib.import_module("mlflow.entities")
        self.client = importlib.import_module("mlflow").MlflowClient()
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        known = self.client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self.client.create_experiment(name)
        tag, stable = "domainwise.run", _stable_name(config)
        earlier = self.client.search_runs([experiment], f"tags.`{tag}` = '{stable}'", max_results=1)
        if is_resumed and earlier:
            self.run_id = earlier[0].info.run_id
            self.client.update_run(self.run_id, status="RUNNING")
        else:
            created = self.client.create_run(experiment, tags={tag: stable}, run_name=config.folder().name)
            self.run_id = created.info.run_id
            params = [self.entities.Param(key, value) for key, value in _flat(config.identity()).items()]
            self.client.log_batch(self.run_id, params=params)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        # MLflow takes fewer signs in names than there are in, say, the domain `+90%`.
        named = {re.sub(r"[^\w\-. :/]", "_", name): value for name, value in values.items()}
        metrics = [self.entities.Metric(name, value, now, step) for name, value in named.items()]
        self.client.log_batch(self.run_id, metrics=metrics)

    def end(self, *, is_whole: bool) -> None:
        self.client.set_terminated(self.run_id, "FINISHED" if is_whole else "KILLED")


TRACKERS: Mapping[LoggerName, Callable[[RunConfig, bool], Tracker]] = {
    "tensorboard": _TensorBoard,
    "wandb": _WeightsAndBiases,
    "mlflow": _MLflow,
}


def _stable_name(config: RunConfig) -> str:
    """The same whenever the run goes on: its folder's name, and a number made of where that is and what the run is."""
    folder = config.folder().resolve()
    plain = re.sub(r"[^\w-]", "_", folder.name, flags=re.ASCII)[:64]
    return f"{plain}-{seed_hash(str(folder), sorted(map(str, config.identity().items()))):08x}"


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings as `hparams.lr`, all as words."""
    flat: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = str(value)
    return flat


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
