"""Reading of one image, from a file or a row of a table, and its decoding to RGB bytes of a fixed size."""

import io
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

# Of the formats that Pillow knows, some start other programs, and most are never photographs.
FORMATS = ("JPEG", "PNG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
# The most pixels that Pillow opens by default, and their bytes if they are not compressed.
MAX_PIXELS = 178_956_970
MAX_BYTES = 3 * MAX_PIXELS
# Part of the key of cached images: change it when `decode_image` returns different bytes for a file.
DECODING_RULE = "squash-bilinear-3"


@dataclass(frozen=True)
class DecodedImage:
    """A decoded image.

    Args:
        pixels: RGB bytes, (size, size, 3) in rows, or None if the file could not be decoded.
        note: how an unusual image was converted, for example "CMYK".
        error: why the file could not be decoded.
    """

    pixels: bytes | None
    note: str = ""
    error: str = ""


@dataclass(frozen=True)
class CenterCrop:
    """Preprocessing of published ImageNet classifiers: resize an image, then cut a square out of its center.

    Args:
        resize: length of the shorter side after resizing.
        interpolation: `bilinear` or `bicubic`.
        keeps_aspect: whether the longer side stays longer; otherwise it gets the same length.
    """

    resize: int
    interpolation: str = "bilinear"
    keeps_aspect: bool = True

    def apply(self, image: Image.Image, size: int) -> Image.Image:
        """Return the square of `size` pixels, as torchvision's `Resize(resize)` and `CenterCrop(size)` do."""
        shorter = min(image.size)
        width, height = (int(self.resize * side / shorter) if self.keeps_aspect else self.resize for side in image.size)
        image = _resize(image, width, height, Image.Resampling[self.interpolation.upper()])
        left, top = round((width - size) / 2), round((height - size) / 2)
        return image.crop((left, top, left + size, top + size))


class ImageTable(Protocol):
    """A table with one encoded image per row.

    Args:
        name: name in errors.
        version: changes whenever the table does, like the size and times of a file; None if unknown.
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> tuple[int, int, int] | None: ...

    def read(self, row: int) -> bytes:
        """Return the encoded image; raise `UnreadableFile` if there is none."""


@dataclass(frozen=True)
class TableImage:
    """An image in a row of a table rather than in a file of its own."""

    table: ImageTable
    row: int

    def __str__(self) -> str:
        return f"row {self.row} of {self.table.name}"


ImageFile = Path | TableImage


class UnreadableFile(Exception):
    """A file that cannot be read as an image; the message follows the file's name."""


def read_image_file(file: ImageFile) -> bytes:
    """Return the content of a file.

    Raises:
        UnreadableFile: it is not a regular file, too large, or could not be read.
    """
    if isinstance(file, TableImage):
        content = file.table.read(file.row)
        if len(content) > MAX_BYTES:
            raise UnreadableFile(_describe_size(len(content)))
        return content
    try:
        # Before it is opened: that would wait for the other end of a FIFO, and a device may have no end.
        status = os.stat(file)
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableFile(f"is a {_describe_kind(status.st_mode)}, not a file")
        if status.st_size > MAX_BYTES:
            raise UnreadableFile(_describe_size(status.st_size))
        # Files of the kernel have no size, and some never end.
        return file.read_bytes() if status.st_size else b""
    except OSError as error:
        raise UnreadableFile(f"could not be read: {error.strerror or error}") from error
    except ValueError as error:  # a name that no file can have
        raise UnreadableFile(f"could not be read: {error}") from error


def _describe_size(size: int) -> str:
    return f"is too large ({size:,} bytes; the limit is {MAX_BYTES:,})"


def _describe_kind(mode: int) -> str:
    kinds = {stat.S_ISDIR: "folder", stat.S_ISFIFO: "FIFO", stat.S_ISSOCK: "socket"}
    return next((kind for is_kind, kind in kinds.items() if is_kind(mode)), "device")


def decode_image(content: bytes, size: int, crop: CenterCrop | None = None) -> DecodedImage:
    """Decode a file's content and resize it to a square, as torchvision's `Resize((size, size))` does for PIL images.

    Only the first frame of a file is used. EXIF orientation is applied, unlike in torchvision's ImageFolder: photos of
    a phone are shown upright. Since Pillow 13, torchvision's bytes of tall images differ by up to one: Pillow rounds
    between two passes and may do the other one first.

    Args:
        crop: cut the square out of the image instead.
    """
    if not content:
        return DecodedImage(None, error="is empty (0 bytes)")
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as image:
            # Known from the header. Pillow's own limit is a setting of the process.
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"{image.width} x {image.height} pixels; the limit is {MAX_PIXELS:,} pixels")
            animated = "animated, first frame used" if getattr(image, "n_frames", 1) > 1 else ""
            image.load()
            _apply_orientation(image)
            rgb, conversion = _convert_to_rgb(image)
            square = crop.apply(rgb, size) if crop else _resize(rgb, size, size, Image.Resampling.BILINEAR)
            pixels = square.tobytes()
    except UnidentifiedImageError:
        return DecodedImage(None, error="is not an image")
    except Exception as error:  # Pillow's decoders raise many types of errors for damaged files.
        reason = " ".join(str(error).split()) or type(error).__name__
        return DecodedImage(None, error=f"could not be decoded ({reason})")
    return DecodedImage(pixels, note=", ".join(filter(None, (conversion, animated))))


def _apply_orientation(image: Image.Image) -> None:
    # Pillow raises many types of errors for damaged EXIF data, some of them only after it has turned the image.
    with suppress(Exception):
        ImageOps.exif_transpose(image, in_place=True)


def _resize(image: Image.Image, width: int, height: int, resampling: Image.Resampling) -> Image.Image:
    # Columns first: in one call, the order and so the bytes would depend on Pillow's version. An exported model
    # (`training/export.py`) resizes in this order too.
    return image.resize((width, image.height), resampling).resize((width, height), resampling)


def _convert_to_rgb(image: Image.Image) -> tuple[Image.Image, str]:
    """Return the image in RGB, and a note if the conversion is an unusual one."""
    if image.mode == "RGB":
        return image, ""
    if image.mode == "L":
        return image.convert("RGB"), ""
    if image.mode.startswith("I"):
        return _convert_16_bit(image), "16-bit"
    if image.mode == "F":
        raise ValueError("floating-point pixels of unknown range")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB"), "transparent, placed on white"
    names = {"P": "palette", "1": "black and white"}
    return image.convert("RGB"), names.get(image.mode, image.mode)


def _convert_16_bit(image: Image.Image) -> Image.Image:
    # Pillow would clip values above 255.
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise ValueError("pixels of more than 16 bits")
    return Image.fromarray((values / 257).round().astype(np.uint8)).convert("RGB")
