"""Images that a network learns within a few steps: the class is the color, and domains differ in brightness."""

from pathlib import Path

import torch
from PIL import Image

DOMAINS = ("dark", "dim", "light")


def write_easy_images(folder: Path, count: int = 50) -> Path:
    """Write `count` images of 16 x 16 pixels per class and domain, and return the folder."""
    generator = torch.Generator().manual_seed(0)
    for brightness, domain in zip((90, 110, 130), DOMAINS, strict=True):
        for channel, label in enumerate(("red", "green")):
            place = folder / domain / label
            place.mkdir(parents=True)
            for number in range(count):
                pixels = torch.randint(0, 60, (16, 16, 3), generator=generator, dtype=torch.uint8)
                pixels[..., channel] += brightness
                Image.fromarray(pixels.numpy()).save(place / f"{number}.png")
    return folder
