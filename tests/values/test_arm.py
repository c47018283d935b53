"""ARM: a network built with one more input channel, which holds the mean context of each domain's images."""

import copy

import pytest
import torch
from tiny_problem import domains
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms import ARM
from domainwise.networks import Network, Normalize, build_backbone

LR, WEIGHT_DECAY = 0.01, 0.1
SHAPE = (3, 4, 4)


def convolutional_network() -> Network:
    torch.manual_seed(0)
    convolution = nn.Conv2d(3, 5, 3, stride=2, padding=1)
    featurizer = nn.Sequential(Normalize([0.3, 0.4, 0.5], [0.2, 0.3, 0.4]), convolution, nn.Tanh(), nn.Flatten())
    return Network(featurizer, nn.Linear(20, 3), input_shape=SHAPE, num_features=20)


def linear_network() -> Network:
    torch.manual_seed(0)
    featurizer = nn.Sequential(Normalize([0.5], [0.5]), nn.Flatten(), nn.Linear(48, 4), nn.Tanh())
    return Network(featurizer, nn.Linear(4, 3), input_shape=SHAPE, num_features=4)


def extend(layer: nn.Conv2d | nn.Linear) -> nn.Module:
    """Return the layer with a fourth channel, whose weights are a copy of the first channel's."""
    weight = layer.weight.detach()
    if isinstance(layer, nn.Conv2d):
        extended: nn.Module = nn.Conv2d(4, 5, 3, stride=2, padding=1)
        extended.weight.data = torch.cat([weight, weight[:, :1]], dim=1)
    else:
        extended = nn.Linear(64, 4)
        extended.weight.data = torch.cat([weight, weight[:, :16]], dim=1)
    extended.bias.data = layer.bias.detach().clone()
    return extended


class Textbook(nn.Module):
    """The layers of an ARM network before training, around an actual fourth channel."""

    def __init__(self, network, place: int) -> None:
        super().__init__()
        self.before, self.after = network.featurizer[:place], copy.deepcopy(network.featurizer[place + 1 :])
        self.first = extend(network.featurizer[place])
        self.classifier, self.context = copy.deepcopy(network.classifier), copy.deepcopy(network.context)

    def forward(self, parts: list[Tensor]) -> Tensor:
        images = (torch.cat(parts) - self.before[0].mean) / self.before[0].std
        contexts = self.context(images)
        rows, start = [], 0
        for part in parts:
            mean = sum(contexts[start : start + len(part)]) / len(part)
            rows += [torch.cat([images[start + index], mean]) for index in range(len(part))]
            start += len(part)
        stacked = torch.stack(rows)
        if isinstance(self.first, nn.Linear):
            stacked = stacked.flatten(1)
        return self.classifier(self.after(self.first(stacked)))


@pytest.mark.parametrize(("build", "place"), [(convolutional_network, 1), (linear_network, 2)])
@pytest.mark.parametrize("train_context", [True, False])
@pytest.mark.parametrize("sizes", [(5, 2), (5, 1, 3), (5, 0, 3), (4,)])
def test_updates_follow_the_textbook(build, place: int, train_context: bool, sizes: tuple[int, ...]) -> None:
    network = build()
    start = copy.deepcopy(network.state_dict())
    settings = {"train_context": train_context, "lr": LR, "weight_decay": WEIGHT_DECAY}
    algorithm = ARM(network, num_domains=len(sizes), **settings)
    first = algorithm.network.featurizer[place]
    assert torch.equal(first.weight, start[f"featurizer.{place}.weight"])
    expected = Textbook(algorithm.network, place)
    if not train_context:
        expected.context.requires_grad_(False)
    trained = [parameter for parameter in expected.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=LR, weight_decay=WEIGHT_DECAY)
    for seed in range(4):
        batches = domains(sizes, seed)
        returned = algorithm.update(batches)
        logits = expected([x for x, y in batches if len(y)])
        loss = F.cross_entropy(logits, torch.cat([y for _, y in batches]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert returned == {"loss": pytest.approx(loss.item(), rel=1e-8)}
        ours = torch.cat([first.weight, algorithm.network.channel.weight], dim=1)
        torch.testing.assert_close(ours, expected.first.weight, rtol=1e-7, atol=1e-9)
        for part in ("context", "classifier"):
            torch.testing.assert_close(
                getattr(algorithm.network, part).state_dict(),
                getattr(expected, part).state_dict(),
                rtol=1e-7,
                atol=1e-9,
            )
    x = domains((5,), 9)[0][0]
    with torch.no_grad():
        torch.testing.assert_close(algorithm.predict(x), expected.eval()([x]), rtol=1e-7, atol=1e-8)


def test_a_prediction_depends_on_its_batch() -> None:
    algorithm = ARM(convolutional_network(), num_domains=2, lr=LR)
    x = domains((5,), 0)[0][0]
    assert not torch.allclose(algorithm.predict(x)[:2], algorithm.predict(x[:2]))
    torch.testing.assert_close(algorithm.predict(x.flip(0)), algorithm.predict(x).flip(0))


@pytest.mark.parametrize("name", ["resnet18", "vit_b_32", "mobilenet_v3_small", "swin_t"])
def test_backbones_of_torchvision_can_be_extended(name: str) -> None:
    torch.set_default_dtype(torch.float32)
    network = build_backbone(name, (3, 64, 64), 3)
    algorithm = ARM(network, num_domains=2)
    with torch.no_grad():
        assert algorithm.predict(torch.rand(2, 3, 64, 64)).shape == (2, 3)
    assert algorithm.network.channel.weight.shape[1] == 1


@pytest.mark.parametrize(
    ("layers", "reason"),
    [
        ([nn.Conv2d(3, 3, 3, groups=3), nn.Flatten()], r"Conv2d with inputs of shape \(3, 4, 4\)"),
        ([nn.BatchNorm2d(3), nn.Conv2d(3, 3, 3), nn.Flatten()], "BatchNorm2d"),
        ([nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 12)], r"Linear with inputs of shape \(12,\)"),
        ([nn.AvgPool2d(2), nn.Flatten()], "Sequential"),
    ],
)
def test_error_for_a_network_that_cannot_be_extended(layers: list[nn.Module], reason: str) -> None:
    network = Network(nn.Sequential(*layers), nn.Linear(12, 3), input_shape=SHAPE, num_features=12)
    with pytest.raises(ValueError, match=rf"ARM adds a channel to the image.*got {reason}"):
        ARM(network, num_domains=2)
