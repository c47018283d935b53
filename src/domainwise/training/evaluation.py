"""Accuracy and other metrics of a model on the parts of domains that a record needs, and accuracy under attack."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

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
from domainwise.training.metrics import Predictions, collect_predictions, compute_metrics

# The attack of a record, on each training domain: as much work as 20 updates of ERM with 32 images per domain.
_RECORD_STEPS, _RECORD_BATCH, _RECORD_SEED = 20, 32, 0
# What it costs in evaluated images: a forward and a backward pass take as long as three forward passes.
RECORD_ATTACK_COST = 3 * _RECORD_STEPS * _RECORD_BATCH


def _leave_unchanged(x: Tensor, y: Tensor) -> Tensor:
    """The attack that is none."""
    return x


def evaluate(
    algorithm: Algorithm,
    dataset: Dataset,
    splits: dict[str, Split],
    roles: Roles,
    scope: Evaluate,
    device: torch.device,
    world: World,
    attack_radius: float | str | None = None,
    metrics: Sequence[str] = (),
) -> dict[str, Any]:
    """Return `{"accuracy": {domain: {"main": ..., "holdout": ...}}}`, domains in the dataset's order.

    Args:
        attack_radius: also measure the part `"attacked"` of each training domain: its holdout, to which one
            perturbation is added that was fitted on images of its main part. No random stream of the run advances.
        metrics: names of `domainwise.selection.metrics.RECORDED` to return as `"metrics"`, each by domain and part.
    """
    domains = {domain.name: domain for domain in dataset.domains}
    parts = select_parts(dataset, splits, roles, scope)
    attacks: dict[tuple[str, str], Attack] = {}
    if attack_radius is not None:
        for name in roles.train:
            parts[name, "attacked"] = splits[name].holdout
            attacks[name, "attacked"] = _fit_record_attack(
                algorithm, domains[name], splits[name].main, attack_radius, device
            )
    # Each rank evaluates its shard; the numbers of correct predictions are then summed exactly.
    shards = [
        (algorithm.predict, domains[key[0]], world.shard(indices), device, attacks.get(key, _leave_unchanged))
        for key, indices in parts.items()
    ]
    if not metrics:
        counts = world.sum_integers([count_correct(*shard) for shard in shards])
        return {"accuracy": _arrange(parts, _divide(counts, parts.values()))}
    # In the order of the images, however many ranks there are.
    gathered = zip(*world.gather([_predict(*shard) for shard in shards]), strict=True)
    predictions = list(map(Predictions.concatenate, gathered))
    values = [compute_metrics(metrics, each, len(dataset.classes)) if len(each.truth) else {} for each in predictions]
    return {
        "accuracy": _arrange(parts, _divide([each.correct for each in predictions], parts.values())),
        "metrics": {name: _arrange(parts, [each.get(name) for each in values]) for name in metrics},
    }


def _predict(
    predict: Callable[[Tensor], Tensor], domain: Domain, indices: Tensor, device: torch.device, attack: Attack
) -> Predictions:
    batches = iterate_batches(domain, indices, device) if len(indices) else ()
    return collect_predictions(predict, (attack(x, y) for x, y in batches), domain.labels[indices])


def _divide(counts: Iterable[int], parts: Iterable[Tensor]) -> list[float]:
    return [count / max(len(indices), 1) for count, indices in zip(counts, parts, strict=True)]


def _arrange(parts: Mapping[tuple[str, str], Tensor], values: Iterable[Any]) -> dict[str, dict[str, Any]]:
    """Return the values of the parts by domain and part; a part without images has none."""
    by_domain: dict[str, dict[str, Any]] = {name: {} for name, _ in parts}
    for ((name, part), indices), value in zip(parts.items(), values, strict=True):
        if len(indices):
            by_domain[name][part] = value
    return by_domain


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
    batches = iterate_batches(domain, main[: _RECORD_STEPS * _RECORD_BATCH], device, _RECORD_BATCH)
    settings = AttackSettings("domain", parse_radius(radius, shape), steps=_RECORD_STEPS, seed=_RECORD_SEED)
    with eval_mode(algorithm):
        return build_attack(algorithm.network, settings, shape, device, fit_batches=batches)
