"""What a network is: a featurizer and a classifier. What normalization of images it needs is its first layer."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn


class Normalize(nn.Module):
    """Images in [0, 1] to what the layers behind expect. Without parameters or saved state."""

    mean: Tensor | float
    std: Tensor | float

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        if len(set(mean)) == len(set(std)) == 1:
            # Plain numbers are several times faster than a broadcast along channels.
            self.mean, self.std = mean[0], std[0]
        else:
            self.register_buffer("mean", torch.tensor(mean).reshape(-1, 1, 1), persistent=False)
            self.register_buffer("std", torch.tensor(std).reshape(-1, 1, 1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


class Network(nn.Module):
    """`classifier(featurizer(x))`: images in [0, 1], (b, *input_shape), to logits, (b, num_classes).

    Args:
        featurizer: images to features, (b, num_features); it normalizes first, if at all, and drops out last.
        classifier: features to logits.
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


# (input_shape, num_classes, dropout) to a network.
NetworkBuilder = Callable[[Sequence[int], int, float], Network]
