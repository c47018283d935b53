"""One image file to RGB bytes of one size, and why not where that fails."""

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image, UnidentifiedImageError

# Part of a cached image's name: raise it when the bytes that `decoded` makes of a file change.
DECODING_RULE = "squash-bilinear-1"


@dataclass(frozen=True)
class DecodedImage:
    """An image's bytes, (size, size, 3) in rows, or None; and what there is to say of it.

    Args:
        note: how it was converted, where it is not an ordinary image of 8 bits: "CMYK", say.
        error: why it cannot be used.
    """

    pixels: bytes | None
    note: str = ""
    error: str = ""


def decode_image(content: bytes, size: int) -> DecodedImage:
    """The image in `content` squashed to a square, as torchvision's `Resize((size, size))` does to PIL images.

    Where a file holds several frames, the first counts. Rotation flags of cameras are not followed, as in torchvision.
    """
    if not content:
        return DecodedImage(None, error="is empty (0 bytes)")
    try:
        with Image.open(io.BytesIO(content)) as image:
            note = "animated, its first frame" if getattr(image, "n_frames", 1) > 1 else ""
            image.load()
            rgb, kind = _as_rgb(image)
            pixels = rgb.resize((size, size), Image.Resampling.BILINEAR).tobytes()
    except UnidentifiedImageError:
        return DecodedImage(None, error="is not an image that can be read")
    except Exception as error:  # decoders of many formats raise what they happen to raise on damaged files
        return DecodedImage(None, error=f"cannot be decoded ({' '.join(str(error).split()) or type(error).__name__})")
    return DecodedImage(pixels, note=", ".join(filter(None, (kind, note))))


def _as_rgb(image: Image.Image) -> tuple[Image.Image, str]:
    if image.mode == "RGB":
        return image, ""
    if image.mode == "L":
        return image.convert("RGB"), ""
    if image.mode.startswith("I"):
        return _from_16_bits(image), "16 bits"
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers of unknown range")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB"), "transparent, laid on white"
    names = {"P": "palette", "1": "black and white"}
    return image.convert("RGB"), names.get(image.mode, image.mode)


def _from_16_bits(image: Image.Image) -> Image.Image:
    # PIL would cut off what is above 255.
    values = np.asarray(image).astype(np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise ValueError("its pixels have more than 16 bits")
    return Image.fromarray((values / 257).round().astype(np.uint8)).convert("RGB")
