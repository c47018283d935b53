"""MIRO: distances to the initial layers by loops over channels, and two parameter groups of one Adam."""

import copy
import math

import pytest
import torch
from tiny_problem import domains
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms import MIRO
from domainwise.networks import Network, build_backbone

PENALTY_WEIGHT, LR, WEIGHT_DECAY = 0.7, 0.01, 0.1
SIZES = (5, 2, 0, 1)


class Tokens(nn.Module):
    """A layer whose output has the shape of a transformer's, (b, tokens, channels)."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.flatten(2))


def layered_network() -> Network:
    """An image of 2 channels, 2 tokens of 5 channels, and a vector of 4."""
    torch.manual_seed(0)
    featurizer = nn.Sequential(
        *(nn.Conv2d(3, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(inplace=True)),
        *(Tokens(), nn.Tanh(), nn.Flatten(), nn.Linear(10, 4), nn.ReLU(), nn.Dropout(0.0)),
    )
    featurizer[1].running_mean.fill_(0.3)
    return Network(featurizer, nn.Linear(4, 3), input_shape=(3, 4, 4), num_features=4)


def layers(featurizer: nn.Sequential, x: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return the outputs of the stages with the channels in dimension 1, and the features."""
    conv, norm, relu, tokens, tanh, flatten, linear, last_relu, _ = featurizer
    image = relu(norm(conv(x)))
    sequence = tanh(tokens(image))
    vector = last_relu(linear(flatten(sequence)))
    return [image, sequence.transpose(1, 2), vector], vector


def textbook(network: Network, initial: nn.Sequential, raw: list[Tensor], batches) -> tuple[Tensor, Tensor]:
    x, y = (torch.cat(each) for each in zip(*batches, strict=True))
    outputs, features = layers(network.featurizer, x)
    with torch.no_grad():
        targets, _ = layers(initial, x)
    penalty = 0
    for output, target, b in zip(outputs, targets, raw, strict=True):
        channels = []
        for c in range(output.shape[1]):
            variance = (1 + b[c].exp()).log() + 1e-5
            channels.append(((output[:, c] - target[:, c]) ** 2).mean() / variance + variance.log())
        penalty = penalty + sum(channels) / len(channels) / 2
    return F.cross_entropy(network.classifier(features), y), penalty


@pytest.mark.parametrize("factor", [10.0, 3.0])
def test_updates_follow_the_textbook(factor: float) -> None:
    algorithm = MIRO(
        layered_network(),
        num_domains=4,
        penalty_weight=PENALTY_WEIGHT,
        variance_lr_factor=factor,
        lr=LR,
        weight_decay=WEIGHT_DECAY,
    )
    network, initial = copy.deepcopy(algorithm.network), copy.deepcopy(algorithm.network.featurizer).eval()
    start = math.log(math.exp(0.1 - 1e-5) - 1)  # softplus(start) + 1e-5 = 0.1
    raw = [torch.full((count,), start, requires_grad=True) for count in (2, 5, 4)]
    optimizers = [
        torch.optim.Adam(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY),
        torch.optim.Adam(raw, lr=factor * LR, weight_decay=WEIGHT_DECAY),
    ]
    for seed in range(4):
        returned = algorithm.update(domains(SIZES, seed))
        loss, penalty = textbook(network, initial, raw, domains(SIZES, seed))
        for optimizer in optimizers:
            optimizer.zero_grad()
        (loss + PENALTY_WEIGHT * penalty).backward()
        for optimizer in optimizers:
            optimizer.step()
        assert returned == pytest.approx({"loss": loss.item(), "penalty": penalty.item()}, rel=1e-9)
        ours, theirs = list(algorithm.network.parameters()), list(network.parameters())
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-11)
        ours = [variance.flatten() for variance in algorithm.raw_variances]
        torch.testing.assert_close(ours, raw, rtol=1e-8, atol=1e-11)
    for key, value in initial.state_dict().items():
        torch.testing.assert_close(algorithm.initial_featurizer.state_dict()[key], value, rtol=0, atol=0)


def test_variances_per_channel_of_images_tokens_and_vectors() -> None:
    featurizer = nn.Sequential(nn.Conv2d(3, 2, 3, padding=1), Tokens(), nn.Linear(5, 6), nn.Flatten(), nn.Linear(12, 4))
    network = Network(featurizer, nn.Linear(4, 3), input_shape=(3, 4, 4), num_features=4)
    algorithm = MIRO(network, num_domains=1)
    assert algorithm.stages == ["0", "1", "2", "4"]
    assert [tuple(each.shape) for each in algorithm.raw_variances] == [(2, 1, 1), (5,), (6,), (4,)]


def test_one_layer_by_hand() -> None:
    network = Network(
        nn.Sequential(nn.Flatten(), nn.Linear(1, 2, bias=False)), nn.Linear(2, 2), input_shape=(1, 1, 1), num_features=2
    )
    algorithm = MIRO(network, num_domains=1, lr=0.0)
    batch = [(torch.full((3, 1, 1, 1), 2.0), torch.tensor([0, 1, 1]))]
    # At first there is no difference, and both variances are 0.1.
    assert algorithm.update(batch)["penalty"] == pytest.approx(math.log(0.1) / 2, rel=1e-12)
    with torch.no_grad():
        network.featurizer[1].weight[0] += 0.5
    # One of two features differs by 1 in all samples: half of 1 / 0.1.
    assert algorithm.update(batch)["penalty"] == pytest.approx((5 + math.log(0.1)) / 2, rel=1e-12)


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "timm:resnet18", "timm:vit_tiny_patch16_224"])
def test_backbones_start_without_a_difference(name: str) -> None:
    if name.startswith("timm:"):
        pytest.importorskip("timm")
    torch.manual_seed(0)
    network = build_backbone(name, (3, 32, 32), 3, dropout=0.5, batch_norm="frozen")
    algorithm = MIRO(network, num_domains=1, lr=1e-4).train()
    batch = [(torch.rand(2, 3, 32, 32), torch.tensor([0, 2]))]
    assert len(algorithm.stages) == 5
    assert algorithm.update(batch)["penalty"] == pytest.approx(5 * math.log(0.1) / 2, rel=1e-9)
    after = algorithm.update(batch)["penalty"]
    assert math.isfinite(after)
    assert after != pytest.approx(5 * math.log(0.1) / 2, rel=1e-9)
