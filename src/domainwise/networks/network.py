"""A network is a featurizer and a classifier. If images need to be normalized, that is its first layer."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn


class Normalize(nn.Module):
    """Normalizes images in [0, 1] for the layers that follow. Has no parameters and no saved state."""

    mean: Tensor | float
    std: Tensor | float

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(set(mean)) == len(set(std)) == 1:
            # Plain numbers are several times faster than broadcasting along channels.
            self.mean, self.std = mean[0], std[0]
        else:
            self.register_buffer("mean", torch.tensor(mean).reshape(-1, 1, 1), persistent=False)
            self.register_buffer("std", torch.tensor(std).reshape(-1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


class Network(nn.Module):
    """`classifier(featurizer(x))`: maps images in [0, 1], (b, *input_shape), to logits, (b, num_classes).

    Args:
        featurizer: Maps images to features, (b, num_features). Normalization is its first layer, dropout its last.
        classifier: Maps features to logits.
        input_shape: Shape of one image.
        num_features: Number of features.
    """

    def __init__(
        self, featurizer: nn.Module, classifier: nn.Module, *, input_shape: Sequence[int], num_features: int
    ) -> None:
        super().__init__()
        self.featurizer = featurizer
        self.classifier = classifier
        self.input_shape = tuple(input_shape)
        self.num_features = num_features

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.featurizer(x))
        return logits


# Maps (input_shape, num_classes, dropout) to a network.
NetworkBuilder = Callable[[Sequence[int], int, float], Network]


def small_cnn(input_shape: Sequence[int], num_classes: int, dropout: float = 0.0) -> Network:
    """Build three strided convolutions without any normalization; enough for the synthetic data."""
    channels, height, width = input_shape
    sizes = (channels, 16, 32, 64)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), nn.ReLU(inplace=True)]
    num_features = sizes[-1] * math.ceil(height / 8) * math.ceil(width / 8)
    return _build_network([*layers, nn.Flatten()], input_shape, num_features, num_classes, dropout)


def mnist_cnn(input_shape: Sequence[int], num_classes: int, dropout: float = 0.0) -> Network:
    """Build the four-convolution network that DomainBed uses for Colored and Rotated MNIST."""
    layers: list[nn.Module] = []
    inputs = input_shape[0]
    for outputs, stride in ((64, 1), (128, 2), (128, 1), (128, 1)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1), nn.ReLU(), nn.GroupNorm(8, outputs)]
        inputs = outputs
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return _build_network(layers, input_shape, 128, num_classes, dropout)


def mlp(input_shape: Sequence[int], num_classes: int, dropout: float = 0.0) -> Network:
    """Build two hidden layers of 256 units, for inputs of any shape."""
    layers: list[nn.Module] = [Normalize([0.5], [0.5]), nn.Flatten()]
    for inputs in (math.prod(input_shape), 256):
        layers += [nn.Linear(inputs, 256), nn.ReLU()]
    return _build_network(layers, input_shape, 256, num_classes, dropout)


def _build_network(
    layers: list[nn.Module], input_shape: Sequence[int], num_features: int, num_classes: int, dropout: float
) -> Network:
    featurizer = nn.Sequential(*layers, nn.Dropout(dropout))
    classifier = nn.Linear(num_features, num_classes)
    return Network(featurizer, classifier, input_shape=input_shape, num_features=num_features)
