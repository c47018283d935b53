"""Colored MNIST and Rotated MNIST, built from MNIST's four idx files."""

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
from domainwise.data.paths import dataset_folder, suggest_prepare
from domainwise.errors import DomainwiseError
from domainwise.hparams import Choice, Distribution, Power

_SIDE = 28
_NUM_DIGITS = 10
_DEFAULTS: Mapping[str, float] = {"lr": 1e-3, "batch_size": 64}
MNIST_SEARCH: Mapping[str, Distribution] = {
    "lr": Power(10, -4.5, -2.5),
    "discriminator_lr": Power(10, -4.5, -2.5),
    "weight_decay": Choice((0.0,)),
    "batch_size": Power(2, 3, 9, whole=True),
}
_LABEL_NOISE = 0.25
# How often a domain's colour contradicts the label.
_COLOUR_FLIPS = {"+90%": 0.1, "+80%": 0.2, "-90%": 0.9}
# Network per image size; the small one is for comparisons over many hyperparameter draws.
_NETWORKS = {_SIDE: "mnist_cnn", _SIDE // 2: "mlp"}


def colored_mnist(seed: int = 0, *, data_dir: str | Path | None = None, image_size: int = _SIDE) -> Dataset:
    """Build Colored MNIST: digits 0 to 4 against 5 to 9, in a colour whose correlation with the label varies.

    The label is 1 for 0 to 4 and 0 for 5 to 9, then flipped in a quarter of the images, so shape predicts at most 75 %
    of the labels. The colour agrees with that noisy label in 90 % of the images of domain `+90%`, in 80 % of `+80%`,
    and in only 10 % of `-90%`: in the first two, colour predicts the label better than shape, and a network that relies
    on it fails in the third. An image has two channels: the digit is in the channel of its colour, the other is zero.

    DomainBed assigns new colours in every run. Here the images depend only on the trial seed, so all methods see the
    same ones.

    Args:
        seed: seed for the assignment of digits to domains and, in a random stream per domain, label noise and colours.
        data_dir: folder that contains MNIST/raw; see `domainwise.data.paths.data_folder` for the default.
        image_size: 28, or 14 to keep every second pixel of every second row, as in the IRM paper.
    """
    if image_size not in _NETWORKS:
        raise DomainwiseError(f"image_size must be {' or '.join(map(str, _NETWORKS))} pixels, got {image_size}")
    images, digits = load_digits(data_dir, dataset="colored_mnist")
    stride = _SIDE // image_size
    return Dataset(
        name="colored_mnist",
        classes=("5 to 9", "0 to 4"),
        domains=tuple(
            _build_colored_domain(seed, index, images[members, ::stride, ::stride], digits[members])
            for index, members in enumerate(shuffle_into_domains(len(images), len(_COLOUR_FLIPS), seed))
        ),
        network=_NETWORKS[image_size],
        defaults=_DEFAULTS,
        search=MNIST_SEARCH,
    )


def _build_colored_domain(seed: int, index: int, images: Tensor, digits: Tensor) -> Domain:
    """Build the domain at `index` from gray images, (n, H, W), and their digits."""
    name, colour_flip = list(_COLOUR_FLIPS.items())[index]
    label_rng, colour_rng = (
        np.random.default_rng(child) for child in np.random.SeedSequence(seed, spawn_key=(index,)).spawn(2)
    )
    labels = (digits < 5) ^ _sample_flags(label_rng, _LABEL_NOISE, len(digits))
    colours = labels ^ _sample_flags(colour_rng, colour_flip, len(digits))
    coloured = torch.stack((images * ~colours[:, None, None], images * colours[:, None, None]), dim=1)
    return Domain(name=name, images=coloured, labels=labels.long())


def _sample_flags(rng: np.random.Generator, probability: float, count: int) -> Tensor:
    return torch.from_numpy(rng.random(count) < probability)


_ANGLES = (0, 15, 30, 45, 60, 75)
_CHUNK = 1024


def rotated_mnist(seed: int = 0, *, data_dir: str | Path | None = None) -> Dataset:
    """Build Rotated MNIST: six domains `0` to `75` of different digits, rotated counter-clockwise by that many degrees.

    DomainBed assigns digits to domains anew in every run. Here this depends only on the trial seed, so all methods see
    the same images.

    Args:
        seed: seed for the assignment of digits to domains.
        data_dir: folder that contains MNIST/raw; see `domainwise.data.paths.data_folder` for the default.
    """
    images, labels = load_digits(data_dir, dataset="rotated_mnist")
    return Dataset(
        name="rotated_mnist",
        classes=tuple(map(str, range(_NUM_DIGITS))),
        domains=tuple(
            Domain(name=str(angle), images=rotate(images[members], angle)[:, None], labels=labels[members])
            for angle, members in zip(_ANGLES, shuffle_into_domains(len(images), len(_ANGLES), seed), strict=True)
        ),
        network="mnist_cnn",
        defaults=_DEFAULTS,
        search=MNIST_SEARCH,
    )


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Rotate square uint8 images, (n, H, H), counter-clockwise about their centre, with black beyond the edges."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    # Maps each pixel to where it is read from: the inverse rotation, with rows counted downwards.
    inverse = torch.tensor([[[cos, -sin, 0.0], [sin, cos, 0.0]]])
    grid = F.affine_grid(inverse, [1, 1, *images.shape[1:]], align_corners=False)
    # The images of a chunk share the grid, so they pass as channels of one image.
    rotated = [
        F.grid_sample(chunk[None].float(), grid, mode="bilinear", padding_mode="zeros", align_corners=False)[0]
        .round()
        .to(torch.uint8)
        for chunk in images.split(_CHUNK)
    ]
    return torch.cat(rotated)


_FOLDER = "MNIST/raw"
# An idx file starts with two zero bytes, 8 for unsigned bytes, and the number of dimensions.
_UNSIGNED_BYTES = 0x0800
# More than the largest file has; compressed, a small file may hold any number of bytes.
_MAX_BYTES = 10**8


def load_digits(data_dir: str | Path | None = None, *, dataset: str = "colored_mnist") -> tuple[Tensor, Tensor]:
    """Load all of MNIST: images, uint8 (n, 28, 28), and labels, int64 (n,); training images first, then test images.

    Args:
        data_dir: folder that contains MNIST/raw in torchvision's layout; the files may be gzipped.
        dataset: dataset that the digits are for; errors say how to prepare it.
    """
    # Not torchvision.datasets.MNIST: it reads no gzipped files without unpacking them next to the originals, which
    # fails in a read-only folder, and it reports a damaged file as an AssertionError.
    folder = dataset_folder(dataset, _FOLDER, data_dir)
    parts = [_read_part(folder, part, dataset) for part in ("train", "t10k")]
    images, labels = (np.concatenate(both) for both in zip(*parts, strict=True))
    return torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64))


