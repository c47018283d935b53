"""Metrics beyond accuracy of what a model predicts, with torchmetrics; docs/reports.md defines them."""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from domainwise.errors import DomainwiseError

NUM_BINS = 15
# The largest double below 1: torchmetrics counts a confidence of exactly 1 in a bin of its own.
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
    # Imported here: it takes seconds.
    from torchmetrics.functional.classification import binary_calibration_error, multiclass_confusion_matrix

    truth, predicted = predictions.truth, predictions.predicted
    # torchmetrics would count it for another class.
    if int(predicted.max()) >= num_classes:
        raise DomainwiseError(
            f"the network has more outputs than the {num_classes} classes, and predicts one of the others; metrics "
            "need one output per class"
        )
    confusion = multiclass_confusion_matrix(predicted, truth, num_classes, validate_args=False).long()
    correct, images, answers = confusion.diagonal().double(), confusion.sum(1), confusion.sum(0)
    # As in scikit-learn: a class without images has no recall, and one that is not predicted either has no F1.
    recall = (correct / images)[images > 0]
    f1 = (2 * correct / (images + answers))[images + answers > 0]
    # The sums in the bins are exact in double precision, so that they do not depend on the order of the images.
    confidence = predictions.confidence.double().clamp(max=_BELOW_ONE)
    error = binary_calibration_error(confidence, (predicted == truth).long(), NUM_BINS, "l1", validate_args=False)
    values = {
        "macro_f1": float(f1.mean()),
        "balanced_accuracy": float(recall.mean()),
        "worst_class": float(recall.min()),
        "ece": min(float(error), 1.0),
        "confusion": confusion.tolist(),
    }
    return {name: values[name] for name in names}
