"""Selection by other metrics than accuracy, against selection by accuracy on the same numbers."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domainwise.errors import DomainwiseError
from domainwise.selection import METRICS, SELECTIONS, build_frame, select_models
from domainwise.selection.metrics import RECORDED, find_metric, parse_metrics
from selection_by_hand import Record, random_sweep, run_name

NUMBERS = ("training", "training_error", "attacked", "validation", "main", "holdout")


def move_accuracies(record: Record, metric: str) -> dict[str, Any]:
    """Return a record whose metric is as good as its accuracy was, and whose accuracy says nothing.

    Multiples of 1 / 16 and their differences to 1 are exact, so that equal sums stay equal.
    """
    is_low = METRICS[metric].is_lower_better
    values = {
        name: {
            part: None if value is None else (1 - round(10 * value) / 16 if is_low else round(10 * value) / 16)
            for part, value in parts.items()
        }
        for name, parts in record["accuracy"].items()
    }
    accuracy = {name: dict.fromkeys(parts, 0.5) for name, parts in record["accuracy"].items()}
    return {**record, "accuracy": accuracy, "metrics": {metric: values}}


@pytest.mark.parametrize("selection", [name for name in SELECTIONS if name != "ood_validation"])
@pytest.mark.parametrize("metric", ["macro_f1", "ece"])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), domains=st.integers(2, 4), draws=st.integers(1, 4))
def test_every_rule_selects_by_the_metric(selection: str, metric: str, seed: int, domains: int, draws: int) -> None:
    records = random_sweep(seed, domains, draws, 1)
    by_accuracy = [{**each, "accuracy": move_accuracies(each, "macro_f1")["metrics"]["macro_f1"]} for each in records]
    expected = select_models(build_frame((run_name(each), each) for each in by_accuracy), selection)
    moved = [(run_name(each), move_accuracies(each, metric)) for each in records]
    chosen = select_models(build_frame(moved, metric), selection, METRICS[metric])
    keys = ["dataset", "algorithm", "test_domain", "trial", "draw", "step", "run", "draws"]
    assert chosen.select(keys).equals(expected.select(keys))
    for name in ("score", "accuracy", "training"):
        values = [None if value is None or metric != "ece" else 1 - value for value in expected[name]]
        values = values if metric == "ece" else expected[name].to_list()
        assert chosen[name].to_list() == pytest.approx(values)


def test_lower_is_better_for_the_calibration_error() -> None:
    def record(step: int, ece: float) -> dict[str, Any]:
        parts = {name: {"holdout": 0.5, "main": 0.5} for name in ("a", "b")}
        values = {"a": {"holdout": ece}, "b": {"main": ece / 2, "holdout": 0.9}}
        facts = {"step": step, "dataset": "toy", "algorithm": "erm", "trial_seed": 0, "hparams_seed": 0}
        roles = {"train_domains": ["a"], "validation_domains": [], "test_domains": ["b"]}
        return {**facts, **roles, "accuracy": parts, "metrics": {"ece": values, "macro_f1": values}}

    records = [("run", record(step, value)) for step, value in enumerate((0.4, 0.1, 0.3))]
    for metric, step, score in (("ece", 1, 0.1), ("macro_f1", 0, 0.4)):
        row = select_models(build_frame(records, metric), "training_domain", METRICS[metric]).row(0, named=True)
        assert (row["step"], row["score"], row["accuracy"], row["training"]) == (step, score, score / 2, score)


def test_records_without_the_metric_have_no_numbers() -> None:
    records = [(run_name(each), each) for each in random_sweep(0, 3, 2, 1)]
    frame = build_frame(records, "ece")
    assert frame.select(pair for pair in frame.columns if pair not in NUMBERS).equals(
        build_frame(records).drop(NUMBERS)
    )
    assert all(frame[name].is_null().all() for name in NUMBERS)


def test_names() -> None:
    assert {*METRICS, "confusion"} == {*RECORDED, "accuracy"}
    with pytest.raises(DomainwiseError, match=r"^unknown metric 'macro-f1'; did you mean 'macro_f1'\?"):
        find_metric("macro-f1")
    with pytest.raises(DomainwiseError, match=r"worst_domain is a column of every metric, .* --column worst$"):
        find_metric("worst_domain")
    assert METRICS["ece"].describe("Highest mean accuracy.") == "Lowest mean ECE."
    assert METRICS["macro_f1"].describe("Accuracy, lowest accuracy") == "Macro-F1, lowest macro-F1"
    assert (
        METRICS["balanced_accuracy"].describe("Accuracy, lowest accuracy")
        == "Balanced accuracy, lowest balanced accuracy"
    )


def test_accuracy_may_be_named_among_the_metrics_to_record() -> None:
    assert parse_metrics("accuracy, ece,macro_f1,") == ("macro_f1", "ece")
    with pytest.raises(DomainwiseError, match=r"^unknown metric to record 'f1'"):
        parse_metrics("accuracy,f1")


def test_a_matrix_is_not_a_column_of_a_table() -> None:
    with pytest.raises(DomainwiseError, match=r"^confusion is a matrix, not a number"):
        find_metric("confusion")
