"""Networks: shapes, layers, and that images need no preparation."""

import numpy as np
import pytest
import torch
from torch import nn

from domainwise.networks import NETWORKS, Network, Normalize, mlp, mnist_cnn, small_cnn


def images(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (2, 14, 14), (3, 9, 13)])
@pytest.mark.parametrize("name", NETWORKS)
def test_shapes_of_features_and_logits(name: str, shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    network = NETWORKS[name](shape, 5, 0.0)
    assert isinstance(network, Network)
    assert network.input_shape == shape
    x = images(4, *shape)
    features = network.featurizer(x)
    assert features.shape == (4, network.num_features)
    logits = network(x)
    assert logits.shape == (4, 5)
    torch.testing.assert_close(logits, network.classifier(features))
    assert logits.isfinite().all()


@pytest.mark.parametrize("name", NETWORKS)
def test_logits_do_not_depend_on_the_rest_of_the_batch(name: str) -> None:
    torch.manual_seed(0)
    network = NETWORKS[name]((3, 16, 16), 2, 0.0)
    x = images(4, 3, 16, 16)
    torch.testing.assert_close(network(x)[2:3], network(x[2:3]))
    assert not torch.allclose(network(x)[2], network(x)[3])


@pytest.mark.parametrize("name", NETWORKS)
def test_dropout_is_the_last_layer_of_the_featurizer(name: str) -> None:
    torch.manual_seed(0)
    network = NETWORKS[name]((3, 16, 16), 2, 0.5)
    last = list(network.featurizer.children())[-1]
    assert isinstance(last, nn.Dropout)
    assert last.p == 0.5
    assert sum(isinstance(module, nn.Dropout) for module in network.modules()) == 1
    x = images(64, 3, 16, 16)
    network.eval()
    whole = network.featurizer(x)
    network.train()
    dropped = network.featurizer(x)
    # Values that are not dropped are scaled by 1 / (1 - .5).
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], 2 * whole[kept])
    alive = whole != 0
    assert kept[alive].float().mean().item() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("name", NETWORKS)
def test_without_dropout_training_mode_draws_nothing(name: str) -> None:
    torch.manual_seed(0)
    network = NETWORKS[name]((3, 16, 16), 2, 0.0).train()
    x = images(4, 3, 16, 16)
    torch.testing.assert_close(network(x), network(x), rtol=0, atol=0)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_mnist_cnn_layer_by_layer(channels: int) -> None:
    network = mnist_cnn((channels, 28, 28), 10, 0.0)
    layers = list(network.featurizer.children())
    expected_kinds = [nn.Conv2d, nn.ReLU, nn.GroupNorm] * 4 + [nn.AdaptiveAvgPool2d, nn.Flatten, nn.Dropout]
    assert [type(layer) for layer in layers] == expected_kinds
    convolutions = layers[0:12:3]
    settings = [(c.in_channels, c.out_channels, c.kernel_size, c.stride, c.padding) for c in convolutions]
    assert settings == [
        (channels, 64, (3, 3), (1, 1), (1, 1)),
        (64, 128, (3, 3), (2, 2), (1, 1)),
        (128, 128, (3, 3), (1, 1), (1, 1)),
        (128, 128, (3, 3), (1, 1), (1, 1)),
    ]
    assert [(norm.num_groups, norm.num_channels) for norm in layers[2:12:3]] == [(8, 64), (8, 128), (8, 128), (8, 128)]
    assert isinstance(network.classifier, nn.Linear)
    assert (network.classifier.in_features, network.classifier.out_features) == (128, 10)


def test_mnist_cnn_pools_by_the_mean() -> None:
    torch.manual_seed(0)
    network = mnist_cnn((2, 12, 12), 3, 0.0).eval()
    x = images(2, 2, 12, 12)
    maps = network.featurizer[:12](x)
    assert maps.shape == (2, 128, 6, 6)
    np.testing.assert_allclose(
        network.featurizer(x).detach().numpy(), maps.detach().numpy().mean(axis=(2, 3)), rtol=1e-4, atol=1e-6
    )


def test_small_cnn_layer_by_layer() -> None:
    network = small_cnn((3, 32, 32), 2, 0.0)
    # No normalization of images or features.
    expected_kinds = [nn.Conv2d, nn.ReLU] * 3 + [nn.Flatten, nn.Dropout]
    assert [type(layer) for layer in network.featurizer] == expected_kinds
    convolutions = list(network.featurizer)[0:6:2]
    assert [(c.in_channels, c.out_channels, c.kernel_size, c.stride, c.padding) for c in convolutions] == [
        (3, 16, (3, 3), (2, 2), (1, 1)),
        (16, 32, (3, 3), (2, 2), (1, 1)),
        (32, 64, (3, 3), (2, 2), (1, 1)),
    ]
    assert (network.classifier.in_features, network.classifier.out_features) == (64 * 4 * 4, 2)


@pytest.mark.parametrize(
    ("mean", "std"), [((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)), ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
)
def test_normalize_shifts_and_scales_each_channel(mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    x = images(2, 3, 4, 5)
    expected = np.stack([(x.numpy()[:, c] - mean[c]) / std[c] for c in range(3)], axis=1)
    normalize = Normalize(mean, std)
    np.testing.assert_allclose(normalize(x).numpy(), expected, rtol=1e-5, atol=1e-6)
    assert not normalize.state_dict()
    assert not list(normalize.parameters())


@pytest.mark.parametrize("name", NETWORKS)
def test_every_saved_tensor_is_trained(name: str) -> None:
    network = NETWORKS[name]((3, 16, 16), 2, 0.0)
    assert set(network.state_dict()) == {name for name, _ in network.named_parameters()}
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_mlp_accepts_any_shape() -> None:
    torch.manual_seed(0)
    network = mlp((7,), 3, 0.0)
    linear = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [(7, 256), (256, 256), (256, 3)]
    assert network(images(2, 7)).shape == (2, 3)
