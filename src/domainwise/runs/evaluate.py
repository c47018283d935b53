"""Accuracy of a model on the parts of domains that were asked for."""

import torch

from domainwise.algorithms import Algorithm
from domainwise.data import Dataset
from domainwise.data.batches import in_order
from domainwise.data.splits import Roles, Split
from domainwise.runs.ranks import Ranks

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
    sizes: dict[tuple[str, str], int] = {}
    right: list[int] = []
    measured = {*roles.train, *roles.validation, *roles.test}
    for domain in dataset.domains:
        name, split = domain.name, splits[domain.name]
        if name not in measured:
            continue
        parts = {"holdout": split.holdout}
        if what == "all" or name not in roles.train:
            parts["main"] = split.main
        for part, indices in parts.items():
            sizes[name, part] = len(indices)
            # Each rank looks at its share of the images; how many are right is then summed, an exact number.
            share = ranks.share(indices)
            batches = in_order(domain, share, device) if len(share) else ()
            right.append(sum(int((algorithm.predict(x).argmax(1) == y).sum()) for x, y in batches))
    accuracy: Accuracy = {name: {} for name, _ in sizes}
    for ((name, part), size), count in zip(sizes.items(), ranks.sums(right), strict=True):
        if size:
            accuracy[name][part] = count / size
    return accuracy


def selection_score(accuracy: Accuracy, roles: Roles) -> float:
    """What `best` is chosen by: the validation domains' accuracy, or else the training domains' holdout."""
    if roles.validation:
        scores = [accuracy[name]["main"] for name in roles.validation]
    else:
        scores = [accuracy[name]["holdout"] for name in roles.train if "holdout" in accuracy[name]]
    return sum(scores) / len(scores) if scores else 0.0
