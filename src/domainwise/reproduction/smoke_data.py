"""Synthetic images in the folder layouts of the paper's datasets, so that every recipe runs without the real data."""

import csv
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from domainwise.data import silhouettes

# Domains and number of classes per dataset.
_FOLDERS: Mapping[str, tuple[tuple[str, ...], int]] = {
    "PACS": (("art_painting", "cartoon", "photo", "sketch"), 3),
    "office_home": (("Art", "Clipart", "Product", "Real World"), 3),
    "VLCS": (("Caltech101", "LabelMe", "SUN09", "VOC2007"), 3),
}
_NICO = {"train1": "grass", "train2": "snow", "val": "beach", "test": "night"}
_CLASSES_BY_GROUP = {"animal": "cow", "vehicle": "truck"}
_IMAGES_PER_CLASS = 8
_NUM_DIGITS = 60


def write_smoke_data(folder: Path) -> Path:
    """Write tiny versions of PACS, Office-Home, VLCS, NICO and MNIST into `folder`, to be used as `data_dir`."""
    if (folder / "complete").exists():
        return folder
    images = iter(_render_images())
    for root, (domains, classes) in _FOLDERS.items():
        for domain in domains:
            for index in range(classes):
                for number in range(_IMAGES_PER_CLASS):
                    _save(folder / root / domain / f"class_{index}" / f"{number}.png", next(images))
    _write_nico(folder / "NICO", images)
    _write_mnist(folder / "MNIST" / "raw")
    (folder / "complete").touch()
    return folder


def _render_images() -> Tensor:
    """Return images (n, 3, 32, 32) for all datasets."""
    count = (
        sum(len(domains) * classes * _IMAGES_PER_CLASS for domains, classes in _FOLDERS.values())
        + 8 * _IMAGES_PER_CLASS
    )
    domain = silhouettes(0, train_count=count, test_count=1).domains[0]
    return domain.images


def _save(path: Path, image: Tensor) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(image.permute(1, 2, 0).contiguous().numpy()).save(path)


def _write_nico(root: Path, images: Iterator[Tensor]) -> None:
    (root / "mixed_split_corrected").mkdir(parents=True, exist_ok=True)
    for domain, context in _NICO.items():
        rows = []
        for group, name in _CLASSES_BY_GROUP.items():
            for number in range(_IMAGES_PER_CLASS):
                _save(root / name / context / f"{number}.png", next(images))
                rows.append((f"{name}\\{context}\\{number}.png", name, context, group))
        with open(root / "mixed_split_corrected" / f"env_{domain}.csv", "w", newline="") as file:
            csv.writer(file).writerows(rows)


def _write_mnist(root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    for part in ("train", "t10k"):
        images = torch.randint(0, 256, (_NUM_DIGITS, 28, 28), generator=generator, dtype=torch.uint8).numpy()
        labels = (np.arange(_NUM_DIGITS) % 10).astype(np.uint8)
        _write_idx(root / f"{part}-images-idx3-ubyte", images)
        _write_idx(root / f"{part}-labels-idx1-ubyte", labels)


def _write_idx(path: Path, values: NDArray[np.uint8]) -> None:
    header = np.array([0x0800 + values.ndim, *values.shape], ">u4").tobytes()
    path.write_bytes(header + values.tobytes())
