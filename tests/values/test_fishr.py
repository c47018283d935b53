"""Fishr: one gradient per sample by autograd, their variance by its definition, and its moving average as published."""

import copy

import pytest
import torch
from tiny_problem import domains
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms import Fishr
from domainwise.networks import Network

PENALTY_WEIGHT, EMA, LR, WEIGHT_DECAY, UPDATES = 20.0, 0.8, 0.01, 0.1, 5


def feature_network(*, has_bias: bool = True) -> Network:
    torch.manual_seed(0)
    featurizer = nn.Sequential(nn.Flatten(), nn.Linear(48, 4), nn.Tanh())
    featurizer[1].weight.data *= 4
    return Network(featurizer, nn.Linear(4, 3, bias=has_bias), input_shape=(3, 4, 4), num_features=4)


def gradient_variance(network: Network, x: Tensor, y: Tensor) -> Tensor:
    """Return the population variance of each entry of the samples' gradients by the classifier's parameters."""
    gradients = []
    for image, label in zip(x, y, strict=True):
        loss = F.cross_entropy(network(image[None]), label[None])
        parts = torch.autograd.grad(loss, list(network.classifier.parameters()), create_graph=True)
        gradients.append(torch.cat([part.flatten() for part in parts]))
    mean = sum(gradients) / len(gradients)
    return sum((gradient - mean) ** 2 for gradient in gradients) / len(gradients)


def textbook(
    network: Network, sizes: tuple[int, ...], anneal_steps: int, *, rebuilds: bool = True
) -> list[dict[str, float]]:
    """Update `network` in place and return what each update measured."""
    averages: list[Tensor | float] = [0.0 for _ in sizes]
    measured = []
    optimizer = torch.optim.Adam(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    for done in range(UPDATES):
        batches = domains(sizes, done)
        x, y = torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches])
        loss = F.cross_entropy(network(x), y)
        corrected = []
        for index, (x, y) in enumerate(batches):
            if len(y):
                average = EMA * averages[index] + (1 - EMA) * gradient_variance(network, x, y)
                averages[index] = average.detach()
                corrected.append(average / (1 - EMA))
        centre = sum(corrected) / len(corrected)
        penalty = sum(((one - centre) ** 2).mean() for one in corrected) / len(corrected)
        if done == anneal_steps and rebuilds:
            optimizer = torch.optim.Adam(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
        optimizer.zero_grad()
        (loss + (0 if done < anneal_steps else PENALTY_WEIGHT) * penalty).backward()
        optimizer.step()
        measured.append({"loss": loss.item(), "penalty": penalty.item()})
    return measured


def updated(network: Network, sizes: tuple[int, ...], anneal_steps: int) -> list[dict[str, float]]:
    algorithm = Fishr(
        network,
        num_domains=len(sizes),
        penalty_weight=PENALTY_WEIGHT,
        anneal_steps=anneal_steps,
        ema=EMA,
        lr=LR,
        weight_decay=WEIGHT_DECAY,
    )
    return [algorithm.update(domains(sizes, seed)) for seed in range(UPDATES)]


@pytest.mark.parametrize("anneal_steps", [0, 2, UPDATES])
@pytest.mark.parametrize("sizes", [(5, 2), (5, 2, 3), (5, 1, 3), (5, 0, 3)])
def test_updates_follow_the_textbook(sizes: tuple[int, ...], anneal_steps: int) -> None:
    network = feature_network()
    expected = copy.deepcopy(network)
    measured = textbook(expected, sizes, anneal_steps)
    assert updated(network, sizes, anneal_steps) == [pytest.approx(one, rel=1e-9) for one in measured]
    torch.testing.assert_close(list(network.parameters()), list(expected.parameters()), rtol=1e-8, atol=1e-11)


def test_a_classifier_without_bias() -> None:
    network = feature_network(has_bias=False)
    expected = copy.deepcopy(network)
    measured = textbook(expected, (5, 2), anneal_steps=1)
    assert updated(network, (5, 2), anneal_steps=1) == [pytest.approx(one, rel=1e-9) for one in measured]
    torch.testing.assert_close(list(network.parameters()), list(expected.parameters()), rtol=1e-8, atol=1e-11)


def test_without_the_optimizer_reset_the_result_differs() -> None:
    network, kept = feature_network(), feature_network()
    updated(network, (5, 2), anneal_steps=2)
    textbook(kept, (5, 2), anneal_steps=2, rebuilds=False)
    assert (network.classifier.weight - kept.classifier.weight).abs().max() > LR / 10


def test_an_absent_domain_keeps_its_sum() -> None:
    algorithm = Fishr(feature_network(), num_domains=2)
    algorithm.update(domains((5, 3), 0))
    before = algorithm.variance_sums.clone()
    assert algorithm.update(domains((0, 3), 1))["penalty"] == 0  # one domain has nothing to differ from
    assert torch.equal(algorithm.variance_sums[0], before[0])
    assert not torch.equal(algorithm.variance_sums[1], before[1])


def test_one_feature_by_hand() -> None:
    """With zero weights both probabilities are 1/2, so the errors are -1/2 and 1/2 for label 0, the reverse for 1.

    First domain, inputs 1 and 3 of label 0: gradients by a weight are 1/2 and 3/2, up to sign, with variance 1/4; those
    by a bias are constant. Second domain, input 2 of both labels: 1 and -1 with variance 1; 1/2 and -1/2 with variance
    1/4. Both domains are half of their difference, 3/4 and 1/4, away from the mean.
    """
    network = Network(nn.Flatten(), nn.Linear(1, 2), input_shape=(1, 1, 1), num_features=1)
    nn.init.zeros_(network.classifier.weight)
    nn.init.zeros_(network.classifier.bias)
    batches = [
        (torch.tensor([1.0, 3.0]).reshape(2, 1, 1, 1), torch.tensor([0, 0])),
        (torch.tensor([2.0, 2.0]).reshape(2, 1, 1, 1), torch.tensor([0, 1])),
    ]
    penalty = Fishr(network, num_domains=2).update(batches)["penalty"]
    assert penalty == pytest.approx(((3 / 8) ** 2 + (1 / 8) ** 2) / 2, rel=1e-12)
