"""Grad-CAM: the target layer of our networks, torchvision's and timm's; maps by definition; networks left unchanged."""

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.errors import DomainwiseError
from domainwise.explain.gradcam import TargetLayer, compute_gradcam, find_finer_layer, find_target_layer
from domainwise.networks import Network, build_backbone, mlp, mnist_cnn, small_cnn

CLASS_TOKEN = "featurizer.model.encoder.layers.encoder_layer_1.ln_1"


@pytest.fixture(autouse=True)
def _fast_initialization(monkeypatch: pytest.MonkeyPatch) -> None:
    """Initial values of large layers do not matter here, and truncated normal ones take seconds."""
    monkeypatch.setattr(nn.init, "trunc_normal_", lambda tensor, mean=0.0, std=1.0, **_: tensor.data.normal_(mean, std))


def build(name: str, size: int) -> Network:
    torch.manual_seed(0)
    ours = {"small_cnn": small_cnn, "mnist_cnn": mnist_cnn, "mlp": mlp}
    return ours[name]((3, size, size), 2, 0.0) if name in ours else build_backbone(name, (3, size, size), 2)


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("small_cnn", 32, TargetLayer("featurizer.5", "channels_first", 4, 4)),
        ("small_cnn", 28, TargetLayer("featurizer.5", "channels_first", 4, 4)),
        ("mnist_cnn", 28, TargetLayer("featurizer.11", "channels_first", 14, 14)),
        ("resnet18", 64, TargetLayer("featurizer.model.layer4", "channels_first", 2, 2)),
        # Its last layers have a single cell at this size.
        ("resnet18", 32, TargetLayer("featurizer.model.layer3", "channels_first", 2, 2)),
        ("mobilenet_v2", 64, TargetLayer("featurizer.model.features", "channels_first", 2, 2)),
        ("vit_b_16", 32, TargetLayer("featurizer.model.encoder.layers.encoder_layer_11.ln_1", "tokens", 2, 2, extra=1)),
        ("swin_t", 64, TargetLayer("featurizer.model.permute", "channels_first", 2, 2)),
        ("swin_t", 32, TargetLayer("featurizer.model.features.5", "channels_last", 2, 2)),
    ],
)
def test_the_target_is_the_last_map_of_more_than_one_cell(name: str, size: int, expected: TargetLayer) -> None:
    assert find_target_layer(build(name, size), (3, size, size)) == expected


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("timm:test_resnet", 64, None),
        ("timm:test_vit", 64, TargetLayer("featurizer.model.blocks.5.norm1", "tokens", 4, 4, extra=1)),
        (
            "timm:deit_tiny_distilled_patch16_224",
            32,
            TargetLayer("featurizer.model.blocks.11.norm1", "tokens", 2, 2, extra=2),
        ),
        ("timm:swin_tiny_patch4_window7_224", 64, TargetLayer("featurizer.model.norm", "channels_last", 2, 2)),
    ],
)
def test_target_layers_of_timm_models(name: str, size: int, expected: TargetLayer | None) -> None:
    pytest.importorskip("timm", reason="timm is an optional dependency")
    layer = find_target_layer(build(name, size), (3, size, size))
    if expected is None:
        assert layer.layout == "channels_first"
        assert layer.name.startswith("featurizer.model.layer")
    else:
        assert layer == expected


def small_transformer(monkeypatch: pytest.MonkeyPatch) -> Network:
    """torchvision's vit_b_16, but with two layers of width 16."""
    small = torchvision.models.VisionTransformer(32, 16, 2, 2, 16, 32)
    monkeypatch.setattr(torchvision.models, "get_model", lambda name, **_: small)
    return build("vit_b_16", 32)


def test_with_a_class_token_the_target_is_the_norm_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    network = small_transformer(monkeypatch)
    assert find_target_layer(network, (3, 32, 32)) == TargetLayer(CLASS_TOKEN, "tokens", 2, 2, extra=1)


def test_a_layer_that_the_logits_ignore_raises_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        DomainwiseError, match=r"^the logits do not depend on the cells of layer 'featurizer.model.encoder.ln'"
    ):
        find_target_layer(small_transformer(monkeypatch), (3, 32, 32), "featurizer.model.encoder.ln")


def test_tokens_become_a_grid_row_by_row() -> None:
    layer = TargetLayer("any", "tokens", 2, 3, extra=2)
    output = torch.arange(2 * 8 * 5.0).reshape(2, 8, 5)
    cells = layer.to_map(output)
    assert cells.shape == (2, 5, 2, 3)
    assert cells[1, 4, 1, 0] == output[1, 2 + 3, 4]
    assert torch.equal(layer.from_map(cells, output), output)


