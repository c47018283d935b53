"""Shared by the studies: training many runs into one file of records, reading it, and selecting models from it."""

import json
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from domainwise.selection import SELECTIONS
from domainwise.selection.frame import frame_from_rows, record_rows
from domainwise.selection.statistics import estimate_mean, format_percent
from domainwise.storage.files import write_atomic
from domainwise.sweeps.engine import EngineCallbacks
from domainwise.sweeps.local_engine import run_all
from domainwise.training import RunConfig, RunResult

Record = dict[str, Any]


def train_all(configs: Sequence[RunConfig], *, workers: int, records_file: Path | None = None) -> list[list[Record]]:
    """Train what is not finished, return the records of every run, and add them to `records_file`."""

    def show(number: int, result: RunResult) -> None:
        best = select_by_holdout(result.records)
        line = f"holdout {get_holdout_accuracy(best):.3f}, test {get_test_accuracy(best):.3f} at step {best['step']}"
        print(f"{number + 1}/{len(configs)} {result.folder.name}: {line}", file=sys.stderr, flush=True)

    results = [result.records for result in run_all(configs, EngineCallbacks(on_done=show), workers=workers) if result]
    if records_file is not None:
        lines = [json.dumps(record) for records in results for record in records]
        before = records_file.read_text().splitlines() if records_file.exists() else []
        write_atomic(records_file, "".join(f"{line}\n" for line in dict.fromkeys([*before, *lines])).encode())
    return results


def read_records(file: Path) -> list[Record]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def select(
    records_by_draw: Mapping[int, Iterable[Record]], rule: str, holdout_sizes: Sequence[int] = ()
) -> tuple[int, Record]:
    """Return the draw and the record that a rule of `domainwise.selection` selects; of equal draws, the largest.

    Args:
        holdout_sizes: number of holdout images per training domain, for `one_standard_error`.
    """
    records = [{**each, "hparams_seed": draw} for draw, run in records_by_draw.items() for each in run]
    rows = [row for each in records for row in record_rows("", each, holdout_sizes=holdout_sizes)]
    chosen = SELECTIONS[rule](frame_from_rows(rows)).row(0, named=True)
    place = chosen["draw"], chosen["step"]
    return chosen["draw"], next(each for each in records if (each["hparams_seed"], each["step"]) == place)


def make_record(
    holdout: Mapping[str, float],
    test: Mapping[str, float],
    *,
    step: int = 0,
    attacked: float | None = None,
    **hparams: Any,
) -> Record:
    """Return accuracies as a record that rules can select.

    Args:
        attacked: accuracy on the holdouts under attack.
        hparams: at least `epsilon`, if the method has a radius.
    """
    accuracy: dict[str, dict[str, float | None]] = {
        name: {"holdout": value, "attacked": attacked} for name, value in holdout.items()
    }
    return {
        "dataset": "",
        "algorithm": "",
        "trial_seed": 0,
        "hparams_seed": 0,
        "step": step,
        "hparams": hparams,
        "train_domains": list(holdout),
        "validation_domains": [],
        "test_domains": list(test),
        "roles": "fixed",
        "accuracy": accuracy | {name: {"main": value} for name, value in test.items()},
    }


def select_by_holdout(records: Iterable[Record]) -> Record:
    """Return the record of a run that has the highest holdout accuracy on the training domains."""
    return select({0: records}, "training_domain")[1]


def get_holdout_accuracy(record: Record) -> float:
    """Return the mean accuracy on the training domains' holdouts."""
    return statistics.fmean(record["accuracy"][name]["holdout"] for name in record["train_domains"])


def get_test_accuracy(record: Record, part: str = "main") -> float:
    """Return the accuracy on the held-out domain."""
    return float(record["accuracy"][record["test_domains"][0]][part])


def format_mean(accuracies: Sequence[float]) -> str:
    """Return the mean over trials in percent, with its standard error if there are several."""
    estimate = estimate_mean(accuracies)
    return format_percent(estimate.mean, estimate.error)