def shuffle_into_domains(count: int, num_domains: int, seed: int) -> list[Tensor]:
    """Shuffle the indices of `count` images and distribute them to domains in turn."""
    if seed < 0:
        raise DomainwiseError(f"seed must be at least 0, got {seed}")
    shuffled = torch.from_numpy(np.random.default_rng(seed).permutation(count))
    return [shuffled[index::num_domains] for index in range(num_domains)]


def _read_part(folder: Path, part: str, dataset: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    images_file = _find_file(folder, f"{part}-images-idx3-ubyte", dataset)
    labels_file = _find_file(folder, f"{part}-labels-idx1-ubyte", dataset)
    images, labels = _read_idx(images_file, 3, dataset), _read_idx(labels_file, 1, dataset)
    if images.shape[1:] != (_SIDE, _SIDE):
        height, width = images.shape[1:]
        raise _damaged_file(images_file, f"images of {height} x {width} pixels, expected {_SIDE} x {_SIDE}", dataset)
    if (labels >= _NUM_DIGITS).any():
        raise _damaged_file(labels_file, f"label {labels.max()}, expected 0 to {_NUM_DIGITS - 1}", dataset)
    if len(images) != len(labels):
        raise _damaged_file(labels_file, f"{len(labels)} labels for {len(images)} images", dataset)
    return images, labels


def _find_file(folder: Path, name: str, dataset: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise DomainwiseError(
        f"dataset {dataset} needs {name} or {name}.gz in {folder}: delete {folder.parent} and "
        f"{suggest_prepare(dataset, _FOLDER)}"
    )


def _read_idx(file: Path, dimensions: int, dataset: str) -> NDArray[np.uint8]:
    try:
        with gzip.open(file) if file.suffix == ".gz" else open(file, "rb") as stream:
            content = stream.read(_MAX_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged_file(file, str(error), dataset) from error
    header = 4 * (1 + dimensions)
    if len(content) < header:
        raise _damaged_file(file, f"truncated after {len(content)} bytes", dataset)
    magic, *shape = np.frombuffer(content[:header], ">u4").tolist()
    if magic != _UNSIGNED_BYTES + dimensions:
        raise _damaged_file(file, f"magic number {magic}, expected {_UNSIGNED_BYTES + dimensions}", dataset)
    if len(content) != header + math.prod(shape):
        raise _damaged_file(file, f"{len(content)} bytes, expected {header + math.prod(shape)}", dataset)
    return np.frombuffer(content, np.uint8, offset=header).reshape(shape)


def _damaged_file(file: Path, reason: str, dataset: str) -> DomainwiseError:
    return DomainwiseError(
        f"{file} is damaged ({reason}): delete {file.parents[1]} and run `domainwise data prepare {dataset}`"
    )
