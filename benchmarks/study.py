"""What comparisons over many runs share: training them into one file of records, and reading accuracies off it."""

import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from domainwise.storage.files import write_atomic
from domainwise.sweeps.engine import Watch
from domainwise.sweeps.local_engine import run_all
from domainwise.training import RunConfig, RunResult

Record = dict[str, Any]


def train_all(configs: Sequence[RunConfig], *, workers: int, records_file: Path | None = None) -> list[list[Record]]:
    """Train what is not yet trained; every run's records, which are added to `records_file` as well."""

    def show(number: int, result: RunResult) -> None:
        best = best_by_holdout(result.records)
        line = f"holdout {holdout(best):.3f}, test {unseen(best):.3f} at step {best['step']}"
        print(f"{number + 1}/{len(configs)} {result.folder.name}: {line}", file=sys.stderr, flush=True)

    results = [result.records for result in run_all(configs, workers=workers, watch=Watch(on_done=show)) if result]
    if records_file is not None:
        lines = [json.dumps(record) for records in results for record in records]
        before = records_file.read_text().splitlines() if records_file.exists() else []
        write_atomic(records_file, "".join(f"{line}\n" for line in dict.fromkeys([*before, *lines])).encode())
    return results


def read_records(file: Path) -> list[Record]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def best_by_holdout(records: Iterable[Record]) -> Record:
    """Training-domain selection: the highest mean holdout of the training domains, the earliest on a tie."""
    return max(records, key=holdout)


def holdout(record: Record) -> float:
    """Mean accuracy on the training domains' holdout."""
    return statistics.fmean(record["accuracy"][name]["holdout"] for name in record["train_domains"])


def unseen(record: Record, part: str = "main") -> float:
    """Accuracy on the domain that was left out."""
    return float(record["accuracy"][record["test_domains"][0]][part])


def mean_and_error(shares: Sequence[float]) -> str:
    """Mean over trials in percent, with its standard error where there are several."""
    values = [100 * share for share in shares]
    mean = f"{statistics.fmean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.pstdev(values) / len(values) ** 0.5:.1f}"
