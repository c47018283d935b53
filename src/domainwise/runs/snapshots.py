"""What a run keeps of its perturbation at a record, if it was asked to."""

import torch
from torch import Tensor

from domainwise.algorithms import Algorithm
from domainwise.perturbations import LowRankPerturbation, MultiplePerturbation, Perturbation
from domainwise.runs.config import RunConfig


@torch.no_grad()
def snapshot(algorithm: Algorithm) -> dict[str, Tensor]:
    """The perturbation that lives on from update to update, by the names of its parts; empty where none does.

    `delta` (domains, *shape) is what is added to a domain's images. Beside it stands what it is made of: `components`
    (domains, count, *shape) and `mixing_weights` (domains, count), or the factors `left` and `right`.
    """
    perturbation = getattr(algorithm, "perturbation", None)
    if not isinstance(perturbation, Perturbation):
        return {}
    parts = {"delta": perturbation.delta()} if perturbation.is_kept else {}
    if isinstance(perturbation, MultiplePerturbation):
        parts["components"] = perturbation.deltas
        if perturbation.is_kept:
            parts["mixing_weights"] = perturbation.mixing_weights()
    if isinstance(perturbation, LowRankPerturbation):
        parts |= {"left": perturbation.left, "right": perturbation.right}
    return parts


def notes_on_snapshots(algorithm: Algorithm, config: RunConfig) -> list[str]:
    """A line for whoever asked to keep what the method does not have."""
    if not config.keep_perturbations or snapshot(algorithm):
        return []
    return [f"{config.algorithm_name} has no perturbation that lives on from update to update: none is kept"]
