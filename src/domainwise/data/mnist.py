"""MNIST's handwritten digits, read from its four idx files, and how they are dealt to domains."""

import gzip
import math
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from domainwise.data.dataset import Dataset, Domain
from domainwise.data.paths import DATA_VARIABLE, dataset_folder
from domainwise.errors import DomainwiseError
from domainwise.hparams import Choice, Distribution, Power

SIDE = 28
NUM_DIGITS = 10
MNIST_DEFAULTS: Mapping[str, float] = {"lr": 1e-3, "batch_size": 64}
MNIST_SEARCH: Mapping[str, Distribution] = {
    "lr": Power(10, -4.5, -2.5),
    "discriminator_lr": Power(10, -4.5, -2.5),
    "weight_decay": Choice((0.0,)),
    "batch_size": Power(2, 3, 9, whole=True),
}
_FOLDER = "MNIST/raw"
_PARTS = ("train", "t10k")
# An idx file opens with two zero bytes, 8 for unsigned bytes, and its number of dimensions.
_UNSIGNED_BYTES = 0x0800


def load_digits(data_dir: str | Path | None = None, *, dataset: str = "colored_mnist") -> tuple[Tensor, Tensor]:
    """All of MNIST: images, uint8 (n, 28, 28), and labels, int64 (n,); training images first, then test images.

    Args:
        data_dir: the folder that has MNIST/raw in it, as torchvision lays it out; the files may be gzipped or not.
        dataset: what the digits are read for; an error says how to prepare it.
    """
    folder = dataset_folder(dataset, _FOLDER, data_dir)
    parts = [_read_part(folder, part, dataset) for part in _PARTS]
    images, labels = (np.concatenate(both) for both in zip(*parts, strict=True))
    return torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64))


def shuffle_into_domains(count: int, num_domains: int, seed: int) -> list[Tensor]:
    """Shuffles `count` images and deals them round robin: the indices of each domain's images."""
    if seed < 0:
        raise DomainwiseError(f"seed must be 0 or more, not {seed}")
    shuffled = torch.from_numpy(np.random.default_rng(seed).permutation(count))
    return [shuffled[index::num_domains] for index in range(num_domains)]


def _read_part(folder: Path, part: str, dataset: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    images_path = _find(folder, f"{part}-images-idx3-ubyte", dataset)
    labels_path = _find(folder, f"{part}-labels-idx1-ubyte", dataset)
    images, labels = _read_idx(images_path, 3, dataset), _read_idx(labels_path, 1, dataset)
    if images.shape[1:] != (SIDE, SIDE):
        height, width = images.shape[1:]
        raise _damaged(images_path, f"its images have {height} x {width} pixels, not {SIDE} x {SIDE}", dataset)
    if (labels >= NUM_DIGITS).any():
        raise _damaged(labels_path, f"it has a label {labels.max()}, and digits end at {NUM_DIGITS - 1}", dataset)
    if len(images) != len(labels):
        raise _damaged(labels_path, f"it has {len(labels)} labels for {len(images)} images", dataset)
    return images, labels


def _find(folder: Path, name: str, dataset: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise DomainwiseError(
        f"dataset {dataset} needs {name}.gz, or {name}, in {folder}: run `domainwise data prepare {dataset}`, or name "
        f"the folder that has {_FOLDER} in it with --data-dir or ${DATA_VARIABLE}"
    )


def _read_idx(path: Path, dimensions: int, dataset: str) -> NDArray[np.uint8]:
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(path, str(error), dataset) from error
    opening = 4 * (1 + dimensions)
    if len(content) < opening:
        raise _damaged(path, f"it ends after {len(content)} bytes", dataset)
    magic, *shape = np.frombuffer(content[:opening], ">u4").tolist()
    if magic != _UNSIGNED_BYTES + dimensions:
        raise _damaged(path, f"it opens with {magic}, not {_UNSIGNED_BYTES + dimensions}", dataset)
    if len(content) != opening + math.prod(shape):
        expected = opening + math.prod(shape)
        raise _damaged(path, f"it has {len(content)} bytes, and announces {expected}", dataset)
    return np.frombuffer(content, np.uint8, offset=opening).reshape(shape)


def _damaged(path: Path, why: str, dataset: str) -> DomainwiseError:
    return DomainwiseError(
        f"{path} cannot be used: {why}; delete it and run `domainwise data prepare {dataset}` to get it anew"
    )


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
    shapes, numbers = load_digits(data_dir, dataset="colored_mnist")
    hands = shuffle_into_domains(len(shapes), len(_COLOUR_FLIPS), seed)
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


_ANGLES = (0, 15, 30, 45, 60, 75)
_CHUNK = 1024


def rotated_mnist(seed: int = 0, *, data_dir: str | Path | None = None) -> Dataset:
    """Six domains `0` to `75`, each of other digits, turned counter-clockwise by so many degrees.

    DomainBed deals the digits anew for every run. Here it depends on the trial's seed alone: all methods see the same.

    Args:
        seed: deals the digits to domains.
        data_dir: the folder that has MNIST/raw in it; see `data_folder` for where it is looked for otherwise.
    """
    upright, labels = load_digits(data_dir, dataset="rotated_mnist")
    hands = shuffle_into_domains(len(upright), len(_ANGLES), seed)
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
