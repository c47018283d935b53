"""SagNet: content, style and adversarial steps, with feature vectors restyled sample by sample."""

import copy

import pytest
import torch
from tiny_problem import two_domains
from torch import Tensor, nn

from domainwise.algorithms import SagNet
from domainwise.networks import Network

LR, WEIGHT_DECAY, ADVERSARIAL_WEIGHT, SEED = 0.01, 0.1, 0.7, 3
EXACT = {"rtol": 1e-9, "atol": 1e-11}


def fresh() -> SagNet:
    torch.manual_seed(0)
    featurizer = nn.Sequential(nn.Flatten(), nn.Linear(48, 4), nn.Tanh())
    return SagNet(
        Network(featurizer, nn.Linear(4, 3), input_shape=(3, 4, 4), num_features=4),
        num_domains=2,
        generator=torch.Generator().manual_seed(SEED),
        lr=LR,
        weight_decay=WEIGHT_DECAY,
        adversarial_weight=ADVERSARIAL_WEIGHT,
    )


def parted(features: Tensor) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return content, mean and unbiased variance of each vector."""
    parts = []
    for vector in features:
        mean = sum(vector) / 4
        variance = sum((vector - mean) ** 2) / 3
        parts.append(((vector - mean) / (variance + 1e-5).sqrt(), mean, variance))
    return parts


def restyled(features: Tensor, weight: Tensor, other: Tensor) -> Tensor:
    parts, rows = parted(features), []
    for i, (content, mean, variance) in enumerate(parts):
        _, other_mean, other_variance = parts[other[i]]
        w = weight[i, 0]
        mixed = w * variance + (1 - w) * other_variance
        rows.append(content * (mixed + 1e-5).sqrt() + w * mean + (1 - w) * other_mean)
    return torch.stack(rows)


def with_other_content(features: Tensor, other: Tensor) -> Tensor:
    parts = parted(features)
    # The content is detached: the style head affects the featurizer only through the style.
    rows = [parts[other[i]][0].detach() * (v + 1e-5).sqrt() + mean for i, (_, mean, v) in enumerate(parts)]
    return torch.stack(rows)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    return sum(row.exp().sum().log() - row[label] for row, label in zip(logits, y, strict=True)) / len(y)


def step(loss: Tensor, *optimizers: torch.optim.Adam) -> None:
    """Only of parameters that the optimizers hold."""
    parameters = [parameter for optimizer in optimizers for parameter in optimizer.param_groups[0]["params"]]
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = gradient
    for optimizer in optimizers:
        optimizer.step()


def test_updates_follow_the_textbook() -> None:
    algorithm = fresh()
    network, style_head = copy.deepcopy(algorithm.network), copy.deepcopy(algorithm.style_head)
    featurizer, content_head = network.featurizer, network.classifier
    of_featurizer, of_content, of_style = (
        torch.optim.Adam(part.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
        for part in (featurizer, content_head, style_head)
    )
    draws = torch.Generator().manual_seed(SEED)
    for seed in range(4):
        returned = algorithm.update(two_domains(seed))

        x, y = (torch.cat(parts) for parts in zip(*two_domains(seed), strict=True))
        weight = torch.rand(7, 1, generator=draws)
        others = [torch.randperm(7, generator=draws) for _ in range(3)]
        content_loss = cross_entropy(content_head(restyled(featurizer(x), weight, others[0])), y)
        step(content_loss, of_featurizer, of_content)
        style_loss = cross_entropy(style_head(with_other_content(featurizer(x), others[1])), y)
        step(style_loss, of_style)
        logits = style_head(with_other_content(featurizer(x), others[2]))
        probabilities = [row.exp() / row.exp().sum() for row in logits]
        adversarial_loss = sum(-p.log().sum() for p in probabilities) / (7 * 3)
        step(ADVERSARIAL_WEIGHT * adversarial_loss, of_featurizer)

        assert returned == {
            "loss": pytest.approx(content_loss.item(), rel=1e-10),
            "style_loss": pytest.approx(style_loss.item(), rel=1e-10),
            "adversarial_loss": pytest.approx(adversarial_loss.item(), rel=1e-10),
        }
        expected = [*network.parameters(), *style_head.parameters()]
        for ours, theirs in zip(algorithm.parameters(), expected, strict=True):
            torch.testing.assert_close(ours, theirs, **EXACT)
