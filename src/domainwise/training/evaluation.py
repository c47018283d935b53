"""Accuracy of a model on the parts of domains that a record needs."""

import torch
from torch import Tensor

from domainwise.algorithms import Algorithm
from domainwise.data import Dataset
from domainwise.data.batches import iterate_batches
from domainwise.data.dataset import Roles, Split
from domainwise.training.config import Evaluate
from domainwise.training.distributed import World

Accuracy = dict[str, dict[str, float]]


def evaluate(
    algorithm: Algorithm,
    dataset: Dataset,
    splits: dict[str, Split],
    roles: Roles,
    scope: Evaluate,
    device: torch.device,
    world: World,
) -> Accuracy:
    """Return `{domain: {"main": ..., "holdout": ...}}`, domains in the dataset's order."""
    domains = {domain.name: domain for domain in dataset.domains}
    parts = select_parts(dataset, splits, roles, scope)
    correct: list[int] = []
    for (name, _), indices in parts.items():
        # Each rank evaluates its shard; the numbers of correct predictions are then summed exactly.
        shard = world.shard(indices)
        batches = iterate_batches(domains[name], shard, device) if len(shard) else ()
        correct.append(sum(int((algorithm.predict(x).argmax(1) == y).sum()) for x, y in batches))
    accuracy: Accuracy = {name: {} for name, _ in parts}
    for ((name, part), indices), count in zip(parts.items(), world.sum_integers(correct), strict=True):
        if len(indices):
            accuracy[name][part] = count / len(indices)
    return accuracy


def select_parts(
    dataset: Dataset, splits: dict[str, Split], roles: Roles, scope: Evaluate
) -> dict[tuple[str, str], Tensor]:
    """Return the image indices that an evaluation covers, by domain and part."""
    parts: dict[tuple[str, str], Tensor] = {}
    evaluated = {*roles.train, *roles.validation, *roles.test}
    for name in dataset.domain_names:
        if name in evaluated:
            parts[name, "holdout"] = splits[name].holdout
            if scope == "all" or name not in roles.train:
                parts[name, "main"] = splits[name].main
    return parts
