"""Records of many runs as one frame: one row per record and test domain, with everything that selection looks at."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from domainwise.perturbations.radius import split_radius
from domainwise.selection.metrics import read_values
from domainwise.selection.score import (
    attacked_score,
    dataset_label,
    is_at_chance,
    training_error,
    training_score,
    validation_score,
)

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
    "epsilon": pl.Float64,
    "epsilon_unit": pl.String,
    "is_warmup": pl.Boolean,
    "training": pl.Float64,
    "training_error": pl.Float64,
    "is_collapsed": pl.Boolean,
    "attacked": pl.Float64,
    "validation": pl.Float64,
    "main": pl.Float64,
    "holdout": pl.Float64,
}
Row = tuple[Any, ...]


def build_frame(records: Iterable[tuple[str, Mapping[str, Any]]], metric: str = "accuracy") -> pl.DataFrame:
    """Build the frame of (run, record) pairs, with the values of a metric.

    Columns:
        run: name of the run.
        dataset, algorithm, trial, draw (the hyperparameter seed), step: the record's.
        test_domains: all that the run left out.
        test_domain, position: the one of this row, and its place among the dataset's `num_domains`.
        is_result: whether the row counts in a table. A run that leaves out two domains, one to select the model for the
            other, is a result for neither.
        epsilon, epsilon_unit: the radius of the method, null if it has none, and its unit, such as `rms`.
        is_warmup: whether the radius was still growing towards epsilon.
        training, training_error: mean accuracy on the training domains' holdouts, and its standard error.
        is_collapsed: whether the accuracy there is no better than guessing, whatever the metric; null if unknown.
        attacked: the same mean under a domain-wise attack.
        validation: mean accuracy on whole validation domains.
        main, holdout: accuracy on the two parts of the test domain. Accuracies that were not measured are null.
        With another metric, all of these are of that metric.
    """
    return frame_from_rows([row for run, record in records for row in record_rows(run, record, metric=metric)])


def frame_from_rows(rows: Sequence[Row]) -> pl.DataFrame:
    columns = zip(*rows, strict=True) if rows else ((),) * len(SCHEMA)
    try:
        frame = pl.DataFrame(dict(zip(SCHEMA, columns, strict=True)), schema=SCHEMA)
    except UnicodeEncodeError:
        return frame_from_rows([tuple(map(_escape_surrogates, row)) for row in rows])
    # NaN means not measured; polars would rank it highest.
    return frame.with_columns(pl.col(pl.Float64).fill_nan(None))


def record_rows(
    run: str,
    record: Mapping[str, Any],
    *,
    holdout_sizes: Sequence[int] = (),
    steps: int | None = None,
    chance: float | None = None,
    metric: str = "accuracy",
) -> list[Row]:
    """Return one row per test domain.

    Args:
        holdout_sizes: number of holdout images per training domain, if known.
        steps: number of steps of the run, if known.
        chance: accuracy of guessing on the training domains, if known.
        metric: what the numbers of a row are.
    """
    values, test_domains = read_values(record, metric), list(record["test_domains"])
    names = list(record["accuracy"])
    is_result = len(test_domains) == 1 or record.get("roles", "left_out") != "left_out"
    label = dataset_label(record["dataset"], record["train_domains"], record.get("roles"))
    hparams = record.get("hparams", {})
    radius = _parse_radius(hparams.get("epsilon"))
    is_warmup = record["step"] + 1 < _count_warmup_steps(hparams.get("warmup"), steps)
    scores = (
        *(training_score(record, metric), training_error(record, holdout_sizes, metric)),
        is_at_chance(record, chance, holdout_sizes),
        *(attacked_score(record, metric), validation_score(record, metric)),
    )
    return [
        (
            *(run, label, record["algorithm"]),
            *(record["trial_seed"], record["hparams_seed"], record["step"], test_domains),
            *(name, names.index(name), len(names), is_result),
            *(*radius, is_warmup, *scores),
            *(_parse_float(values.get(name, {}).get(part)) for part in ("main", "holdout")),
        )
        for name in test_domains
    ]


def _escape_surrogates(value: Any) -> Any:
    """Return a name that is not UTF-8 with its bytes escaped, because polars cannot store it."""
    if isinstance(value, list):
        return [_escape_surrogates(each) for each in value]
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def _parse_float(value: float | None) -> float | None:
    return None if value is None else float(value)


def _parse_radius(value: float | str | None) -> tuple[float | None, str | None]:
    try:
        return (None, None) if value is None else split_radius(value)
    except ValueError:  # the epsilon of someone's own method may be anything
        return None, None


def _count_warmup_steps(share: object, steps: int | None) -> int:
    # As with epsilon, anything else is the setting of someone's own method.
    return round(share * steps) if steps is not None and isinstance(share, float) and 0 <= share <= 1 else 0
