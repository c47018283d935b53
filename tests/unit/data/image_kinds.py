"""Image files of all supported kinds, and broken ones."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def photo(seed: int = 0, width: int = 37, height: int = 23) -> Image.Image:
    """Slowly changing colours with a little noise, so that all pixels differ."""
    down, across = np.mgrid[0:height, 0:width]
    draw = np.random.default_rng(seed)
    channels = [down * 255 / height, across * 255 / width, (down + across + 40 * seed) % 256]
    noise = draw.integers(-12, 13, (height, width, 3))
    return Image.fromarray(np.clip(np.stack(channels, axis=2) + noise, 0, 255).astype(np.uint8))


def half_seen(image: Image.Image) -> Image.Image:
    """The image with an alpha channel from transparent to opaque."""
    alpha = np.linspace(0, 255, image.width).round().astype(np.uint8)
    image = image.convert("RGBA")
    image.putalpha(Image.fromarray(np.tile(alpha, (image.height, 1))))
    return image


def deep(seed: int = 0) -> np.ndarray[Any, np.dtype[np.uint16]]:
    """Gray values of 16 bits, most of them above 255."""
    return np.random.default_rng(seed).integers(0, 65536, (19, 29)).astype(np.uint16)


def content(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def clear_palette() -> Image.Image:
    """A palette image whose first colour is transparent."""
    image = photo().quantize(16)
    image.info["transparency"] = 0
    return image


def odd_exif() -> bytes:
    """A JPEG with truncated EXIF data: decoders warn about it."""
    exif = Image.Exif()
    exif[271] = "a camera's maker" * 4
    return content(photo(), "JPEG", exif=exif.tobytes()[:30])


# Content by file name.
GOOD: dict[str, Callable[[], bytes]] = {
    "rgb.jpg": lambda: content(photo(), "JPEG"),
    "rgb.png": lambda: content(photo(), "PNG"),
    "gray.jpg": lambda: content(photo().convert("L"), "JPEG"),
    "gray.png": lambda: content(photo().convert("L"), "PNG"),
    "cmyk.jpg": lambda: content(photo().convert("CMYK"), "JPEG"),
    "deep.png": lambda: content(Image.fromarray(deep()), "PNG"),
    "palette.png": lambda: content(photo().quantize(16), "PNG"),
    "clear_palette.png": lambda: content(clear_palette(), "PNG", transparency=0),
    "rgba.png": lambda: content(half_seen(photo()), "PNG"),
    "gray_alpha.png": lambda: content(half_seen(photo()).convert("LA"), "PNG"),
    "bits.png": lambda: content(photo().convert("1"), "PNG"),
    "animated.gif": lambda: content(photo(1), "GIF", save_all=True, append_images=[photo(2), photo(3)]),
    "photo.webp": lambda: content(photo(), "WEBP", lossless=True),
    "photo.bmp": lambda: content(photo(), "BMP"),
    "photo.tiff": lambda: content(photo(), "TIFF"),
    "photo.ppm": lambda: content(photo(), "PPM"),
    "odd_exif.jpg": odd_exif,
}

_WHOLE_JPEG = content(photo(width=200, height=160), "JPEG")

BAD: dict[str, Callable[[], bytes]] = {
    "empty.jpg": lambda: b"",
    "cut.jpg": lambda: _WHOLE_JPEG[: len(_WHOLE_JPEG) // 2],
    "text.jpg": lambda: b"<html>404 not found</html>",
    "noise.jpg": lambda: np.random.default_rng(5).bytes(700),
    "cut.png": lambda: content(photo(), "PNG")[:900],
    "float.tiff": lambda: content(Image.fromarray(np.random.default_rng(6).random((9, 7), dtype=np.float32)), "TIFF"),
    "long.tiff": lambda: content(Image.fromarray(np.array([[0, 2**20], [5, 9]], dtype=np.int32)), "TIFF"),
    "below_zero.tiff": lambda: content(Image.fromarray(np.array([[0, -3], [5, 9]], dtype=np.int32)), "TIFF"),
}


def write_images(folder: Path, kinds: dict[str, Callable[[], bytes]]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / name for name in kinds]
    for file, make in zip(files, kinds.values(), strict=True):
        file.write_bytes(make())
    return files


def write_photos(folder: Path, count: int, first: int = 0) -> list[Path]:
    """PNG files with different images."""
    return write_images(
        folder,
        {f"{index:03}.png": (lambda seed=first + index: content(photo(seed), "PNG")) for index in range(count)},
    )


def write_tree(root: Path, counts: dict[str, dict[str, int]]) -> Path:
    """root/domain/class/image with the given number of images per class, all different."""
    first = 0
    for domain, classes in counts.items():
        for kind, count in classes.items():
            write_photos(root / domain / kind, count, first)
            first += count
    return root
