"""Accuracy of a model on the parts of domains that were asked for."""

import torch

from domainwise.algorithms import Algorithm
from domainwise.data import Dataset
from domainwise.data.batches import in_order
from domainwise.data.splits import Roles, Split

Accuracy = dict[str, dict[str, float]]


def evaluate(
    algorithm: Algorithm, dataset: Dataset, splits: dict[str, Split], roles: Roles, what: str, device: torch.device
) -> Accuracy:
    """`{domain: {"main": ..., "holdout": ...}}`; `what` is "selection" or "all"."""
    accuracy: Accuracy = {}
    for name in (*roles.train, *roles.validation, *roles.test):
        domain, split = dataset.domains[dataset.index(name)], splits[name]
        parts = {"holdout": split.holdout}
        if what == "all" or name not in roles.train:
            parts["main"] = split.main
        accuracy[name] = {}
        for part, indices in parts.items():
            if len(indices):
                batches = in_order(domain, indices, device)
                right = sum(int((algorithm.predict(x).argmax(1) == y).sum()) for x, y in batches)
                accuracy[name][part] = right / len(indices)
    return accuracy


def selection_score(accuracy: Accuracy, roles: Roles) -> float:
    """What `best` is chosen by: the validation domains' accuracy, or else the training domains' holdout."""
    if roles.validation:
        scores = [accuracy[name]["main"] for name in roles.validation]
    else:
        scores = [accuracy[name]["holdout"] for name in roles.train if "holdout" in accuracy[name]]
    return sum(scores) / len(scores) if scores else 0.0
