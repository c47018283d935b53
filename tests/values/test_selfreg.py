"""SelfReg: distances to partners of the same class, image by image, with the same random draws."""

import copy

import numpy as np
import pytest
import torch
from tiny_problem import domains
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms import SelfReg
from domainwise.algorithms.selfreg import build_projection
from domainwise.networks import Network

LR, WEIGHT_DECAY, SEED, FEATURE_WEIGHT = 0.01, 0.1, 3, 0.7


def fresh(scale: float = 1.0, **hparams) -> SelfReg:
    torch.manual_seed(0)
    featurizer = nn.Sequential(nn.Flatten(), nn.Linear(48, 4), nn.Tanh())
    network = Network(featurizer, nn.Linear(4, 3), input_shape=(3, 4, 4), num_features=4)
    network.classifier.weight.data *= scale
    generator = torch.Generator().manual_seed(SEED)
    return SelfReg(network, num_domains=3, generator=generator, lr=LR, weight_decay=WEIGHT_DECAY, **hparams)


def draw_partners(y: Tensor, generator: torch.Generator) -> list[int]:
    """The images of a class, in order, get the images of that class in the order of a random permutation."""
    order = torch.randperm(len(y), generator=generator).tolist()
    partners = [-1] * len(y)
    for label in range(3):
        members = [index for index in range(len(y)) if y[index] == label]
        for member, partner in zip(members, [index for index in order if y[index] == label], strict=True):
            partners[member] = partner
    return partners


def normalize(values: Tensor, layer: nn.BatchNorm1d) -> Tensor:
    mean = values.mean(0)
    variance = ((values - mean) ** 2).mean(0)
    return (values - mean) / (variance + 1e-5).sqrt() * layer.weight + layer.bias


def textbook_loss(network, projection, x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy and the penalty."""
    share = np.random.default_rng(int(torch.randint(2**62, (), generator=generator))).beta(0.5, 0.5)
    first, second = draw_partners(y, generator), draw_partners(y, generator)
    z = network.featurizer(x)
    o = network.classifier(z)
    hidden = normalize(z @ projection[0].weight.T, projection[1]).relu()
    hidden = normalize(hidden @ projection[3].weight.T, projection[4]).relu()
    projected = normalize(hidden @ projection[6].weight.T, projection[7])
    penalty = 0.0
    for index in range(len(y)):
        for value, target, weight in ((o, o, 1.0), (z, projected, FEATURE_WEIGHT)):
            one, other = target[first[index]], target[second[index]]
            apart = ((value[index] - one) ** 2).mean()
            from_mixture = ((value[index] - share * one - (1 - share) * other) ** 2).mean()
            penalty = penalty + weight * (share * apart + (1 - share) * from_mixture) / len(y)
    return F.cross_entropy(o, y), penalty


@pytest.mark.parametrize("scale", [1.0, 30.0])  # cross-entropies on both sides of 1
@pytest.mark.parametrize("train_projection", [True, False])
@pytest.mark.parametrize("sizes", [(5, 2, 3), (5, 0, 3), (1, 1, 0)])
def test_updates_follow_the_textbook(sizes: tuple[int, ...], train_projection: bool, scale: float) -> None:
    algorithm = fresh(scale, train_projection=train_projection, feature_weight=FEATURE_WEIGHT)
    network, projection = copy.deepcopy(algorithm.network), copy.deepcopy(algorithm.projection)
    trained = [*network.parameters(), *(projection.parameters() if train_projection else [])]
    optimizer = torch.optim.Adam(trained, lr=LR, weight_decay=WEIGHT_DECAY)
    generator = torch.Generator().manual_seed(SEED)
    for seed in range(4):
        returned = algorithm.update(domains(sizes, seed))
        x, y = (torch.cat(parts) for parts in zip(*domains(sizes, seed), strict=True))
        loss, penalty = textbook_loss(network, projection, x, y, generator)
        optimizer.zero_grad()
        (loss + min(loss.item(), 1.0) * penalty).backward()
        optimizer.step()
        assert returned == pytest.approx({"loss": loss.item(), "penalty": penalty.item()}, rel=1e-8)
        torch.testing.assert_close(
            list(algorithm.network.parameters()), list(network.parameters()), rtol=1e-7, atol=1e-9
        )
        torch.testing.assert_close(
            list(algorithm.projection.parameters()), list(projection.parameters()), rtol=1e-7, atol=1e-9
        )


def test_partners_are_a_permutation_within_each_class() -> None:
    algorithm = fresh()
    y = torch.tensor([2, 0, 2, 1, 0, 2, 2])
    seen = set()
    for _ in range(50):
        partners = algorithm._draw_partners(y)
        assert torch.equal(y[partners], y)
        assert sorted(partners.tolist()) == list(range(7))
        seen.add(tuple(partners.tolist()))
    assert len(seen) > 25  # of 4! 2! = 48


def test_images_alone_in_their_class_have_equal_logits_as_targets() -> None:
    """Their partner is themselves, so only the distance between features and their projection remains."""
    algorithm = fresh(feature_weight=0.0)
    x = domains((3, 3, 3), 0)[0][0]
    returned = algorithm.update(
        [(x, torch.tensor([2, 0, 1])), (x[:0], x.new_zeros(0).long()), (x[:0], x.new_zeros(0).long())]
    )
    assert returned["penalty"] == 0


def test_a_single_image_is_trained_without_penalty() -> None:
    assert fresh().update(domains((0, 1, 0), 0))["penalty"] == 0


@pytest.mark.parametrize(("num_features", "width"), [(512, 1024), (2048, 2048)])
def test_width_of_the_projection(num_features: int, width: int) -> None:
    with torch.device("meta"):
        projection = build_projection(num_features)
    shapes = [tuple(layer.weight.shape) for layer in projection if isinstance(layer, nn.Linear)]
    assert shapes == [(width, num_features), (width, width), (num_features, width)]
    assert isinstance(projection[-1], nn.BatchNorm1d)
