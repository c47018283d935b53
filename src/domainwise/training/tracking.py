"""Logs records to TensorBoard, Weights & Biases or MLflow, each imported only if it is used."""

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

from domainwise.errors import DomainwiseError, suggest_install
from domainwise.seeds import seed_hash
from domainwise.selection.metrics import METRICS, read_values
from domainwise.storage.run_folder import Record
from domainwise.training.config import LoggerName, RunConfig

PROJECT = "domainwise"


class Tracker(Protocol):
    """A run in an experiment tracker, created from the config and whether the run is resumed."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def end(self, *, is_complete: bool) -> None: ...


def check_logger(name: LoggerName) -> None:
    """Raise an error if the tracker's package is not installed, before any work is done."""
    if importlib.util.find_spec(name) is None:
        raise DomainwiseError(f"logger {name!r} needs {name}; {suggest_install(name)}")


@contextmanager
def track_run(config: RunConfig, *, is_resumed: bool) -> Iterator[Callable[[Record], None]]:
    """Yield the function to log new records with. The tracker already has those from before an interruption."""
    assert config.logger is not None
    try:
        tracker = TRACKERS[config.logger](config, is_resumed)
    except Exception as error:  # each package has its own errors: no key, no server, ...
        raise DomainwiseError(f"could not start {config.logger}: {_first_line(error)}") from error

    def log(record: Record) -> None:
        try:
            tracker.log(record["step"], flatten_record(record))
        except Exception as error:  # a server outage is no reason to stop training
            warnings.warn(
                f"{config.logger} could not log the record of step {record['step']}: {_first_line(error)}", stacklevel=2
            )

    is_complete = False
    try:
        yield log
        is_complete = True
    finally:
        tracker.end(is_complete=is_complete)


def flatten_record(record: Record) -> dict[str, float]:
    """Return the scalars of a record by name."""
    values = {
        f"{metric}/{domain}/{part}": value
        for metric in METRICS
        for domain, parts in read_values(record, metric).items()
        for part, value in parts.items()
        if value is not None
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

    def end(self, *, is_complete: bool) -> None:
        self.writer.close()


class _WeightsAndBiases:
    """A run of the project $WANDB_PROJECT; $WANDB_MODE=offline keeps it in the run folder."""

    def __init__(self, config: RunConfig, is_resumed: bool) -> None:
        self.run = importlib.import_module("wandb").init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=_stable_name(config),
            name=config.folder().name,
            dir=str(config.folder()),
            config=config.identity(),
            # A new run in the place of a deleted one takes over its id.
            resume="allow" if is_resumed else None,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.run.log(dict(values), step=step)

    def end(self, *, is_complete: bool) -> None:
        self.run.finish(exit_code=0 if is_complete else 1)


class _MLflow:
    """A run of the experiment $MLFLOW_EXPERIMENT_NAME at $MLFLOW_TRACKING_URI."""

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
            params = [self.entities.Param(key, value) for key, value in _flatten(config.identity()).items()]
            self.client.log_batch(self.run_id, params=params)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        # MLflow allows fewer characters in names than there are in, say, the domain `+90%`.
        named = {re.sub(r"[^\w\-. :/]", "_", name): value for name, value in values.items()}
        metrics = [self.entities.Metric(name, value, now, step) for name, value in named.items()]
        self.client.log_batch(self.run_id, metrics=metrics)

    def end(self, *, is_complete: bool) -> None:
        self.client.set_terminated(self.run_id, "FINISHED" if is_complete else "KILLED")


TRACKERS: Mapping[LoggerName, Callable[[RunConfig, bool], Tracker]] = {
    "tensorboard": _TensorBoard,
    "wandb": _WeightsAndBiases,
    "mlflow": _MLflow,
}


def _stable_name(config: RunConfig) -> str:
    """Return a name that stays the same when the run resumes, from its folder and what the run is."""
    folder = config.folder().resolve()
    plain = re.sub(r"[^\w-]", "_", folder.name, flags=re.ASCII)[:64]
    return f"{plain}-{seed_hash(str(folder), sorted(map(str, config.identity().items()))):08x}"


def _flatten(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Flatten nested settings to names like `hparams.lr`, with values as strings."""
    flat: dict[str, str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            flat |= _flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = str(value)
    return flat


def _first_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