@pytest.mark.parametrize("layout", ["channels_first", "channels_last"])
def test_from_map_inverts_to_map(layout: str) -> None:
    layer = TargetLayer("any", layout, 2, 3)  # type: ignore[arg-type]
    shape = (4, 5, 2, 3) if layout == "channels_first" else (4, 2, 3, 5)
    output = torch.rand(shape)
    assert layer.to_map(output).shape == (4, 5, 2, 3)
    assert torch.equal(layer.from_map(layer.to_map(output), output), output)


def test_a_layer_can_be_chosen_by_name() -> None:
    network = build("small_cnn", 32)
    assert find_target_layer(network, (3, 32, 32), "featurizer.2") == TargetLayer(
        "featurizer.2", "channels_first", 8, 8
    )


def test_wide_images_have_wide_maps() -> None:
    network = small_cnn((3, 16, 48), 2)
    assert find_target_layer(network, (3, 16, 48)) == TargetLayer("featurizer.5", "channels_first", 2, 6)


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("mobilenet_v2", 64, TargetLayer("featurizer.model.features.13", "channels_first", 4, 4)),
        ("resnet18", 64, TargetLayer("featurizer.model.layer3", "channels_first", 4, 4)),
        ("small_cnn", 16, TargetLayer("featurizer.3", "channels_first", 4, 4)),
        ("small_cnn", 6, None),
        # Not the stem, which has fewer modules around it.
        ("timm:mobilenetv3_small_050", 64, TargetLayer("featurizer.model.blocks.3", "channels_first", 4, 4)),
    ],
)
def test_a_coarse_map_and_the_finer_one_before_it(name: str, size: int, expected: TargetLayer | None) -> None:
    if name.startswith("timm:"):
        pytest.importorskip("timm", reason="timm is an optional dependency")
    network, shape = build(name, size), (3, size, size)
    assert find_target_layer(network, shape).is_coarse
    finer = find_finer_layer(network, shape)
    assert finer == expected
    if finer is not None:
        assert not finer.is_coarse
        assert find_target_layer(network, shape, finer.name) == finer


def test_a_map_of_four_cells_per_side_is_not_coarse() -> None:
    assert not TargetLayer("layer", "channels_first", 4, 4).is_coarse
    assert TargetLayer("layer", "channels_first", 3, 7).is_coarse
    assert str(TargetLayer("layer4", "tokens", 3, 7, extra=1)) == "layer4, 3 x 7 cells"


def test_wrong_layers_raise_one_line_errors() -> None:
    network = build("small_cnn", 32)
    with pytest.raises(DomainwiseError, match=r"^unknown layer 'featuriser.5'; did you mean 'featurizer.5'\? [^\n]*$"):
        find_target_layer(network, (3, 32, 32), "featuriser.5")
    with pytest.raises(DomainwiseError, match=r"^the output of layer 'classifier' is not a map .*: .*, featurizer\.5$"):
        find_target_layer(network, (3, 32, 32), "classifier")


@pytest.mark.parametrize(("name", "size"), [("mlp", 16), ("vit_b_32", 32)])
def test_a_network_without_a_map_raises_an_error(name: str, size: int) -> None:
    with pytest.raises(DomainwiseError, match=rf"this network has none for {size} x {size} images; use"):
        find_target_layer(build(name, size), (3, size, size))


