"""ERM++: the classifier alone with its own Adam up to update `head_steps`, then everything, written out."""

import copy

import pytest
import torch
from sharpness_problem import LR, WEIGHT_DECAY, WrittenOutAdam, hidden_network, sharp_step
from tiny_problem import domains
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms import ERMPlusPlus
from domainwise.algorithms.sharpness import Sharpness
from domainwise.networks import Network

HEAD_LR, UPDATES, SIZES, RADIUS = 0.03, 6, (5, 2, 3), 0.5


def fresh(network: Network, head_steps: int, **given: object) -> ERMPlusPlus:
    settings = {"num_domains": 3, "head_steps": head_steps, "head_lr": HEAD_LR, "lr": LR, "weight_decay": WEIGHT_DECAY}
    return ERMPlusPlus(network, **{**settings, **given})


def pooled_loss(network: Network, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    return F.cross_entropy(network(torch.cat([x for x, _ in batches])), torch.cat([y for _, y in batches]))


@pytest.mark.parametrize("sharpness", [None, Sharpness(RADIUS)], ids=["plain", "sam"])
@pytest.mark.parametrize("head_steps", [-1, 0, 2, UPDATES])
def test_updates_follow_the_textbook(head_steps: int, sharpness: Sharpness | None) -> None:
    network = hidden_network()
    expected, start = copy.deepcopy(network), copy.deepcopy(network.featurizer)
    algorithm = fresh(network, head_steps, sharpness=sharpness)
    head_adam = WrittenOutAdam(expected.classifier.parameters(), lr=HEAD_LR)
    adam = WrittenOutAdam(expected.parameters())
    for index in range(UPDATES):
        batches = domains(SIZES, index)
        assert algorithm.is_warming_up == (index <= head_steps)
        returned = algorithm.update(batches)
        loss = pooled_loss(expected, batches)
        if index <= head_steps:
            head_adam.step(torch.autograd.grad(loss, head_adam.parameters))
        elif sharpness is not None:
            sharp_step(expected, adam, lambda batches=batches: pooled_loss(expected, batches), RADIUS)
        else:
            adam.step(torch.autograd.grad(loss, adam.parameters))
        assert returned == {"loss": pytest.approx(loss.item(), rel=1e-9)}
        torch.testing.assert_close(list(network.parameters()), list(expected.parameters()), rtol=1e-8, atol=1e-11)
        is_untouched = all(map(torch.equal, network.featurizer.parameters(), start.parameters()))
        assert is_untouched == (index <= head_steps)


def test_live_batch_norm_follows_every_batch_from_the_first() -> None:
    network = hidden_network(with_batch_norm=True)
    algorithm = fresh(network, head_steps=1)
    mean, variance = torch.zeros(6), torch.ones(6)
    for index in range(4):
        hidden = network.featurizer[1](torch.cat([x for x, _ in domains(SIZES, index)]).flatten(1)).detach()
        mean, variance = 0.9 * mean + 0.1 * hidden.mean(0), 0.9 * variance + 0.1 * hidden.var(0)
        algorithm.update(domains(SIZES, index))
        torch.testing.assert_close(network.featurizer[2].running_mean, mean, rtol=1e-8, atol=1e-11)
        torch.testing.assert_close(network.featurizer[2].running_var, variance, rtol=1e-8, atol=1e-11)


def test_by_default_the_classifier_has_501_updates_of_its_own() -> None:
    algorithm = ERMPlusPlus(hidden_network(), num_domains=3)
    algorithm.updates = 500
    assert algorithm.is_warming_up
    algorithm.updates = 501
    assert not algorithm.is_warming_up
