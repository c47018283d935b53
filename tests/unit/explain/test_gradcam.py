"""Grad-CAM finds what decides, depends on the weights, and leaves the network as it was."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.errors import DomainwiseError
from domainwise.explain.gradcam import heat_maps, map_layer
from domainwise.networks import Network, build_backbone, mnist_cnn, small_cnn

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


def hottest(maps: Tensor) -> list[tuple[int, int]]:
    return [divmod(int(each.argmax()), maps.shape[2]) for each in maps]


@pytest.mark.parametrize("inplace", [False, True])
def test_the_hottest_place_is_the_patch_that_decides(inplace: bool) -> None:
    maps = heat_maps(brightness_network(inplace), patches())
    assert maps.shape == (len(PLACES), SIZE, SIZE)
    assert maps.amax((1, 2)).tolist() == pytest.approx([1] * len(PLACES))
    assert maps.min() >= 0
    for found, (row, column) in zip(hottest(maps), PLACES, strict=True):
        assert (found[0] // 8, found[1] // 8) == (row // 8, column // 8)


def test_values_are_those_of_the_definition() -> None:
    torch.manual_seed(0)
    network, images = small_cnn((3, SIZE, SIZE), 3), torch.rand(5, 3, SIZE, SIZE)
    classes = torch.tensor([0, 1, 2, 1, 0])
    maps = heat_maps(network, images, classes)
    cells = network.featurizer[:6](images).detach().requires_grad_()  # type: ignore[index]
    logits = network.classifier(cells.flatten(1))
    (gradient,) = torch.autograd.grad(logits[range(5), classes].sum(), cells)
    heat = (gradient.mean((2, 3), keepdim=True) * cells).sum(1, keepdim=True).relu()
    expected = F.interpolate(heat, (SIZE, SIZE), mode="bilinear")[:, 0].detach()
    torch.testing.assert_close(maps, expected / expected.amax((1, 2), keepdim=True).clamp(min=1e-30))
    assert (maps.amax((1, 2)) == 1).sum() >= 3


@pytest.mark.parametrize(("name", "side"), [("vit_b_16", 2), ("swin_t", 2)])
def test_cells_of_transformers_are_those_of_the_definition(
    name: str, side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nn.init, "trunc_normal_", lambda tensor, mean=0.0, std=1.0, **_: tensor.data.normal_(mean, std))
    torch.manual_seed(0)
    network, images = build_backbone(name, (3, SIZE, SIZE), 3).eval(), torch.rand(3, 3, SIZE, SIZE)
    nn.init.normal_(network.classifier.weight)  # type: ignore[arg-type]
    layer = map_layer(network, (3, SIZE, SIZE))
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
    torch.testing.assert_close(heat_maps(network, images), expected, rtol=1e-3, atol=1e-4)


def test_a_trained_network_looks_at_what_tells_the_classes_apart() -> None:
    torch.manual_seed(0)
    network = mnist_cnn((1, 16, 16), 2)
    optimizer = torch.optim.Adam(network.parameters(), 1e-3)
    for _ in range(30):
        images, labels = 0.3 * torch.rand(32, 1, 16, 16), torch.arange(32) % 2
        images[labels == 1, :, 2:7, 9:14] += 0.7
        optimizer.zero_grad()
        F.cross_entropy(network(images), labels).backward()
        optimizer.step()
    maps = heat_maps(network, images[1::2], torch.ones(16, dtype=torch.int64))
    inside = maps[:, 2:7, 9:14].sum() / maps.sum()
    assert inside > 2 * 25 / 256
    assert all(0 <= row < 9 and 7 <= column < 16 for row, column in hottest(maps))


def test_by_default_the_predicted_class_is_explained() -> None:
    torch.manual_seed(1)
    network, images = small_cnn((3, SIZE, SIZE), 4), torch.rand(6, 3, SIZE, SIZE)
    predicted = network(images).argmax(1)
    torch.testing.assert_close(heat_maps(network, images), heat_maps(network, images, predicted))
    assert not torch.allclose(heat_maps(network, images), heat_maps(network, images, (predicted + 1) % 4))


def test_a_class_that_nothing_speaks_for_has_a_map_of_zeros() -> None:
    maps = heat_maps(brightness_network(), patches(), torch.tensor([1, 0, 1, 0, 0]))
    assert maps.amax((1, 2)).tolist() == pytest.approx([1, 0, 1, 0, 0])
    assert torch.isfinite(maps).all()


def test_other_weights_give_other_maps() -> None:
    torch.manual_seed(0)
    network, images = small_cnn((3, SIZE, SIZE), 2), torch.rand(4, 3, SIZE, SIZE)
    before = heat_maps(network, images, torch.zeros(4, dtype=torch.int64))
    nn.init.normal_(network.classifier.weight, std=0.1)  # type: ignore[arg-type]
    after = heat_maps(network, images, torch.zeros(4, dtype=torch.int64))
    assert (before - after).abs().amax((1, 2)).min() > 0.1


def test_a_map_does_not_depend_on_the_batch() -> None:
    torch.manual_seed(0)
    network, images = small_cnn((3, SIZE, SIZE), 2), torch.rand(70, 3, SIZE, SIZE)
    classes = torch.arange(70) % 2
    together = heat_maps(network, images, classes)
    for index in (0, 63, 64, 69):
        alone = heat_maps(network, images[index : index + 1], classes[index : index + 1])
        torch.testing.assert_close(together[index], alone[0], rtol=1e-4, atol=1e-5)
    assert heat_maps(network, images[:0]).shape == (0, SIZE, SIZE)


@pytest.mark.parametrize("name", ["small_cnn", "resnet18", "timm:test_vit"])
def test_the_network_is_left_as_it_was(name: str) -> None:
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
    once = heat_maps(network, images)
    assert torch.equal(once, heat_maps(network, images))  # in eval mode: nothing is dropped at random
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
    expected = heat_maps(network, images)
    assert expected.max() == 1
    network.requires_grad_(False)
    torch.testing.assert_close(heat_maps(network, images), expected)
    with surrounding():
        torch.testing.assert_close(heat_maps(network, images.clone()), expected)


def test_a_hook_is_removed_when_the_network_fails() -> None:
    network = small_cnn((3, SIZE, SIZE), 2)
    layer = map_layer(network, (3, SIZE, SIZE))
    network.classifier = nn.Linear(3, 2)
    with pytest.raises(RuntimeError):
        heat_maps(network, torch.rand(1, 3, SIZE, SIZE), layer=layer)
    assert not any(module._forward_hooks for module in network.modules())


def test_a_layer_may_be_named() -> None:
    torch.manual_seed(0)
    network, images = small_cnn((3, SIZE, SIZE), 2), torch.rand(2, 3, SIZE, SIZE)
    named = heat_maps(network, images, layer="featurizer.5")
    assert torch.equal(named, heat_maps(network, images))
    assert not torch.allclose(named, heat_maps(network, images, layer="featurizer.3"))


def test_as_many_classes_as_images() -> None:
    with pytest.raises(DomainwiseError, match=r"^classes must name one class an image, 2, not \(3,\)$"):
        heat_maps(small_cnn((3, SIZE, SIZE), 2), torch.rand(2, 3, SIZE, SIZE), torch.zeros(3, dtype=torch.int64))
