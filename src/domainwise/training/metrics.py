"""Metrics beyond accuracy of what a model predicts; docs/reports.md defines them."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from domainwise.errors import DomainwiseError

NUM_BINS = 15
# The largest double below 1: a confidence of exactly 1 is in the last bin.
_BELOW_ONE = 1 - 2**-53


@dataclass(frozen=True)
class Predictions:
    """The labels of images, the predicted labels, and the probabilities of these; each (n,) and on the CPU."""

    truth: Tensor
    predicted: Tensor
    confidence: Tensor

    @classmethod
    def concatenate(cls, parts: "Iterable[Predictions]") -> "Predictions":
        fields = zip(*((part.truth, part.predicted, part.confidence) for part in parts), strict=True)
        return cls(*map(torch.cat, fields))

    @property
    def correct(self) -> int:
        return int((self.predicted == self.truth).sum())


def collect_predictions(predict: Callable[[Tensor], Tensor], inputs: Iterable[Tensor], truth: Tensor) -> Predictions:
    """Predict batches of images.

    Args:
        predict: maps images (b, C, H, W) to logits (b, num_classes).
        truth: the labels of all images, in order.
    """
    labels, confidences = [torch.empty(0, dtype=torch.int64)], [torch.empty(0)]
    for x in inputs:
        with torch.no_grad():
            logits = predict(x)
            labels.append(logits.argmax(1))
            # A network that has diverged is not sure of anything.
            confidences.append(logits.float().softmax(1).amax(1).nan_to_num(0.0))
    # Read at the end: a read per batch would let the device wait for the host.
    return Predictions(truth.cpu(), *(torch.cat(each[1:] or each).cpu() for each in (labels, confidences)))


def compute_metrics(names: Collection[str], predictions: Predictions, num_classes: int) -> dict[str, Any]:
    """Return metrics of at least one image by name, ready for JSON.

    Args:
        names: of `domainwise.selection.metrics.RECORDED`.

    Raises:
        DomainwiseError: If a prediction is none of the classes.
    """
    truth, predicted = predictions.truth, predictions.predicted
    if int(predicted.max()) >= num_classes:
        raise DomainwiseError(
            f"the network has more outputs than the {num_classes} classes, and predicts one of the others; metrics "
            "need one output per class"
        )
    confusion = (num_classes * truth + predicted).bincount(minlength=num_classes**2).reshape(num_classes, num_classes)
    correct, images, answers = confusion.diagonal().double(), confusion.sum(1), confusion.sum(0)
    # As in scikit-learn: a class without images has no recall, and one that is not predicted either has no F1.
    recall = (correct / images)[images > 0]
    f1 = (2 * correct / (images + answers))[images + answers > 0]
    values = {
        "macro_f1": float(f1.mean()),
        "balanced_accuracy": float(recall.mean()),
        "worst_class": float(recall.min()),
        "ece": _measure_calibration_error(predictions.confidence, predicted == truth),
        "confusion": confusion.tolist(),
    }
    return {name: values[name] for name in names}


def _measure_calibration_error(confidence: Tensor, is_correct: Tensor) -> float:
    """Return the expected calibration error: the mean gap between accuracy and confidence in bins of equal width."""
    # The sums in the bins are exact in double precision, so that they do not depend on the order of the images.
    confidence = confidence.double().clamp(max=_BELOW_ONE)
    edges = torch.linspace(0, 1, NUM_BINS + 1, dtype=torch.float64)
    bins = torch.bucketize(confidence, edges, right=True) - 1
    # With an empty bin at the end, sums are rounded as in older runs.
    images = bins.bincount(minlength=len(edges))
    correct, total = (bins.bincount(each, minlength=len(edges)) for each in (is_correct.double(), confidence))
    gaps = (correct / images - total / images).nan_to_num().abs()
    return min(float((gaps * (images.double() / len(confidence))).sum()), 1.0)
