"""The score of a single record, by which a run keeps its best model."""

from typing import Any

import numpy as np
import pytest

from domainwise.selection.score import is_at_chance, selection_score, training_error


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


def test_training_error_is_binomial_per_domain() -> None:
    # 19 of 28 and 7 of 8 images: at 20 / 30 and 8 / 10, the variances are 2/9 / 28 and .16 / 8.
    record = make_record((), a={"holdout": 19 / 28}, b={"holdout": 7 / 8})
    assert training_error(record, [28, 8]) == pytest.approx((2 / 9 / 28 + 0.16 / 8) ** 0.5 / 2)


def test_a_perfect_holdout_still_has_an_error() -> None:
    assert training_error(make_record((), a={"holdout": 1.0}, b={"holdout": 1.0}), [98, 98]) == pytest.approx(
        (0.99 * 0.01 / 98 / 2) ** 0.5
    )


def test_without_sizes_training_error_is_that_of_the_mean_over_domains() -> None:
    record = make_record((), a={"holdout": 0.6}, b={"holdout": 0.8})
    # The standard deviation (ddof 1) is .2 / sqrt(2).
    assert training_error(record) == training_error(record, [5]) == training_error(record, [5, 0]) == pytest.approx(0.1)
    one_domain = {**record, "train_domains": ("a",)}
    assert training_error(one_domain) is None
    assert training_error(one_domain, [24]) == pytest.approx((15.4 * 10.6) ** 0.5 / 26 / 24**0.5)
    assert training_error(make_record((), a={"holdout": 0.6}, b={"main": 0.8}), [5, 5]) is None


def test_guessing_is_at_chance_and_learning_is_not() -> None:
    # Two domains of 100 images with four classes: a standard error of .031.
    record = make_record((), a={"holdout": 0.3}, b={"holdout": 0.34})
    assert is_at_chance(record, 0.25, [100, 100])
    assert not is_at_chance(record, 0.25, [1000, 1000])
    assert not is_at_chance(make_record((), a={"holdout": 0.4}, b={"holdout": 0.4}), 0.25, [100, 100])
    # Without sizes, only up to chance.
    assert not is_at_chance(record, 0.25)
    assert is_at_chance(make_record((), a={"holdout": 0.2}, b={"holdout": 0.3}), 0.25)
    assert is_at_chance(record, None) is None
    assert is_at_chance(make_record((), a={"holdout": 0.2}, b={"main": 0.3}), 0.25) is None


def test_a_run_that_guesses_is_found_in_99_of_100_cases() -> None:
    generator = np.random.default_rng(0)
    shares = generator.binomial(60, 0.2, (1000, 2)) / 60
    found = [is_at_chance(make_record((), a={"holdout": a}, b={"holdout": b}), 0.2, [60, 60]) for a, b in shares]
    assert 0.98 < np.mean(found) < 1
