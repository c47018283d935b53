"""URM: a step of the network and one of the discriminator, against losses computed sample by sample."""

import copy
import math

import pytest
import torch
from tiny_problem import domains
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms import URM
from domainwise.data import Dataset, Domain
from domainwise.data.dataset import Split
from domainwise.networks import Network
from domainwise.training.probing import fit_classifier_

LR, WEIGHT_DECAY, ADVERSARY_WEIGHT, SEED = 0.01, 0.1, 0.7, 3


def fresh(**given) -> URM:
    torch.manual_seed(0)
    featurizer = nn.Sequential(nn.Flatten(), nn.Linear(48, 4))
    network = Network(featurizer, nn.Linear(4, 3), input_shape=(3, 4, 4), num_features=4)
    generator = torch.Generator().manual_seed(SEED)
    settings = {"adversary_weight": ADVERSARY_WEIGHT, "lr": LR, "weight_decay": WEIGHT_DECAY, **given}
    return URM(network, num_domains=2, generator=generator, **settings)


def bound(feature: Tensor, activation: str) -> Tensor:
    return feature.tanh() if activation == "tanh" else feature.clamp(min=0)


def probability_of_noise(discriminator: nn.Module, feature: Tensor) -> Tensor:
    *hidden, last = [layer for layer in discriminator if isinstance(layer, nn.Linear)]
    for layer in hidden:
        score = layer.weight @ feature + layer.bias
        feature = torch.where(score > 0, score, 0.01 * score)
    return 1 / (1 + (-(last.weight @ feature + last.bias)).exp())


def mean(values: list[Tensor]) -> Tensor:
    return sum(values) / len(values)


def step(optimizer: torch.optim.Adam, loss: Tensor) -> None:
    (group,) = optimizer.param_groups
    for parameter, gradient in zip(group["params"], torch.autograd.grad(loss, group["params"]), strict=True):
        parameter.grad = gradient
    optimizer.step()


@pytest.mark.parametrize("sizes", [(5, 2), (0, 3)])
@pytest.mark.parametrize(("discriminator_lr", "hidden_layers"), [(None, 1), (0.03, 2)])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_updates_follow_the_textbook(activation: str, discriminator_lr, hidden_layers: int, sizes) -> None:
    algorithm = fresh(activation=activation, discriminator_lr=discriminator_lr, hidden_layers=hidden_layers)
    expected = copy.deepcopy(algorithm)
    network, discriminator = expected.network, expected.discriminator
    optimizer = torch.optim.Adam(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    discriminator_optimizer = torch.optim.Adam(
        discriminator.parameters(), lr=discriminator_lr or LR, weight_decay=WEIGHT_DECAY
    )
    random = torch.Generator().manual_seed(SEED)
    for seed in range(4):
        batches = domains(sizes, seed)
        returned = algorithm.update(batches)

        samples = [(x, int(y)) for xs, ys in batches for x, y in zip(xs, ys, strict=True)]
        features = [bound(network.featurizer(x[None])[0], activation) for x, _ in samples]
        logits = [network.classifier(feature) for feature in features]
        loss = mean([each.exp().sum().log() - each[y] for each, (_, y) in zip(logits, samples, strict=True)])
        fooled = mean([-probability_of_noise(discriminator, feature).log() for feature in features])
        step(optimizer, loss + ADVERSARY_WEIGHT * fooled)

        noise = torch.rand(len(samples), 4, generator=random)
        noise = noise * 2 - 1 if activation == "tanh" else noise
        of_noise = mean([-probability_of_noise(discriminator, each).log() for each in noise])
        of_features = mean([-(1 - probability_of_noise(discriminator, each.detach())).log() for each in features])
        discriminator_loss = of_noise + ADVERSARY_WEIGHT * of_features
        step(discriminator_optimizer, discriminator_loss)

        assert returned == {
            "loss": pytest.approx(loss.item(), rel=1e-10),
            "discriminator_loss": pytest.approx(discriminator_loss.item(), rel=1e-10),
        }
        torch.testing.assert_close(list(algorithm.parameters()), list(expected.parameters()), rtol=1e-8, atol=1e-11)


def test_a_constant_discriminator_by_hand() -> None:
    algorithm = fresh()
    last = algorithm.discriminator[-1]
    nn.init.zeros_(last.weight)
    nn.init.constant_(last.bias, math.log(3))
    # It takes everything for noise with probability 3/4.
    expected = math.log(4 / 3) + ADVERSARY_WEIGHT * math.log(4)
    assert algorithm.update(domains((5, 2), 0))["discriminator_loss"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_predictions_use_the_activation(activation: str) -> None:
    algorithm = fresh(activation=activation)
    featurizer, classifier = algorithm.network.featurizer, algorithm.network.classifier
    x = domains((5,), 0)[0][0]
    with torch.no_grad():
        expected = classifier(bound(featurizer(x), activation))
    torch.testing.assert_close(algorithm.predict(x), expected)


@pytest.mark.parametrize("hidden_layers", [1, 3])
def test_discriminator_layers(hidden_layers: int) -> None:
    layers = list(fresh(hidden_layers=hidden_layers).discriminator)
    assert [type(layer) for layer in layers] == [nn.Linear, nn.LeakyReLU] * (1 + hidden_layers) + [nn.Linear]
    sizes = [(layer.in_features, layer.out_features) for layer in layers if isinstance(layer, nn.Linear)]
    assert sizes == [(4, 100), *[(100, 100)] * hidden_layers, (100, 1)]


def test_a_linear_probe_sees_the_bounded_features() -> None:
    count = 20
    images = torch.randint(256, (count, 3, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(count) % 3
    dataset = Dataset("tiny", ("a", "b", "c"), (Domain("only", images, labels),))
    torch.manual_seed(0)
    featurizer = nn.Sequential(nn.Flatten(), nn.Linear(48, 4))
    with torch.no_grad():
        featurizer[1].weight *= 20  # far outside the bounds
    # Datasets have images in single precision.
    network = Network(featurizer, nn.Linear(4, 3), input_shape=(3, 4, 4), num_features=4).float()
    algorithm = URM(network, num_domains=1)
    start = [parameter.detach().clone() for parameter in network.classifier.parameters()]
    fit_classifier_(
        *(algorithm.network, dataset, {"only": Split(torch.arange(count), torch.arange(0))}, ("only",)),
        steps=1,
        lr=0.1,
        seed=0,
        device=torch.device("cpu"),
    )
    chosen = torch.randint(count, (32,), generator=torch.Generator().manual_seed(0))
    features = torch.tanh(featurizer(images[chosen].float() / 255)).detach()
    probability = (features @ start[0].T + start[1]).softmax(1)
    slope = (probability - F.one_hot(labels[chosen], 3)).T @ features / 32
    # The first step of Adam is lr g / (|g| + eps).
    expected = start[0] - 0.1 * slope / (slope.abs() + 1e-8)
    torch.testing.assert_close(network.classifier.weight.detach(), expected, rtol=1e-5, atol=1e-5)
