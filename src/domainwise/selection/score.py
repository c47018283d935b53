"""Scores and labels of a single record. Imports no polars, so that training does not wait for it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def selection_score(record: Mapping[str, Any]) -> float:
    """Return the score that a run's best model has the highest of: `validation` if there is one, else `training`."""
    score = validation_score(record) if record["validation_domains"] else training_score(record)
    return 0.0 if score is None else score


def training_score(record: Mapping[str, Any]) -> float | None:
    """Return the mean accuracy on the training domains' holdouts; None if one was not measured."""
    return _mean([record["accuracy"][name].get("holdout") for name in record["train_domains"]])


def validation_score(record: Mapping[str, Any]) -> float | None:
    """Return the mean accuracy on all of the validation domains; None if one was not measured."""
    return _mean([record["accuracy"][name].get("main") for name in record["validation_domains"]])


def dataset_label(name: str, train_domains: Sequence[str], roles: str | None) -> str:
    """Return the dataset's name in tables; trained on a few named domains only, it is a task of its own."""
    return f"{name} from {', '.join(train_domains)}" if roles == "named" else name


def _mean(values: Sequence[float | None]) -> float | None:
    # numpy's sum rounds as DomainBed does, so ties there are ties here. np.mean is several times slower.
    numbers = [value for value in values if value is not None]
    return float(np.add.reduce(numbers)) / len(numbers) if numbers and len(numbers) == len(values) else None
