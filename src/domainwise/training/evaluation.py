"""Accuracy of a model on the parts of domains that a record needs, and under attack."""

from collections.abc import Callable
from itertools import chain

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms import Algorithm
from domainwise.algorithms.base import eval_mode
from domainwise.data import Dataset, Domain
from domainwise.data.batches import iterate_batches
from domainwise.data.dataset import Roles, Split
from domainwise.perturbations.radius import parse_radius
from domainwise.training.attacks import Attack, AttackSettings, build_attack
from domainwise.training.config import Evaluate
from domainwise.training.distributed import World

Accuracy = dict[str, dict[str, float]]
# The attack of a record, on each training domain: as much work as 20 updates of ERM with 32 images per domain.
_RECORD_STEPS, _RECORD_BATCH, _RECORD_SEED = 20, 32, 0
# What it costs in evaluated images: a forward and a backward pass take as long as three forward passes.
RECORD_ATTACK_COST = 3 * _RECORD_STEPS * _RECORD_BATCH


def evaluate(
    algorithm: Algorithm,
    dataset: Dataset,
    splits: dict[str, Split],
    roles: Roles,
    scope: Evaluate,
    device: torch.device,
    world: World,
    attack_radius: float | str | None = None,
) -> Accuracy:
    """Return `{domain: {"main": ..., "holdout": ...}}`, domains in the dataset's order.

    Args:
        attack_radius: also return the accuracy `"attacked"` of each training domain: on its holdout, to which one
            perturbation is added that was fitted on images of its main part. No random stream of the run advances.
    """
    domains = {domain.name: domain for domain in dataset.domains}
    parts = select_parts(dataset, splits, roles, scope)
    # Each rank evaluates its shard; the numbers of correct predictions are then summed exactly.
    correct = [
        count_correct(algorithm.predict, domains[name], world.shard(indices), device)
        for (name, _), indices in parts.items()
    ]
    if attack_radius is not None:
        for name in roles.train:
            main, holdout = splits[name].main, splits[name].holdout
            attack = _fit_record_attack(algorithm, domains[name], main, attack_radius, device)
            parts[name, "attacked"] = holdout
            correct.append(count_correct(algorithm.predict, domains[name], world.shard(holdout), device, attack))
    accuracy: Accuracy = {name: {} for name, _ in parts}
    for ((name, part), indices), count in zip(parts.items(), world.sum_integers(correct), strict=True):
        if len(indices):
            accuracy[name][part] = count / len(indices)
    return accuracy


@torch.no_grad()
def measure_holdout_loss(
    predict: Callable[[Tensor], Tensor],
    dataset: Dataset,
    splits: dict[str, Split],
    roles: Roles,
    device: torch.device,
    world: World,
) -> float:
    """Return the mean over training domains of the cross-entropy on their holdouts."""
    holdouts = {name: splits[name].holdout for name in roles.train if len(splits[name].holdout)}
    sums = []
    for name, indices in holdouts.items():
        shard = world.shard(indices)
        batches = iterate_batches(dataset.domains[dataset.index(name)], shard, device) if len(shard) else ()
        losses = [F.cross_entropy(predict(x), y, reduction="sum") for x, y in batches]
        sums.append(sum(torch.stack(losses).tolist()) if losses else 0.0)
    sums = [mean * world.size for mean in world.mean_floats(sums)]
    return sum(total / len(indices) for total, indices in zip(sums, holdouts.values(), strict=True)) / len(holdouts)


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


def count_correct(
    predict: Callable[[Tensor], Tensor],
    domain: Domain,
    indices: Tensor,
    device: torch.device,
    attack: Attack = lambda x, y: x,
) -> int:
    """Return the number of images that are classified correctly after an attack."""
    # Read at the end: a read per batch would let the device wait for the host.
    correct = torch.zeros((), dtype=torch.int64, device=device)
    for x, y in iterate_batches(domain, indices, device) if len(indices) else ():
        x_adv = attack(x, y)
        with torch.no_grad():
            correct += (predict(x_adv).argmax(1) == y).sum()
    return int(correct)


def _fit_record_attack(
    algorithm: Algorithm, domain: Domain, main: Tensor, radius: float | str, device: torch.device
) -> Attack:
    """Return the domain-wise attack of a record. Every rank fits the same perturbation on the same images."""
    shape = tuple(domain.images.shape[1:])
    chosen = main[: _RECORD_STEPS * _RECORD_BATCH].split(_RECORD_BATCH)
    batches = chain.from_iterable(iterate_batches(domain, indices, device) for indices in chosen)
    settings = AttackSettings("domain", parse_radius(radius, shape), steps=_RECORD_STEPS, seed=_RECORD_SEED)
    with eval_mode(algorithm):
        return build_attack(algorithm.network, settings, shape, device, fit_batches=batches)
