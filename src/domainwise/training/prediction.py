"""A trained model on image files: for each the class and how sure the model is of it."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from domainwise.data.decoding import decode_image
from domainwise.data.listing import find_images
from domainwise.errors import DomainwiseError

_BATCH = 64


@dataclass(frozen=True)
class Prediction:
    """The probability of every class, by name; or why the file could not be read."""

    file: Path
    probabilities: dict[str, float]
    fault: str = ""

    @property
    def label(self) -> str:
        """The likeliest class."""
        return max(self.probabilities, key=lambda name: self.probabilities[name]) if self.probabilities else ""


def image_files_at(paths: Sequence[Path]) -> list[Path]:
    """The files given, and every image below the folders given, each once."""
    found: dict[Path, None] = {}
    for path in paths:
        if not path.exists():
            raise DomainwiseError(f"there is no file or folder {path}")
        inside = find_images(path) if path.is_dir() else [path]
        if not inside:
            raise DomainwiseError(f"there are no images in the folder {path}")
        found.update(dict.fromkeys(inside))
    return list(found)


def predictions(
    model: nn.Module, files: Iterable[Path], classes: Sequence[str], input_shape: Sequence[int], device: torch.device
) -> Iterator[Prediction]:
    """One prediction a file, in order. Images are squashed to the size that the model was trained at.

    Args:
        model: as `load_model` returns it.
        classes, input_shape: of the data it was trained on.
    """
    channels, height, width = input_shape
    if channels not in (1, 3) or height != width:
        raise DomainwiseError(
            f"the model takes inputs of shape {tuple(input_shape)}, which no ordinary image has: "
            "1 or 3 channels and a square are needed"
        )
    model = model.to(device).eval()
    for batch in _in_batches(files, _BATCH):
        images, faults = [], {}
        for file in batch:
            image = _read(file, channels, height)
            if isinstance(image, str):
                faults[file] = image
            else:
                images.append(image)
        with torch.no_grad():
            rows = model(torch.stack(images).to(device)).softmax(1).tolist() if images else []
        probabilities = iter(rows)
        for file in batch:
            if file in faults:
                yield Prediction(file, {}, faults[file])
            else:
                yield Prediction(file, dict(zip(classes, next(probabilities), strict=True)))


def _read(file: Path, channels: int, size: int) -> Tensor | str:
    """The image, (channels, size, size) in [0, 1], or what is wrong with it."""
    try:
        image = decode_image(file.read_bytes(), size)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if image.pixels is None:
        return image.error
    pixels = torch.frombuffer(bytearray(image.pixels), dtype=torch.uint8).reshape(size, size, 3)
    colour = pixels.permute(2, 0, 1).float() / 255
    return colour if channels == 3 else colour.mean(0, keepdim=True)


T = TypeVar("T")


def _in_batches(items: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
