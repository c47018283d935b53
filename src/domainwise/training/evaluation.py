"""Accuracy of a model on the parts of domains that were asked for."""

import torch
from torch import Tensor

from domainwise.algorithms import Algorithm
from domainwise.data import Dataset
from domainwise.data.batches import iterate_batches
from domainwise.data.dataset import Roles, Split
from domainwise.training.distributed import Ranks

Accuracy = dict[str, dict[str, float]]


def evaluate(
    algorithm: Algorithm,
    dataset: Dataset,
    splits: dict[str, Split],
    roles: Roles,
    what: str,
    device: torch.device,
    ranks: Ranks,
) -> Accuracy:
    """`{domain: {"main": ..., "holdout": ...}}`, domains in the dataset's order; `what` is "selection" or "all"."""
    domains = {domain.name: domain for domain in dataset.domains}
    parts = evaluated(dataset, splits, roles, what)
    right: list[int] = []
    for (name, _), indices in parts.items():
        # Each rank looks at its share of the images; how many are right is then summed, an exact number.
        share = ranks.share(indices)
        batches = iterate_batches(domains[name], share, device) if len(share) else ()
        right.append(sum(int((algorithm.predict(x).argmax(1) == y).sum()) for x, y in batches))
    accuracy: Accuracy = {name: {} for name, _ in parts}
    for ((name, part), indices), count in zip(parts.items(), ranks.sums(right), strict=True):
        if len(indices):
            accuracy[name][part] = count / len(indices)
    return accuracy


def evaluated(dataset: Dataset, splits: dict[str, Split], roles: Roles, what: str) -> dict[tuple[str, str], Tensor]:
    """The images that an evaluation looks at, by domain and part."""
    parts: dict[tuple[str, str], Tensor] = {}
    measured = {*roles.train, *roles.validation, *roles.test}
    for name in dataset.domain_names:
        if name in measured:
            parts[name, "holdout"] = splits[name].holdout
            if what == "all" or name not in roles.train:
                parts[name, "main"] = splits[name].main
    return parts


def selection_score(accuracy: Accuracy, roles: Roles) -> float:
    """What `best` is chosen by: the validation domains' accuracy, or else the training domains' holdout."""
    if roles.validation:
        scores = [accuracy[name]["main"] for name in roles.validation]
    else:
        scores = [accuracy[name]["holdout"] for name in roles.train if "holdout" in accuracy[name]]
    return sum(scores) / len(scores) if scores else 0.0
