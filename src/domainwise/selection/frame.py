"""Records of many runs as one frame: a row a record and test domain, with all that selection looks at."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

# A run that leaves out two domains only to select by one of them is no `result` for either.
SCHEMA: Mapping[str, Any] = {
    "run": pl.String,
    "dataset": pl.String,
    "algorithm": pl.String,
    "trial": pl.Int64,
    "draw": pl.Int64,
    "step": pl.Int64,
    "test_domains": pl.List(pl.String),
    "test_domain": pl.String,
    "position": pl.Int64,
    "num_domains": pl.Int64,
    "is_result": pl.Boolean,
    "training": pl.Float64,
    "validation": pl.Float64,
    "main": pl.Float64,
    "holdout": pl.Float64,
}


Row = tuple[Any, ...]


def frame_of(records: Iterable[tuple[str, Mapping[str, Any]]]) -> pl.DataFrame:
    """The frame of (run, record) pairs.

    Its columns: `run` names the run; `dataset`, `algorithm`, `trial`, `draw` (the hyperparameter seed) and `step` are
    the record's; `test_domains` are all that the run left out and `test_domain` the one of this row, `position` its
    place among the dataset's `num_domains`; `is_result` says whether the row counts in a table or only helps to
    select. Accuracies: `training` is the mean over the training domains' holdouts, `validation` over whole validation
    domains, `main` and `holdout` the test domain's own; null where it was not measured.
    """
    return frame_of_rows([row for run, record in records for row in rows_of(run, record)])


def frame_of_rows(rows: Sequence[Row]) -> pl.DataFrame:
    # An accuracy that is not a number was not measured, and polars would take it for the highest.
    columns = zip(*rows, strict=True) if rows else ((),) * len(SCHEMA)
    frame = pl.DataFrame(dict(zip(SCHEMA, columns, strict=True)), schema=SCHEMA)
    return frame.with_columns(pl.col(pl.Float64).fill_nan(None))


def rows_of(run: str, record: Mapping[str, Any]) -> list[Row]:
    """A row a test domain; a LookupError, TypeError, ValueError or AttributeError for what is no record."""
    accuracy, tested = record["accuracy"], list(record["test_domains"])
    names = list(accuracy)
    is_result = len(tested) == 1 or record.get("roles", "left_out") != "left_out"
    seeds_and_step = [_integer(record[key]) for key in ("trial_seed", "hparams_seed", "step")]
    label = dataset_label(str(record["dataset"]), record["train_domains"], record.get("roles"))
    of_run = (run, label, str(record["algorithm"]), *seeds_and_step, tested)
    training = _mean([accuracy[name].get("holdout") for name in record["train_domains"]])
    validation = _mean([accuracy[name].get("main") for name in record["validation_domains"]])
    return [
        (
            *of_run,
            name,
            names.index(name),
            len(names),
            is_result,
            training,
            validation,
            _number(accuracy[name].get("main")),
            _number(accuracy[name].get("holdout")),
        )
        for name in tested
    ]


def dataset_label(name: str, train_domains: Sequence[str], roles: str | None) -> str:
    """The dataset as tables call it; trained on named domains only, it is another task."""
    return f"{name} from {', '.join(train_domains)}" if roles == "named" else name


def _mean(values: Sequence[float | None]) -> float | None:
    # numpy's mean, as DomainBed rounds it, so that what ties there ties here; `np.mean` itself takes its time.
    there = [value for value in values if value is not None]
    return float(np.add.reduce(there)) / len(there) if there and len(there) == len(values) else None


def _number(value: float | None) -> float | None:
    return None if value is None else float(value)


def _integer(value: object) -> int:
    if not isinstance(value, int) or abs(value) >= 2**63:
        raise ValueError(f"{value!r} is not a number of a step or seed")
    return value
