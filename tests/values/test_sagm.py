"""SAGM: the mean of the gradients here and at (rho / |g| - alpha) g from here, written out."""

import copy

import pytest
import torch
from sharpness_problem import LR, WEIGHT_DECAY, WrittenOutAdam, hidden_network, largest_difference, sharp_step
from tiny_problem import domains
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms import ERM, SAGM, SAM, Algorithm
from domainwise.algorithms.sharpness import Sharpness
from domainwise.networks import Network

RADIUS, ALPHA, UPDATES, SIZES = 0.5, 0.2, 4, (5, 2, 3)
COMMON = {"num_domains": 3, "lr": LR, "weight_decay": WEIGHT_DECAY}


def pooled_loss(network: Network, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    return F.cross_entropy(torch.cat([network(x) for x, _ in batches]), torch.cat([y for _, y in batches]))


@pytest.mark.parametrize(("radius", "alpha"), [(RADIUS, ALPHA), (0.05, 0.001), (RADIUS, 0.0)])
@pytest.mark.parametrize("is_setting", [False, True], ids=["sagm", "erm with sagm"])
def test_updates_follow_the_textbook(radius: float, alpha: float, is_setting: bool) -> None:
    network = hidden_network()
    expected = copy.deepcopy(network)
    if is_setting:
        algorithm: Algorithm = ERM(network, sharpness=Sharpness(radius, alpha), **COMMON)
    else:
        algorithm = SAGM(network, radius=radius, alignment=alpha, **COMMON)
    adam = WrittenOutAdam(expected.parameters())
    for seed in range(UPDATES):
        batches = domains(SIZES, seed)
        returned = algorithm.update(batches)
        loss = sharp_step(expected, adam, lambda batches=batches: pooled_loss(expected, batches), radius, alpha)
        assert returned == {"loss": pytest.approx(loss, rel=1e-9)}
        torch.testing.assert_close(list(network.parameters()), list(expected.parameters()), rtol=1e-8, atol=1e-11)


def test_without_alignment_it_is_not_sam() -> None:
    """SAGM with alpha 0 still takes the mean of both gradients."""
    networks = [hidden_network() for _ in range(2)]
    sagm = SAGM(networks[0], radius=RADIUS, alignment=0.0, **COMMON)
    sam = SAM(networks[1], radius=RADIUS, **COMMON)
    for algorithm in (sagm, sam):
        for seed in range(UPDATES):
            algorithm.update(domains(SIZES, seed))
    assert largest_difference(*networks) > LR / 100


def test_live_batch_norm_keeps_the_statistics_of_the_first_pass() -> None:
    batches = domains(SIZES, 0)
    plain, sharp = hidden_network(with_batch_norm=True), hidden_network(with_batch_norm=True)
    ERM(plain, **COMMON).update(batches)
    SAGM(sharp, radius=RADIUS, alignment=ALPHA, **COMMON).update(batches)
    # The weights are the same before the first update.
    torch.testing.assert_close(list(sharp.buffers()), list(plain.buffers()), rtol=0, atol=0)
