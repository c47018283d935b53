"""Metrics of a record against scikit-learn on the same predictions, and without any effect on the run."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import balanced_accuracy_score, confusion_matrix, f1_score, recall_score
from torchmetrics.functional.classification import multiclass_calibration_error, multiclass_f1_score

from domainwise.data import silhouettes
from domainwise.data.dataset import split_domains
from domainwise.errors import DomainwiseError, RunInterrupted
from domainwise.selection.metrics import RECORDED
from domainwise.training import RunConfig, RunResult, load_model, train
from domainwise.training.metrics import NUM_BINS, Predictions, collect_predictions, compute_metrics

OPTIONS = {"train_count": 80, "test_count": 31, "shifts": [0, 8], "image_size": 16}


def train_run(output: Path, algorithm: str = "at", steps: int = 4, **settings: Any) -> RunResult:
    shared: dict[str, Any] = {
        "dataset_options": OPTIONS,
        "record_every": 2,
        "device": "cpu",
        "threads": 1,
        "batch_size": 16,
    }
    return train(RunConfig(algorithm=algorithm, steps=steps, output=output, **{**shared, **settings}))


def without(record: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in keys}


def expected_metrics(truth: Any, logits: torch.Tensor) -> dict[str, Any]:
    """Return all metrics by scikit-learn, and the calibration error by a loop over its bins."""
    truth, predicted = np.asarray(truth), logits.argmax(1).numpy()
    confidence = logits.softmax(1).amax(1).double().numpy()
    error = 0.0
    for index in range(NUM_BINS):
        low, high = index / NUM_BINS, (index + 1) / NUM_BINS
        inside = (confidence >= low) & ((confidence < high) | (index == NUM_BINS - 1))
        if inside.any():
            error += inside.mean() * abs((predicted == truth)[inside].mean() - confidence[inside].mean())
    with warnings.catch_warnings():
        # It warns of predicted classes without images, which do not count.
        warnings.filterwarnings("ignore", "y_pred contains classes not in y_true")
        balanced = balanced_accuracy_score(truth, predicted)
    return {
        "macro_f1": f1_score(truth, predicted, average="macro"),
        "balanced_accuracy": balanced,
        "worst_class": recall_score(truth, predicted, average=None, labels=np.unique(truth)).min(),
        "ece": error,
        "confusion": confusion_matrix(truth, predicted, labels=range(logits.shape[1])).tolist(),
    }


@pytest.mark.parametrize("absent", [(), (0,), (1, 4)], ids=str)
@pytest.mark.parametrize("never_predicted", [(), (1, 3)], ids=str)
@pytest.mark.parametrize("scale", [0.3, 3.0, 300.0])
def test_metrics_equal_those_of_scikit_learn(
    absent: Sequence[int], never_predicted: Sequence[int], scale: float
) -> None:
    """With classes that have no image, that are never predicted, and both; at 300, confidences are exactly 1."""
    generator = torch.Generator().manual_seed(0)
    classes = torch.tensor([label for label in range(6) if label not in absent])
    truth = classes[torch.randint(len(classes), (97,), generator=generator)]
    logits = torch.randn(97, 6, generator=generator) + torch.nn.functional.one_hot(truth, 6)
    logits[:, list(never_predicted)] = -10
    logits *= scale
    predictions = collect_predictions(lambda x: x, logits.split(40), truth)
    values = compute_metrics(RECORDED, predictions, 6)
    expected = expected_metrics(truth, logits)
    assert values.pop("confusion") == expected.pop("confusion")
    assert values == pytest.approx(expected, abs=1e-12)
    assert (predictions.confidence == 1).any() == (scale == 300)
    single = float(multiclass_f1_score(logits, truth, 6, average="macro"))
    assert values["macro_f1"] == pytest.approx(single, abs=1e-6)
    if scale < 300:  # torchmetrics counts a confidence of 1 in a bin of its own
        error = float(multiclass_calibration_error(logits.softmax(1).double(), truth, 6, n_bins=NUM_BINS, norm="l1"))
        assert values["ece"] == pytest.approx(error, abs=1e-6)


def test_metrics_of_a_single_image() -> None:
    wrong = Predictions(torch.tensor([1]), torch.tensor([0]), torch.tensor([1.0]))
    values = compute_metrics(("macro_f1", "worst_class", "ece", "confusion"), wrong, 3)
    assert values == {
        "macro_f1": 0.0,
        "worst_class": 0.0,
        "ece": pytest.approx(1),
        "confusion": [[0] * 3, [1, 0, 0], [0] * 3],
    }
    assert values["ece"] <= 1


def test_parts_are_joined_in_order() -> None:
    logits, truth = torch.randn(9, 3, generator=torch.Generator().manual_seed(0)), torch.arange(9) % 3
    whole = collect_predictions(lambda x: x, [logits], truth)
    parts = [
        collect_predictions(lambda x: x, [logits[each]] * bool(len(each)), truth[each])
        for each in torch.arange(9).split([4, 0, 5])
    ]
    joined = Predictions.concatenate(parts)
    for name in ("truth", "predicted", "confidence"):
        assert getattr(joined, name).equal(getattr(whole, name))
    assert joined.correct == int((logits.argmax(1) == truth).sum())


def test_a_prediction_that_is_no_class_raises_an_error() -> None:
    predictions = collect_predictions(lambda x: x, [torch.eye(5)], torch.tensor([0, 1, 2, 0, 1]))
    with pytest.raises(DomainwiseError, match=r"^the network has more outputs than the 3 classes"):
        compute_metrics(("confusion",), predictions, 3)


def test_a_network_that_returns_nan_has_no_confidence() -> None:
    predictions = collect_predictions(lambda x: x, [torch.full((4, 2), math.nan)], torch.zeros(4, dtype=torch.int64))
    assert predictions.confidence.tolist() == [0.0] * 4
    assert math.isfinite(compute_metrics(("ece",), predictions, 2)["ece"])


def test_records_equal_what_scikit_learn_says_about_the_stored_model(tmp_path: Path) -> None:
    """Reload the model, predict every part that a record has, and compute all metrics again."""
    result = train_run(tmp_path / "run", "erm", 30, record_every=30, metrics=RECORDED, attack_radius=0.5)
    model = load_model(result.folder, "last")
    dataset = silhouettes(result.config.trial_seed, **OPTIONS)
    splits = split_domains(dataset, result.config.trial_seed)
    measured = result.last["metrics"]
    assert list(measured) == list(RECORDED)
    compared = 0
    for domain in dataset.domains:
        for part, accuracy in result.last["accuracy"][domain.name].items():
            if part == "attacked":
                continue
            indices = getattr(splits[domain.name], part)
            with torch.no_grad():
                logits = model(domain.images[indices].float() / 255)
            expected = expected_metrics(domain.labels[indices], logits)
            values = {name: by_domain[domain.name][part] for name, by_domain in measured.items()}
            confusion = np.array(values.pop("confusion"))
            assert confusion.tolist() == expected.pop("confusion")
            assert values == pytest.approx(expected, abs=1e-6)
            assert accuracy == confusion.trace() / len(indices)
            compared += 1
    assert compared == 6
    for name in result.last["train_domains"]:
        confusion = np.array(measured["confusion"][name]["attacked"])
        assert result.last["accuracy"][name]["attacked"] == confusion.trace() / confusion.sum()


def test_metrics_change_nothing_else(tmp_path: Path) -> None:
    """No random stream advances: weights and all other numbers stay the same. AT draws at every step."""
    plain, measured = (
        train_run(tmp_path / str(bool(names)), dropout=0.5, attack_radius=0.5, metrics=names)
        for names in ((), RECORDED)
    )
    for which in ("best.safetensors", "last.safetensors"):
        assert (plain.folder / which).read_bytes() == (measured.folder / which).read_bytes()
    for one, other in zip(plain.records, measured.records, strict=True):
        assert "metrics" not in one
        assert without(one, "seconds_per_step") == without(other, "seconds_per_step", "metrics")
        for by_domain in other["metrics"].values():
            parts = {name: list(each) for name, each in other["accuracy"].items()}
            assert {name: list(each) for name, each in by_domain.items()} == parts


def test_a_resumed_run_records_the_same(tmp_path: Path) -> None:
    whole = train_run(tmp_path / "whole", steps=6, metrics=("ece", "macro_f1"))
    steps: list[int] = []
    config = replace(whole.config, output=tmp_path / "resumed")
    with pytest.raises(RunInterrupted):
        train(config, on_step=lambda step, loss: steps.append(step), should_stop=lambda: len(steps) >= 4)
    with pytest.raises(DomainwiseError, match=r"metrics is \[\"macro_f1\", \"ece\"\] there and \[\] here"):
        train(replace(config, metrics=()))
    resumed = train(replace(config, metrics=("ece", "macro_f1")))
    assert [without(record, "seconds_per_step") for record in resumed.records] == [
        without(record, "seconds_per_step") for record in whole.records
    ]


def test_names_of_metrics() -> None:
    assert RunConfig(metrics="ece, macro_f1").metrics == ("macro_f1", "ece")
    assert RunConfig(metrics=["ece", "macro_f1,ece"]).metrics == ("macro_f1", "ece")  # type: ignore[arg-type]
    assert RunConfig(metrics="macro_f1,").metrics == ("macro_f1",)
    for given in ("f1", 3):
        with pytest.raises(DomainwiseError, match=r"^unknown metric to record '(f1|3)'. Choices: macro_f1, balanced_"):
            RunConfig(metrics=given)  # type: ignore[arg-type]
