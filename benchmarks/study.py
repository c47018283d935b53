"""Shared by the studies of PACS and Colored MNIST: training many runs into one file of records, and reading it."""

import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

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


def select_by_holdout(records: Iterable[Record]) -> Record:
    """Return the record with the highest holdout accuracy on the training domains, the earliest one on a tie."""
    return max(records, key=get_holdout_accuracy)


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
