"""Cows on grass and camels in the desert: the ground foretells the animal in training, and misleads in the test."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from domainwise.data.dataset import Dataset, Domain, Role
from domainwise.data.shapes import ANIMALS, Floats, draw_animals, random_poses
from domainwise.data.silhouettes import (
    SILHOUETTE_DEFAULTS,
    SILHOUETTE_SEARCH,
    add_noise,
    as_domain,
    check_sizes,
    streams,
)
from domainwise.errors import DomainwiseError

_COW, _CAMEL = 0, 1
_GRASS, _DESERT = 0, 1
# Black, dark brown, chestnut and cream: the same coats for both animals, and none near the colour of a ground.
_COATS = np.array([(0.08, 0.07, 0.08), (0.22, 0.13, 0.08), (0.38, 0.19, 0.09), (0.98, 0.95, 0.88)], np.float32)


def silhouettes_spurious(
    seed: int = 0,
    *,
    image_size: int = 32,
    train_count: int = 2000,
    test_count: int = 1000,
    majority: float = 0.97,
    noise: float = 0.05,
) -> Dataset:
    """Two training domains, each with a ground of its own and a class that predominates on it.

    `grass` holds a share `majority` of cows and `desert` that share of camels. Of the test domain `flipped`, half
    stands on grass with that share of camels and half in the desert with that share of cows. `balanced` has as many of
    both on either ground: accuracy that is lost from there to `flipped` is lost to reliance on the ground.

    Args:
        seed: draws animals, grounds and noise. Domains have streams of their own: changing one changes no other.
        image_size: side of the image in pixels.
        train_count: images in each training domain.
        test_count: images in each test domain.
        majority: share of the predominant class on its ground, rounded to whole images.
        noise: standard deviation of the noise on each pixel.
    """
    check_sizes(seed, image_size, train_count, test_count, noise)
    if not 0.5 <= majority < 1:
        raise DomainwiseError(f"majority must be at least 0.5 and below 1, not {majority:g}")
    half = test_count // 2
    rest = test_count - half
    minority = 1 - majority
    plan: list[tuple[str, Role, list[tuple[int, int, float]]]] = [
        ("grass", "train", [(_GRASS, train_count, majority)]),
        ("desert", "train", [(_DESERT, train_count, minority)]),
        ("flipped", "test", [(_GRASS, half, minority), (_DESERT, rest, majority)]),
        ("balanced", "test", [(_GRASS, half, 0.5), (_DESERT, rest, 0.5)]),
    ]
    return Dataset(
        name="silhouettes_spurious",
        classes=ANIMALS,
        domains=tuple(
            _domain(streams(seed, index), name, role, groups, image_size, noise)
            for index, (name, role, groups) in enumerate(plan)
        ),
        network="small_cnn",
        defaults=SILHOUETTE_DEFAULTS,
        search=SILHOUETTE_SEARCH,
        steps=1000,
        record_every=100,
    )


def _domain(
    rngs: list[np.random.Generator],
    name: str,
    role: Role,
    groups: list[tuple[int, int, float]],
    image_size: int,
    noise: float,
) -> Domain:
    """A domain made of groups, each a ground, a number of images and the share of cows among them."""
    objects, scenery, grain = rngs
    grounds = np.concatenate([np.full(count, ground) for ground, count, _ in groups])
    labels = np.concatenate([_labels(count, share) for _, count, share in groups])
    order = objects.permutation(len(labels))
    grounds, labels = grounds[order], labels[order]
    images = np.empty((len(labels), 3, image_size, image_size), np.float32)
    for ground, draw in ((_GRASS, grass), (_DESERT, desert)):
        images[grounds == ground] = draw(scenery, int((grounds == ground).sum()), image_size)
    coverage = draw_animals(labels, random_poses(objects, len(labels), highest_feet=0.66), image_size)
    coats = _COATS[objects.integers(len(_COATS), size=len(labels))] * vary(objects, len(labels), 0.12)
    images += coverage[:, None] * (coats[:, :, None, None] - images)
    add_noise(grain, images, noise)
    return as_domain(name, role, images, labels, coverage)


def _labels(count: int, share_of_cows: float) -> NDArray[np.int64]:
    return np.where(np.arange(count) < round(count * share_of_cows), _COW, _CAMEL).astype(np.int64)


_HORIZON = (0.26, 0.38)


def grass(rng: np.random.Generator, count: int, image_size: int) -> Floats:
    """A meadow, (count, 3, H, W): rows of blades from the horizon to the viewer, taller and fewer as they come near."""
    horizon = rng.uniform(*_HORIZON, (count, 1))
    images = _sky(rng, count, image_size, (0.42, 0.65, 0.92), (0.72, 0.85, 0.95))
    near, far = np.array((0.22, 0.50, 0.13)), np.array((0.52, 0.70, 0.34))
    tone = vary(rng, count, 0.1)
    rows = 9
    for row in range(rows):
        depth = row / (rows - 1)
        base = horizon + (1.04 - horizon) * depth**1.2
        tips = base - (0.02 + 0.12 * depth) * _blades(rng, count, image_size, 24 - 13 * depth)
        colour = (far + (near - far) * depth) * tone * vary(rng, count, 0.1)
        _paint(images, tips, colour, lambda below: 1.12 - 2.2 * np.minimum(below, 0.16))
    return images


def _blades(rng: np.random.Generator, count: int, image_size: int, number: float) -> Floats:
    """Heights in [0, 1], (count, W), of a row of about `number` pointed blades, uneven in width and height."""
    x = _centres(image_size)
    phase = rng.uniform(0, 1, (3, count, 1))
    along = number * x + phase[0] + 0.7 * np.sin(2 * np.pi * (2 * x + phase[1]))
    # Steps of about a golden angle give neighbours unlike heights without a draw for each blade.
    tallness = 0.65 + 0.35 * np.sin(2.4 * np.floor(along) + 2 * np.pi * phase[2])
    return np.asarray(tallness * (1 - np.abs(2 * (along % 1) - 1)))


def desert(rng: np.random.Generator, count: int, image_size: int) -> Floats:
    """Dunes, (count, 3, H, W): crests one before the other, lit above and dark beneath, with ripples of the wind."""
    horizon = rng.uniform(*_HORIZON, (count, 1))
    images = _sky(rng, count, image_size, (0.50, 0.72, 0.90), (0.90, 0.80, 0.64))
    near, far = np.array((0.84, 0.60, 0.32)), np.array((0.90, 0.74, 0.52))
    tone = vary(rng, count, 0.07)
    dunes = 5
    for dune in range(dunes):
        depth = dune / (dunes - 1)
        swell = 0.03 + 0.11 * depth
        crest = horizon + (0.80 - horizon) * depth**1.1 + swell * (0.5 - _crests(rng, count, image_size))
        colour = (far + (near - far) * depth) * tone * vary(rng, count, 0.04)
        _paint(images, crest, colour, _dune_light)
    return images


def _dune_light(below: Floats) -> Floats:
    ripples = 0.035 * np.sin(2 * np.pi * 13 * below)
    return np.asarray(1.06 - 1.1 * np.minimum(below, 0.22) + ripples)


def _crests(rng: np.random.Generator, count: int, image_size: int) -> Floats:
    """Heights in [0, 1], (count, W), of a line of dunes with a sharp edge at the top of each."""
    along = rng.uniform(0.7, 1.5, (count, 1)) * _centres(image_size) + rng.uniform(0, 1, (count, 1))
    return np.asarray(1 - np.abs(np.sin(np.pi * (along + 0.08 * np.sin(2 * np.pi * along)))))


def _sky(
    rng: np.random.Generator,
    count: int,
    image_size: int,
    zenith: tuple[float, float, float],
    haze: tuple[float, float, float],
) -> NDArray[np.float32]:
    """A sky, (count, 3, H, W), that pales from the zenith to the haze at the horizon."""
    share = np.minimum(_centres(image_size) / _HORIZON[1], 1)[:, None]
    colour = np.array(zenith)[:, None, None] * (1 - share) + np.array(haze)[:, None, None] * share
    sky = colour * vary(rng, count, 0.06)[:, :, None, None]
    return np.repeat(sky, image_size, axis=3).astype(np.float32)


def _paint(images: NDArray[np.float32], top: Floats, colour: Floats, light: Callable[[Floats], Floats]) -> None:
    """Covers what lies below the line `top` (n, W), in place, with a colour (n, 3) lit by the depth below the line."""
    image_size = images.shape[-1]
    below = (_centres(image_size)[:, None] - top[:, None, :]).astype(np.float32)
    cover = np.clip(below * image_size + 0.5, 0, 1)[:, None]
    lit = colour.astype(np.float32)[:, :, None, None] * light(np.maximum(below, 0))[:, None]
    images += cover * (lit - images)


def vary(rng: np.random.Generator, count: int, amount: float) -> NDArray[np.float32]:
    """Factors around 1, (count, 1), that brighten or darken a colour."""
    return rng.uniform(1 - amount, 1 + amount, (count, 1)).astype(np.float32)


def _centres(image_size: int) -> NDArray[np.float64]:
    return (np.arange(image_size) + 0.5) / image_size