class Reused(nn.Module):
    """A network that uses one activation twice, the second time on a single cell."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 2, 8)
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.second(self.activation(self.first(x)))).flatten(1)


def test_a_layer_used_twice_counts_where_it_is_used_last() -> None:
    assert find_target_layer(Reused(), (3, 8, 8)).name == "first"


def test_finding_the_layer_leaves_the_network_unchanged() -> None:
    network = build("resnet18", 32).train()
    network.classifier.eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    state = torch.random.get_rng_state()
    with torch.no_grad():
        find_target_layer(network, (3, 32, 32))
    assert torch.equal(state, torch.random.get_rng_state())
    assert network.training
    assert not network.classifier.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
    assert not any(module._forward_hooks or module._backward_hooks for module in network.modules())


SIZE = 32
# Upper left corners of the patches, away from the edges of the last layer's cells of eight pixels.
PLACES = [(2, 2), (2, 26), (18, 10), (26, 26), (10, 18)]


def brightness_network(inplace: bool = False) -> Network:
    """Class 1 is the brightness of the image, class 0 its negative: means of blocks of 8 x 8, then their sum."""
    blocks = nn.Conv2d(3, 1, 8, stride=8, bias=False)
    nn.init.constant_(blocks.weight, 1 / (3 * 64))
    classifier = nn.Linear(16, 2, bias=False)
    with torch.no_grad():
        classifier.weight.copy_(torch.tensor([[-1.0], [1.0]]).expand(2, 16))
    featurizer = nn.Sequential(blocks, nn.ReLU(inplace=inplace), nn.Flatten())
    return Network(featurizer, classifier, input_shape=(3, SIZE, SIZE), num_features=16)


def patches() -> Tensor:
    images = torch.zeros(len(PLACES), 3, SIZE, SIZE)
    for image, (row, column) in zip(images, PLACES, strict=True):
        image[:, row : row + 4, column : column + 4] = 1
    return images


def find_maxima(maps: Tensor) -> list[tuple[int, int]]:
    return [divmod(int(each.argmax()), maps.shape[2]) for each in maps]


@pytest.mark.parametrize("inplace", [False, True])
def test_the_maximum_is_at_the_patch_that_decides(inplace: bool) -> None:
    maps = compute_gradcam(brightness_network(inplace), patches())
    assert maps.shape == (len(PLACES), SIZE, SIZE)
    assert maps.amax((1, 2)).tolist() == pytest.approx([1] * len(PLACES))
    assert maps.min() >= 0
    for maximum, (row, column) in zip(find_maxima(maps), PLACES, strict=True):
        assert (maximum[0] // 8, maximum[1] // 8) == (row // 8, column // 8)


def test_maps_follow_the_definition() -> None:
    torch.manual_seed(0)
    network, images = small_cnn((3, SIZE, SIZE), 3), torch.rand(5, 3, SIZE, SIZE)
    classes = torch.tensor([0, 1, 2, 1, 0])
    maps = compute_gradcam(network, images, classes)
    cells = network.featurizer[:6](images).detach().requires_grad_()  # type: ignore[index]
    logits = network.classifier(cells.flatten(1))
    (gradient,) = torch.autograd.grad(logits[range(5), classes].sum(), cells)
    heat = (gradient.mean((2, 3), keepdim=True) * cells).sum(1, keepdim=True).relu()
    expected = F.interpolate(heat, (SIZE, SIZE), mode="bilinear")[:, 0].detach()
    torch.testing.assert_close(maps, expected / expected.amax((1, 2), keepdim=True).clamp(min=1e-30))
    assert (maps.amax((1, 2)) == 1).sum() >= 3


@pytest.mark.parametrize(("name", "side"), [("vit_b_16", 2), ("swin_t", 2)])
def test_maps_of_transformers_follow_the_definition(name: str, side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.init, "trunc_normal_", lambda tensor, mean=0.0, std=1.0, **_: tensor.data.normal_(mean, std))
    torch.manual_seed(0)
    network, images = build_backbone(name, (3, SIZE, SIZE), 3).eval(), torch.rand(3, 3, SIZE, SIZE)
    nn.init.normal_(network.classifier.weight)  # type: ignore[arg-type]
    layer = find_target_layer(network, (3, SIZE, SIZE))
    kept: list[Tensor] = []
    hook = network.get_submodule(layer.name).register_forward_hook(lambda module, _, output: kept.append(output))
    highest = network(images).max(1).values.sum()
    hook.remove()
    (gradient,) = torch.autograd.grad(highest, kept)
    # Each cell by its own index: the transformer has a class token in front, Swin rows and columns.
    cells, slopes = ((each[:, 1:] if name == "vit_b_16" else each.flatten(1, 2)) for each in (kept[0], gradient))
    heat = (slopes.mean(1, keepdim=True) * cells).sum(2).relu().reshape(3, 1, side, side)
    expected = F.interpolate(heat, (SIZE, SIZE), mode="bilinear")[:, 0].detach()
    assert (expected.amax((1, 2)) > 0).any()
    expected = expected / expected.amax((1, 2), keepdim=True).clamp(min=1e-30)
    torch.testing.assert_close(compute_gradcam(network, images), expected, rtol=1e-3, atol=1e-4)


def test_a_trained_network_attends_to_what_distinguishes_the_classes() -> None:
    torch.manual_seed(0)
    network = mnist_cnn((1, 16, 16), 2)
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    for _ in range(30):
        images, labels = 0.3 * torch.rand(32, 1, 16, 16), torch.arange(32) % 2
        images[labels == 1, :, 2:7, 9:14] += 0.7
        optimizer.zero_grad()
        F.cross_entropy(network(images), labels).backward()
        optimizer.step()
    maps = compute_gradcam(network, images[1::2], torch.ones(16, dtype=torch.int64))
    inside = maps[:, 2:7, 9:14].sum() / maps.sum()
    assert inside > 2 * 25 / 256
    assert all(0 <= row < 9 and 7 <= column < 16 for row, column in find_maxima(maps))


def test_the_predicted_class_is_explained_by_default() -> None:
    torch.manual_seed(1)
    network, images = small_cnn((3, SIZE, SIZE), 4), torch.rand(6, 3, SIZE, SIZE)
    predicted = network(images).argmax(1)
    torch.testing.assert_close(compute_gradcam(network, images), compute_gradcam(network, images, predicted))
    assert not torch.allclose(compute_gradcam(network, images), compute_gradcam(network, images, (predicted + 1) % 4))


def test_a_class_without_positive_attribution_has_a_map_of_zeros() -> None:
    maps = compute_gradcam(brightness_network(), patches(), torch.tensor([1, 0, 1, 0, 0]))
    assert maps.amax((1, 2)).tolist() == pytest.approx([1, 0, 1, 0, 0])
    assert torch.isfinite(maps).all()


def test_maps_depend_on_the_weights() -> None:
    torch.manual_seed(0)
    network, images = small_cnn((3, SIZE, SIZE), 2), torch.rand(4, 3, SIZE, SIZE)
    before = compute_gradcam(network, images, torch.zeros(4, dtype=torch.int64))
    nn.init.normal_(network.classifier.weight, std=0.1)  # type: ignore[arg-type]
    after = compute_gradcam(network, images, torch.zeros(4, dtype=torch.int64))
    assert (before - after).abs().amax((1, 2)).min() > 0.1


def test_a_map_does_not_depend_on_the_batch() -> None:
    torch.manual_seed(0)
    network, images = small_cnn((3, SIZE, SIZE), 2), torch.rand(70, 3, SIZE, SIZE)
    classes = torch.arange(70) % 2
    together = compute_gradcam(network, images, classes)
    for index in (0, 63, 64, 69):
        alone = compute_gradcam(network, images[index : index + 1], classes[index : index + 1])
        torch.testing.assert_close(together[index], alone[0], rtol=1e-4, atol=1e-5)
    assert compute_gradcam(network, images[:0]).shape == (0, SIZE, SIZE)


@pytest.mark.parametrize("name", ["small_cnn", "resnet18", "timm:test_vit"])
def test_the_network_is_left_unchanged(name: str) -> None:
    if name.startswith("timm:"):
        pytest.importorskip("timm", reason="timm is an optional dependency")
    torch.manual_seed(0)
    network = small_cnn((3, 64, 64), 2, 0.5) if name == "small_cnn" else build_backbone(name, (3, 64, 64), 2, 0.5)
    network.train()
    network.classifier.eval()
    first = next(network.parameters())
    first.requires_grad = False
    before = {key: value.clone() for key, value in network.state_dict().items()}
    modes = [module.training for module in network.modules()]
    images = torch.rand(3, 3, 64, 64)
    once = compute_gradcam(network, images)
    assert torch.equal(once, compute_gradcam(network, images))  # eval mode: no dropout
    assert not once.requires_grad
    assert not images.requires_grad
    assert [module.training for module in network.modules()] == modes
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    assert [each.requires_grad for each in network.parameters()] == [each is not first for each in network.parameters()]
    assert all(each.grad is None for each in network.parameters())
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    assert not any(getattr(module, kind) for module in network.modules() for kind in hooks)


@pytest.mark.parametrize("surrounding", [torch.no_grad, torch.inference_mode])
def test_frozen_networks_and_callers_without_gradients(surrounding: type) -> None:
    torch.manual_seed(0)
    network, images = small_cnn((3, SIZE, SIZE), 2), torch.rand(2, 3, SIZE, SIZE)
    expected = compute_gradcam(network, images)
    assert expected.max() == 1
    network.requires_grad_(False)
    torch.testing.assert_close(compute_gradcam(network, images), expected)
    with surrounding():
        torch.testing.assert_close(compute_gradcam(network, images.clone()), expected)


def test_the_hook_is_removed_when_the_network_fails() -> None:
    network = small_cnn((3, SIZE, SIZE), 2)
    layer = find_target_layer(network, (3, SIZE, SIZE))
    network.classifier = nn.Linear(3, 2)
    with pytest.raises(RuntimeError):
        compute_gradcam(network, torch.rand(1, 3, SIZE, SIZE), layer=layer)
    assert not any(module._forward_hooks for module in network.modules())


def test_the_layer_can_be_named() -> None:
    torch.manual_seed(0)
    network, images = small_cnn((3, SIZE, SIZE), 2), torch.rand(2, 3, SIZE, SIZE)
    named = compute_gradcam(network, images, layer="featurizer.5")
    assert torch.equal(named, compute_gradcam(network, images))
    assert not torch.allclose(named, compute_gradcam(network, images, layer="featurizer.3"))


def test_classes_need_one_entry_per_image() -> None:
    with pytest.raises(DomainwiseError, match=r"^classes must have one entry per image \(2\), got shape \(3,\)$"):
        compute_gradcam(small_cnn((3, SIZE, SIZE), 2), torch.rand(2, 3, SIZE, SIZE), torch.zeros(3, dtype=torch.int64))
