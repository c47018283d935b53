"""MNIST's handwritten digits, read from its four idx files, and how they are dealt to domains."""

import gzip
import math
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from domainwise.data.places import DATA_VARIABLE, dataset_folder
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


def digits(data_dir: str | Path | None = None, *, dataset: str = "colored_mnist") -> tuple[Tensor, Tensor]:
    """All of MNIST: images, uint8 (n, 28, 28), and labels, int64 (n,); training images first, then test images.

    Args:
        data_dir: the folder that has MNIST/raw in it, as torchvision lays it out; the files may be gzipped or not.
        dataset: what the digits are read for; an error says how to prepare it.
    """
    folder = dataset_folder(dataset, _FOLDER, data_dir)
    parts = [_read_part(folder, part, dataset) for part in _PARTS]
    images, labels = (np.concatenate(both) for both in zip(*parts, strict=True))
    return torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64))


def deal(count: int, num_domains: int, seed: int) -> list[Tensor]:
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
