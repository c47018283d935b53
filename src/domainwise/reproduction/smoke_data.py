"""Embedded images written to disk as the paper's datasets lie there, so that a recipe can be tried without them."""

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from domainwise.data import silhouettes

# Domains and how many classes; three classes are enough to be more than two.
_FOLDERS: Mapping[str, tuple[tuple[str, ...], int]] = {
    "PACS": (("art_painting", "cartoon", "photo", "sketch"), 3),
    "office_home": (("Art", "Clipart", "Product", "Real World"), 3),
    "VLCS": (("Caltech101", "LabelMe", "SUN09", "VOC2007"), 3),
}
_NICO = {"train1": "grass", "train2": "snow", "val": "beach", "test": "night"}
_KINDS = {"animal": "cow", "vehicle": "truck"}
_EACH = 8
_DIGITS = 60


def write_layouts(folder: Path) -> Path:
    """Write PACS, Office-Home, VLCS, NICO and MNIST in small into `folder`, which is then a folder of datasets."""
    if (folder / "complete").exists():
        return folder
    pictures = iter(_pictures())
    for root, (domains, classes) in _FOLDERS.items():
        for domain in domains:
            for kind in range(classes):
                for number in range(_EACH):
                    _save(folder / root / domain / f"class_{kind}" / f"{number}.png", next(pictures))
    _write_nico(folder / "NICO", pictures)
    _write_mnist(folder / "MNIST" / "raw")
    (folder / "complete").touch()
    return folder


def _pictures() -> Tensor:
    """(n, 3, 32, 32): as many as all of them need."""
    count = sum(len(domains) * classes * _EACH for domains, classes in _FOLDERS.values()) + 8 * _EACH
    domain = silhouettes(0, train_count=count, test_count=1).domains[0]
    return domain.images


def _save(path: Path, image: Tensor) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).save(path)


def _write_nico(root: Path, pictures: Iterator[Tensor]) -> None:
    (root / "mixed_split_corrected").mkdir(parents=True, exist_ok=True)
    for domain, context in _NICO.items():
        rows = []
        for group, kind in _KINDS.items():
            for number in range(_EACH):
                _save(root / kind / context / f"{number}.png", next(pictures))
                rows.append((f"{kind}\\{context}\\{number}.png", kind, context, group))
        with open(root / "mixed_split_corrected" / f"env_{domain}.csv", "w", newline="") as file:
            csv.writer(file).writerows(rows)


def _write_mnist(root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    for part in ("train", "t10k"):
        images = torch.randint(0, 256, (_DIGITS, 28, 28), generator=generator, dtype=torch.uint8).numpy()
        labels = (np.arange(_DIGITS) % 10).astype(np.uint8)
        _write_idx(root / f"{part}-images-idx3-ubyte", images)
        _write_idx(root / f"{part}-labels-idx1-ubyte", labels)


def _write_idx(path: Path, values: NDArray[np.uint8]) -> None:
    opening = np.array([0x0800 + values.ndim, *values.shape], ">u4").tobytes()
    path.write_bytes(opening + values.tobytes())
