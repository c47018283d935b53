"""Colored MNIST (Arjovsky et al., 2019): the colour foretells the label in training, and may mislead in the test."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from domainwise.data.dataset import Dataset, Domain
from domainwise.data.mnist.digits import MNIST_DEFAULTS, MNIST_SEARCH, SIDE, deal, digits
from domainwise.errors import DomainwiseError

_LABEL_NOISE = 0.25
# How often a domain's colour contradicts the label.
_COLOUR_FLIPS = {"+90%": 0.1, "+80%": 0.2, "-90%": 0.9}
# Networks by the side of the image; the smaller pair is for comparisons over many draws of hyperparameters.
_NETWORKS = {SIDE: "mnist_cnn", SIDE // 2: "mlp"}


def colored_mnist(seed: int = 0, *, data_dir: str | Path | None = None, image_size: int = SIDE) -> Dataset:
    """Digits below five against the others, in a colour that goes with the label more in one domain than in another.

    The label is 1 for 0 to 4 and 0 for 5 to 9, then flipped in a quarter of the images: no more than 75 % can be told
    from shape. The colour agrees with that noisy label in 90 % of the images of domain `+90%`, in 80 % of `+80%`, and
    in only 10 % of `-90%`. So colour tells more than shape wherever one trains on the first two, and a network that
    goes by it fails in the third. An image has two channels: its colour's holds the digit, the other is zero.

    DomainBed colours anew for every run. Here the images depend on the trial's seed alone: all methods see the same.

    Args:
        seed: deals the digits to domains, and draws label noise and colours from streams that are each domain's own.
        data_dir: the folder that has MNIST/raw in it; see `data_folder` for where it is looked for otherwise.
        image_size: 28, or 14 for every second pixel of every second row, as the IRM paper has it.
    """
    if image_size not in _NETWORKS:
        raise DomainwiseError(f"image_size must be {' or '.join(map(str, _NETWORKS))} pixels, not {image_size}")
    shapes, numbers = digits(data_dir, dataset="colored_mnist")
    hands = deal(len(shapes), len(_COLOUR_FLIPS), seed)
    step = SIDE // image_size
    return Dataset(
        name="colored_mnist",
        classes=("5 to 9", "0 to 4"),
        domains=tuple(
            _domain(seed, index, shapes[hand, ::step, ::step], numbers[hand]) for index, hand in enumerate(hands)
        ),
        network=_NETWORKS[image_size],
        defaults=MNIST_DEFAULTS,
        search=MNIST_SEARCH,
        steps=5001,
        record_every=100,
    )


def _domain(seed: int, index: int, shapes: Tensor, numbers: Tensor) -> Domain:
    """The domain at `index`, of digits `numbers` that look like `shapes`, (n, H, W)."""
    name, colour_flip = list(_COLOUR_FLIPS.items())[index]
    noise, paint = (np.random.default_rng(child) for child in np.random.SeedSequence(seed, spawn_key=(index,)).spawn(2))
    labels = (numbers < 5) ^ _chance(noise, _LABEL_NOISE, len(numbers))
    colours = labels ^ _chance(paint, colour_flip, len(numbers))
    images = torch.stack((shapes * ~colours[:, None, None], shapes * colours[:, None, None]), dim=1)
    return Domain(name=name, images=images, labels=labels.long())


def _chance(rng: np.random.Generator, probability: float, count: int) -> Tensor:
    return torch.from_numpy(rng.random(count) < probability)
