"""Scores and labels of a single record. Imports no polars, so that training does not wait for it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from domainwise.selection.metrics import read_values
from domainwise.selection.statistics import estimate_mean

# A run that guesses is this many standard errors above chance in one of a hundred cases.
_GUESSING_ERRORS = 2.326


def selection_score(record: Mapping[str, Any]) -> float:
    """Return the score that a run's best model has the highest of: `validation` if there is one, else `training`."""
    score = validation_score(record) if record["validation_domains"] else training_score(record)
    return 0.0 if score is None else score


def training_score(record: Mapping[str, Any], metric: str = "accuracy") -> float | None:
    """Return the mean accuracy, or other metric, on the training domains' holdouts; None if one was not measured."""
    return _mean(_read_part(record, metric, record["train_domains"], "holdout"))


def validation_score(record: Mapping[str, Any], metric: str = "accuracy") -> float | None:
    """Return the mean accuracy, or other metric, on all of the validation domains; None if one was not measured."""
    return _mean(_read_part(record, metric, record["validation_domains"], "main"))


def attacked_score(record: Mapping[str, Any], metric: str = "accuracy") -> float | None:
    """Return the mean on the training domains' holdouts under attack; None if one was not measured."""
    return _mean(_read_part(record, metric, record["train_domains"], "attacked"))


def training_error(
    record: Mapping[str, Any], holdout_sizes: Sequence[int] = (), metric: str = "accuracy"
) -> float | None:
    """Return the standard error of `training_score`.

    The training domains are the same for every draw, so how much they differ from each other says nothing about how
    well two draws can be told apart; the number of holdout images does. The error is therefore binomial, domain by
    domain.

    Args:
        holdout_sizes: number of holdout images per training domain. Without them, the error is that of the mean over
            domains (None for a single one): too large if some domains are harder than others. So is that of a metric
            other than accuracy, which is not a share of the images.
    """
    values = _read_part(record, metric, record["train_domains"], "holdout")
    if not values or None in values:
        return None
    accuracies = np.asarray(values, dtype=np.float64)
    if metric != "accuracy" or len(holdout_sizes) != len(values) or min(holdout_sizes) < 1:
        return estimate_mean(accuracies.tolist()).error
    return float(np.sqrt(np.sum(binomial_variance(accuracies, holdout_sizes))) / len(values))


def binomial_variance(accuracy: ArrayLike, images: ArrayLike) -> NDArray[np.float64]:
    """Return the variance of accuracies on numbers of images: the square of their standard errors.

    It is taken at (correct + 1) / (images + 2), or an accuracy of 0 or 1 would have no error at all.
    """
    accuracies, sizes = np.asarray(accuracy, dtype=np.float64), np.asarray(images)
    rates = (accuracies * sizes + 1) / (sizes + 2)
    variance: NDArray[np.float64] = rates * (1 - rates) / sizes
    return variance


def is_at_chance(record: Mapping[str, Any], chance: float | None, holdout_sizes: Sequence[int] = ()) -> bool | None:
    """Return whether `training_score` is one that guessing reaches: the run has collapsed. None if chance is unknown.

    The test is one-sided, at an error level of 1 %, and looks at no test domain.

    Args:
        chance: the accuracy of guessing on the training domains.
        holdout_sizes: number of holdout images per training domain. Without them, only scores up to `chance` count.
    """
    score, count = training_score(record), len(record["train_domains"])
    if chance is None or score is None:
        return None
    error = 0.0
    if len(holdout_sizes) == count and min(holdout_sizes) > 0:
        error = float(np.sqrt(np.sum(chance * (1 - chance) / np.asarray(holdout_sizes)))) / count
    return score <= chance + _GUESSING_ERRORS * error


def dataset_label(name: str, train_domains: Sequence[str], roles: str | None) -> str:
    """Return the dataset's name in tables; trained on a few named domains only, it is a task of its own."""
    return f"{name} from {', '.join(train_domains)}" if roles == "named" else name


def _read_part(record: Mapping[str, Any], metric: str, domains: Sequence[str], part: str) -> list[float | None]:
    values = read_values(record, metric)
    return [values.get(name, {}).get(part) for name in domains]


def _mean(values: Sequence[float | None]) -> float | None:
    # numpy's sum rounds as DomainBed does, so ties there are ties here. np.mean is several times slower.
    numbers = [value for value in values if value is not None]
    return float(np.add.reduce(numbers)) / len(numbers) if numbers and len(numbers) == len(values) else None
