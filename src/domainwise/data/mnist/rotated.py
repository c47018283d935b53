"""Rotated MNIST (Ghifary et al., 2015): the ten digits, turned by another angle in every domain."""

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from domainwise.data.dataset import Dataset, Domain
from domainwise.data.mnist.digits import MNIST_DEFAULTS, MNIST_SEARCH, NUM_DIGITS, deal, digits

_ANGLES = (0, 15, 30, 45, 60, 75)
_CHUNK = 1024


def rotated_mnist(seed: int = 0, *, data_dir: str | Path | None = None) -> Dataset:
    """Six domains `0` to `75`, each of other digits, turned counter-clockwise by so many degrees.

    DomainBed deals the digits anew for every run. Here it depends on the trial's seed alone: all methods see the same.

    Args:
        seed: deals the digits to domains.
        data_dir: the folder that has MNIST/raw in it; see `data_folder` for where it is looked for otherwise.
    """
    upright, labels = digits(data_dir, dataset="rotated_mnist")
    hands = deal(len(upright), len(_ANGLES), seed)
    return Dataset(
        name="rotated_mnist",
        classes=tuple(map(str, range(NUM_DIGITS))),
        domains=tuple(
            Domain(name=str(angle), images=rotate(upright[hand], angle)[:, None], labels=labels[hand])
            for angle, hand in zip(_ANGLES, hands, strict=True)
        ),
        network="mnist_cnn",
        defaults=MNIST_DEFAULTS,
        search=MNIST_SEARCH,
        steps=5001,
        record_every=100,
    )


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Turns square uint8 images, (n, H, H), counter-clockwise about their centre; what comes from outside is black."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    # Where each pixel comes from, so the inverse turn; rows count downwards.
    source = torch.tensor([[[cos, -sin, 0.0], [sin, cos, 0.0]]])
    grid = F.affine_grid(source, [1, 1, *images.shape[1:]], align_corners=False)
    # All images of a chunk pass as channels of one, because they share the grid.
    turned = [
        F.grid_sample(chunk[None].float(), grid, mode="bilinear", padding_mode="zeros", align_corners=False)[0]
        .round()
        .to(torch.uint8)
        for chunk in images.split(_CHUNK)
    ]
    return torch.cat(turned)
