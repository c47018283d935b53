"""Stages of featurizers: the rule on small modules, and which layers it chooses in well-known networks."""

import pytest
import torch
from torch import Tensor, nn

from domainwise.networks import NETWORKS, build_backbone
from domainwise.networks.stages import find_stages, record_outputs

IMAGE = (3, 32, 32)


def stages(featurizer: nn.Module, image: tuple[int, ...] = IMAGE) -> dict[str, tuple[int, ...]]:
    shapes = find_stages(featurizer.eval(), torch.zeros(3, *image))
    return {name: tuple(shape[1:]) for name, shape in shapes.items()}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("small_cnn", {"1": (16, 16, 16), "3": (32, 8, 8), "5": (64, 4, 4)}),
        ("mnist_cnn", {"2": (64, 32, 32), "5": (128, 16, 16), "8": (128, 16, 16), "10": (128, 16, 16)}),
        ("mlp", {"3": (256,), "5": (256,)}),
    ],
)
def test_small_networks(name: str, expected: dict[str, tuple[int, ...]]) -> None:
    assert stages(NETWORKS[name](IMAGE, 3, 0.1).featurizer) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet18", ["maxpool", "layer1", "layer2", "layer3", "layer4"]),
        ("mobilenet_v2", [f"features.{index}" for index in (0, 4, 9, 13, 18)]),
        ("vit_b_32", ["conv_proj", *(f"encoder.layers.encoder_layer_{index}" for index in (2, 5, 8, 11))]),
        ("regnet_y_400mf", ["stem", *(f"trunk_output.block{number}" for number in (1, 2, 3, 4))]),
        ("timm:resnet18", ["maxpool", "layer1", "layer2", "layer3", "layer4"]),
        ("timm:vit_tiny_patch16_224", ["patch_embed", *(f"blocks.{index}" for index in (2, 5, 8, 11))]),
    ],
)
def test_backbones(name: str, expected: list[str]) -> None:
    if name.startswith("timm:"):
        pytest.importorskip("timm")
    image = (3, 64, 64)
    network = build_backbone(name, image, 3)
    assert list(stages(network.featurizer, image)) == [f"model.{layer}" for layer in expected]


class Branches(nn.Module):
    """Modules in a list, registered in another order than called; one is called twice and one returns a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 8)
        self.blocks = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.shared = nn.Linear(8, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.first = nn.Linear(32, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.mean(1))
        for block in self.blocks:
            x = self.shared(block(x))
        x, _ = self.attention(x, x, x)
        return self.last(x)


def test_order_of_the_forward_pass_and_only_modules_called_once() -> None:
    assert list(stages(Branches())) == ["first", "blocks.0", "blocks.1", "last"]


def test_a_single_layer_and_no_layer() -> None:
    assert stages(nn.Conv2d(3, 2, 1)) == {"": (2, 32, 32)}
    assert stages(nn.Flatten()) == {}


def test_recorded_outputs_and_no_hooks_afterwards() -> None:
    featurizer = NETWORKS["mlp"](IMAGE, 3, 0.0).featurizer
    x = torch.rand(2, *IMAGE)
    with record_outputs(featurizer, ["3", "5"]) as outputs:
        features = featurizer(x)
    assert list(outputs) == ["3", "5"]
    assert torch.equal(outputs["3"], featurizer[:4](x))
    assert torch.equal(outputs["5"], features)
    assert not any(module._forward_hooks for module in featurizer.modules())
