"""A penalty that counts little at first: the schedule that IRM and VREx share."""

from dataclasses import dataclass

from domainwise.algorithms.base import Algorithm
from domainwise.hparams import Hparams, Power, searched


@dataclass(frozen=True)
class AnnealedHparams(Hparams):
    """penalty_weight: of the penalty, once `anneal_steps` updates are done; until then its weight is 1."""

    penalty_weight: float = searched(100.0, Power(10, -1, 5), key="irm_lambda", low=0)
    anneal_steps: int = searched(500, Power(10, 0, 4, whole=True), key="irm_penalty_anneal_iters", low=0)


def next_weight(algorithm: Algorithm, hparams: AnnealedHparams) -> float:
    """The penalty's weight in this update, which is counted. Where it jumps the optimizer starts anew."""
    done = algorithm.updates
    algorithm.updates += 1
    if done == hparams.anneal_steps:
        # Adam's running squares know only gradients of the old size; with them the first steps after the jump are huge.
        algorithm.optimizer = algorithm.adam(algorithm.network.parameters())
    return hparams.penalty_weight if done >= hparams.anneal_steps else 1.0
