"""The score of a single record, by which a run keeps its best model."""

from typing import Any

import pytest

from domainwise.selection.score import selection_score


def make_record(validation_domains: tuple[str, ...], **accuracy: dict[str, float]) -> dict[str, Any]:
    return {"train_domains": ("a", "b"), "validation_domains": validation_domains, "accuracy": accuracy}


def test_without_validation_domains_it_is_the_mean_over_training_holdouts() -> None:
    record = make_record((), a={"holdout": 0.5}, b={"holdout": 0.7}, c={"main": 0.1, "holdout": 0.1})
    assert selection_score(record) == pytest.approx(0.6)


def test_validation_domains_take_precedence() -> None:
    record = make_record(("c",), a={"holdout": 0.5}, b={"holdout": 0.7}, c={"main": 0.1, "holdout": 0.2})
    assert selection_score(record) == 0.1


def test_without_anything_to_select_by_it_is_zero() -> None:
    assert selection_score(make_record((), a={"holdout": 0.5}, b={"main": 0.7})) == 0.0
