"""The layer that Grad-CAM looks at, in our networks, torchvision's and timm's."""

import pytest
import torch
import torchvision
from torch import Tensor, nn

from domainwise.errors import DomainwiseError
from domainwise.explain.gradcam import MapLayer, map_layer
from domainwise.networks import Network, build_backbone, mlp, mnist_cnn, small_cnn

CLASS_TOKEN = "featurizer.model.encoder.layers.encoder_layer_1.ln_1"


@pytest.fixture(autouse=True)
def _quick_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """What values large layers start from is of no matter here; drawing them carefully takes seconds."""
    monkeypatch.setattr(nn.init, "trunc_normal_", lambda tensor, mean=0.0, std=1.0, **_: tensor.data.normal_(mean, std))


def built(name: str, size: int) -> Network:
    torch.manual_seed(0)
    ours = {"small_cnn": small_cnn, "mnist_cnn": mnist_cnn, "mlp": mlp}
    return ours[name]((3, size, size), 2, 0.0) if name in ours else build_backbone(name, (3, size, size), 2)


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("small_cnn", 32, MapLayer("featurizer.5", "channels_first", 4, 4)),
        ("small_cnn", 28, MapLayer("featurizer.5", "channels_first", 4, 4)),
        ("mnist_cnn", 28, MapLayer("featurizer.11", "channels_first", 14, 14)),
        ("resnet18", 64, MapLayer("featurizer.model.layer4", "channels_first", 2, 2)),
        # The last of its layers have a single cell here.
        ("resnet18", 32, MapLayer("featurizer.model.layer3", "channels_first", 2, 2)),
        ("mobilenet_v2", 64, MapLayer("featurizer.model.features", "channels_first", 2, 2)),
        ("vit_b_16", 32, MapLayer("featurizer.model.encoder.layers.encoder_layer_11.ln_1", "tokens", 2, 2, extra=1)),
        ("swin_t", 64, MapLayer("featurizer.model.permute", "channels_first", 2, 2)),
        ("swin_t", 32, MapLayer("featurizer.model.features.5", "channels_last", 2, 2)),
    ],
)
def test_the_last_map_of_more_than_one_cell(name: str, size: int, expected: MapLayer) -> None:
    assert map_layer(built(name, size), (3, size, size)) == expected


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("timm:test_resnet", 64, None),
        ("timm:test_vit", 64, MapLayer("featurizer.model.blocks.5.norm1", "tokens", 4, 4, extra=1)),
        (
            "timm:deit_tiny_distilled_patch16_224",
            32,
            MapLayer("featurizer.model.blocks.11.norm1", "tokens", 2, 2, extra=2),
        ),
        ("timm:swin_tiny_patch4_window7_224", 64, MapLayer("featurizer.model.norm", "channels_last", 2, 2)),
    ],
)
def test_models_of_timm(name: str, size: int, expected: MapLayer | None) -> None:
    pytest.importorskip("timm", reason="timm is an optional dependency")
    found = map_layer(built(name, size), (3, size, size))
    if expected is None:
        assert found.layout == "channels_first"
        assert found.name.startswith("featurizer.model.layer")
    else:
        assert found == expected


def small_transformer(monkeypatch: pytest.MonkeyPatch) -> Network:
    """torchvision's vit_b_16, but with two layers of width 16."""
    small = torchvision.models.VisionTransformer(32, 16, 2, 2, 16, 32)
    monkeypatch.setattr(torchvision.models, "get_model", lambda name, **_: small)
    return built("vit_b_16", 32)


def test_a_class_token_reads_the_others_in_the_last_block(monkeypatch: pytest.MonkeyPatch) -> None:
    network = small_transformer(monkeypatch)
    assert map_layer(network, (3, 32, 32)) == MapLayer(CLASS_TOKEN, "tokens", 2, 2, extra=1)


def test_a_layer_that_nothing_reads_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DomainwiseError, match=r"^no place in the output of layer 'featurizer.model.encoder.ln' has"):
        map_layer(small_transformer(monkeypatch), (3, 32, 32), "featurizer.model.encoder.ln")


def test_tokens_lie_on_the_grid_row_by_row() -> None:
    layer = MapLayer("any", "tokens", 2, 3, extra=2)
    output = torch.arange(2 * 8 * 5.0).reshape(2, 8, 5)
    cells = layer.to_map(output)
    assert cells.shape == (2, 5, 2, 3)
    assert cells[1, 4, 1, 0] == output[1, 2 + 3, 4]
    assert torch.equal(layer.from_map(cells, output), output)


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_a_map_goes_back_to_where_it_came_from(layout: str) -> None:
    layer = MapLayer("any", layout, 2, 3)  # type: ignore[arg-type]
    shape = (4, 5, 2, 3) if layout == "channels_first" else (4, 2, 3, 5)
    output = torch.rand(shape)
    assert layer.to_map(output).shape == (4, 5, 2, 3)
    assert torch.equal(layer.from_map(layer.to_map(output), output), output)


def test_a_layer_by_name() -> None:
    network = built("small_cnn", 32)
    assert map_layer(network, (3, 32, 32), "featurizer.2") == MapLayer("featurizer.2", "channels_first", 8, 8)


def test_wide_images_have_wide_maps() -> None:
    network = small_cnn((3, 16, 48), 2)
    assert map_layer(network, (3, 16, 48)) == MapLayer("featurizer.5", "channels_first", 2, 6)


def test_wrong_layers_are_one_line() -> None:
    network = built("small_cnn", 32)
    with pytest.raises(DomainwiseError, match=r"^unknown layer 'featuriser.5'; did you mean 'featurizer.5'\? [^\n]*$"):
        map_layer(network, (3, 32, 32), "featuriser.5")
    with pytest.raises(DomainwiseError, match=r"^the output of layer 'classifier' is no map .*: .*, featurizer\.5$"):
        map_layer(network, (3, 32, 32), "classifier")


@pytest.mark.parametrize(("name", "size"), [("mlp", 16), ("vit_b_32", 32)])
def test_a_network_without_a_map_is_refused(name: str, size: int) -> None:
    with pytest.raises(DomainwiseError, match=rf"this network has none for images of {size} x {size}: take"):
        map_layer(built(name, size), (3, size, size))


class Reused(nn.Module):
    """Uses one activation after each of its layers, last on a single cell."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 8)
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.second(self.activation(self.first(x)))).flatten(1)


def test_a_layer_used_twice_counts_where_it_is_used_last() -> None:
    assert map_layer(Reused(), (3, 8, 8)).name == "first"


def test_finding_leaves_nothing_behind() -> None:
    network = built("resnet18", 32).train()
    network.classifier.eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    state = torch.random.get_rng_state()
    with torch.no_grad():
        map_layer(network, (3, 32, 32))
    assert torch.equal(state, torch.random.get_rng_state())
    assert network.training
    assert not network.classifier.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
    assert not any(module._forward_hooks or module._backward_hooks for module in network.modules())
