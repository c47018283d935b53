"""Rendering of the synthetic datasets: animal silhouettes, grass and desert backgrounds, and smooth patterns.

An animal is a table of limbs, and a limb is a chain of bones: round segments that taper from joint to joint. A pixel's
distance to the animal is the smooth minimum of its distances to the limbs; its coverage is how far it lies inside.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]

# Coordinates: x points forward and y up, the feet are at y = 0, and the animal is about 1 high and 1.24 long.
# A limb is the direction in which it follows the stride (0 unless it is a leg) and its joints as (x, y, radius).
# Both animals fill the same box and nearly the same area, so only their shape distinguishes them.
_Joint = tuple[float, float, float]
_Limb = tuple[int, tuple[_Joint, ...]]
_COW: dict[str, _Limb] = {
    "barrel": (0, ((-0.37, 0.57, 0.150), (-0.10, 0.55, 0.170), (0.17, 0.57, 0.160))),
    "rump": (0, ((-0.42, 0.63, 0.090), (-0.40, 0.50, 0.120))),
    "chest": (0, ((0.19, 0.63, 0.125), (0.24, 0.49, 0.115))),
    "udder": (0, ((-0.22, 0.42, 0.060), (-0.21, 0.37, 0.045))),
    "neck": (0, ((0.22, 0.63, 0.130), (0.40, 0.74, 0.085))),
    "head": (0, ((0.42, 0.76, 0.078), (0.50, 0.68, 0.058), (0.56, 0.61, 0.052))),
    "rear horn": (0, ((0.40, 0.80, 0.032), (0.34, 0.84, 0.030), (0.31, 0.90, 0.026), (0.34, 0.985, 0.014))),
    "front horn": (0, ((0.45, 0.80, 0.032), (0.52, 0.83, 0.030), (0.56, 0.89, 0.026), (0.54, 0.975, 0.014))),
    "near foreleg": (1, ((0.24, 0.44, 0.085), (0.25, 0.23, 0.046), (0.25, 0.08, 0.034), (0.265, 0.02, 0.036))),
    "far foreleg": (-1, ((0.15, 0.44, 0.080), (0.14, 0.23, 0.044), (0.13, 0.08, 0.034), (0.145, 0.02, 0.036))),
    "near hind leg": (-1, ((-0.40, 0.50, 0.120), (-0.46, 0.26, 0.046), (-0.44, 0.08, 0.034), (-0.425, 0.02, 0.036))),
    "far hind leg": (1, ((-0.32, 0.46, 0.095), (-0.34, 0.26, 0.046), (-0.32, 0.08, 0.034), (-0.305, 0.02, 0.036))),
    "tail": (0, ((-0.48, 0.68, 0.028), (-0.55, 0.60, 0.018), (-0.58, 0.46, 0.016), (-0.585, 0.33, 0.032))),
}
_CAMEL: dict[str, _Limb] = {
    "barrel": (0, ((-0.37, 0.57, 0.105), (-0.10, 0.56, 0.125), (0.18, 0.54, 0.140))),
    "rear hump": (0, ((-0.26, 0.62, 0.140), (-0.265, 0.75, 0.095), (-0.275, 0.85, 0.066))),
    "front hump": (0, ((0.06, 0.62, 0.140), (0.060, 0.77, 0.095), (0.05, 0.88, 0.066))),
    "neck": (
        0,
        ((0.19, 0.53, 0.13), (0.33, 0.51, 0.085), (0.42, 0.59, 0.066), (0.45, 0.71, 0.054), (0.45, 0.87, 0.05)),
    ),
    "head": (0, ((0.45, 0.90, 0.058), (0.53, 0.88, 0.046), (0.585, 0.855, 0.036))),
    "ear": (0, ((0.42, 0.93, 0.024), (0.385, 0.98, 0.016))),
    "near foreleg": (1, ((0.22, 0.50, 0.095), (0.23, 0.26, 0.048), (0.23, 0.08, 0.031), (0.245, 0.015, 0.040))),
    "far foreleg": (-1, ((0.13, 0.50, 0.085), (0.12, 0.26, 0.045), (0.11, 0.08, 0.031), (0.125, 0.015, 0.040))),
    "near hind leg": (-1, ((-0.39, 0.54, 0.120), (-0.46, 0.29, 0.048), (-0.44, 0.08, 0.031), (-0.425, 0.015, 0.040))),
    "far hind leg": (1, ((-0.31, 0.50, 0.090), (-0.34, 0.29, 0.045), (-0.32, 0.08, 0.031), (-0.305, 0.015, 0.040))),
    "tail": (0, ((-0.47, 0.62, 0.024), (-0.54, 0.55, 0.016), (-0.57, 0.46, 0.014), (-0.575, 0.37, 0.028))),
}
ANIMALS = ("cow", "camel")
_LIMBS = (tuple(_COW.values()), tuple(_CAMEL.values()))
_HALF_LENGTH, _TOP = 0.62, 1.07
_HIP, _SHOULDER = 0.45, 0.25
_FILLET = 0.04
_CHUNK_PIXELS = 1 << 15


@dataclass(frozen=True)
class Poses:
    """Position and posture of each animal in a batch; every field has shape (n,), lengths are fractions of the image.

    Args:
        x: centre of the animal, from the left.
        feet: height of the feet, from the top.
        height: from the feet to the tip of horns or humps.
        facing: 1 to the right, -1 to the left.
        stride: how far the legs swing.
        nod: how far the head is raised.
    """

    x: Floats
    feet: Floats
    height: Floats
    facing: Floats
    stride: Floats
    nod: Floats


def sample_poses(rng: np.random.Generator, count: int, *, highest_feet: float = 0.0) -> Poses:
    """Sample poses that keep the whole animal in the image, with feet at or below `highest_feet` (from the top)."""
    height = rng.uniform(0.46, 0.70, count)
    half_length, top = _HALF_LENGTH * height, np.maximum(_TOP * height, highest_feet)
    return Poses(
        x=rng.uniform(half_length, 1 - half_length),
        feet=rng.uniform(top, 0.99),
        height=height,
        facing=rng.choice((-1.0, 1.0), count),
        stride=rng.uniform(-0.02, 0.2, count),
        nod=rng.uniform(-0.2, 0.2, count),
    )


def render_animals(labels: NDArray[np.int64], poses: Poses, image_size: int) -> NDArray[np.float32]:
    """Return the anti-aliased coverage in [0, 1], (n, H, W), of the animal `ANIMALS[label]` in each pose."""
    coverage = np.empty((len(labels), image_size, image_size), np.float32)
    # A few dozen small images at a time fit in the CPU cache.
    chunk_size = max(1, _CHUNK_PIXELS // image_size**2)
    for label, limbs in enumerate(_LIMBS):
        members = np.flatnonzero(labels == label)
        for start in range(0, len(members), chunk_size):
            chunk = members[start : start + chunk_size]
            coverage[chunk] = _render_coverage(limbs, _select_poses(poses, chunk), image_size)
    return coverage


def _select_poses(poses: Poses, index: NDArray[np.intp]) -> Poses:
    """Return the poses at `index`, each field of shape (m, 1, 1) to broadcast over pixels."""
    return Poses(*(values[index, None, None].astype(np.float32) for values in vars(poses).values()))


def _render_coverage(limbs: tuple[_Limb, ...], poses: Poses, image_size: int) -> Floats:
    centres = (np.arange(image_size, dtype=np.float32) + 0.5) / image_size
    x = (centres - poses.x) * poses.facing / poses.height
    y = (poses.feet - centres[:, None]) / poses.height
    distance = reduce(_smooth_minimum, (_distance_to_limb(x, y, limb, poses) for limb in limbs))
    # The ground cuts the soles flat.
    distance = np.maximum(distance, -y)
    return np.clip(0.5 - distance * (poses.height * image_size), 0, 1)


def _distance_to_limb(x: Floats, y: Floats, limb: _Limb, poses: Poses) -> Floats:
    """Return the distance of each grid point, x (n, 1, W) and y (n, H, 1), to one limb, (n, H, W), negative inside."""
    swing, joints = limb
    distance: Floats = reduce(np.minimum, (_distance_to_bone(x, y, *ends, swing, poses) for ends in pairwise(joints)))
    return distance


def _distance_to_bone(x: Floats, y: Floats, start: _Joint, end: _Joint, swing: int, poses: Poses) -> Floats:
    """Return the distance to the hull of two circles, negative inside."""
    (x1, y1), (x2, y2) = _pose_joint(start, swing, poses), _pose_joint(end, swing, poses)
    length = np.hypot(x2 - x1, y2 - y1)
    along_x, along_y = (x2 - x1) / length, (y2 - y1) / length
    taper = (start[2] - end[2]) / length
    from_x, from_y = x - x1, y - y1
    # In place: most of the time of rendering is spent here, and half of it would go into allocations.
    along, across = from_x * along_x + from_y * along_y, from_x * along_y - from_y * along_x
    np.abs(across, out=across)
    # The taper moves the centre of the nearest circle away from the perpendicular.
    reach = across * (taper / np.sqrt(1 - taper**2))
    np.clip(np.subtract(along, reach, out=reach), 0, length, out=reach)
    along -= reach
    distance = np.sqrt(np.add(np.square(along, out=along), np.square(across, out=across), out=along), out=along)
    distance -= np.subtract(start[2], np.multiply(reach, taper, out=reach), out=reach)
    return distance


def _pose_joint(joint: _Joint, swing: int, poses: Poses) -> tuple[Floats, Floats]:
    """Return the joint's position: the stride shears the legs below the hip, the nod the head before the shoulder."""
    x, y, _ = joint
    return x + poses.stride * swing * max(_HIP - y, 0.0), y + poses.nod * max(x - _SHOULDER, 0.0)


def _smooth_minimum(a: Floats, b: Floats) -> Floats:
    """Return the minimum, rounded off where both are close, so that limbs blend into the body."""
    closeness = np.maximum(_FILLET - np.abs(a - b), 0)
    return np.minimum(a, b) - closeness**2 / (4 * _FILLET)


_HORIZON = (0.26, 0.38)


def render_grass(rng: np.random.Generator, count: int, image_size: int) -> Floats:
    """Render meadows, (count, 3, H, W): rows of blades from the horizon to the viewer, taller and fewer when near."""
    horizon = rng.uniform(*_HORIZON, (count, 1))
    images = _render_sky(rng, count, image_size, (0.42, 0.65, 0.92), (0.72, 0.85, 0.95))
    near, far = np.array((0.22, 0.50, 0.13)), np.array((0.52, 0.70, 0.34))
    tone = sample_brightness(rng, count, 0.1)
    rows = 9
    for row in range(rows):
        depth = row / (rows - 1)
        base = horizon + (1.04 - horizon) * depth**1.2
        tips = base - (0.02 + 0.12 * depth) * _sample_blades(rng, count, image_size, 24 - 13 * depth)
        colour = (far + (near - far) * depth) * tone * sample_brightness(rng, count, 0.1)
        _paint_below(images, tips, colour, lambda below: 1.12 - 2.2 * np.minimum(below, 0.16))
    return images


def _sample_blades(rng: np.random.Generator, count: int, image_size: int, number: float) -> Floats:
    """Sample heights in [0, 1], (count, W), of a row of about `number` pointed blades, uneven in width and height."""
    x = _pixel_centres(image_size)
    phase = rng.uniform(0, 1, (3, count, 1))
    along = number * x + phase[0] + 0.7 * np.sin(2 * np.pi * (2 * x + phase[1]))
    # Steps of about a golden angle give neighbours different heights without a random number per blade.
    height = 0.65 + 0.35 * np.sin(2.4 * np.floor(along) + 2 * np.pi * phase[2])
    return np.asarray(height * (1 - np.abs(2 * (along % 1) - 1)))


def render_desert(rng: np.random.Generator, count: int, image_size: int) -> Floats:
    """Render dunes, (count, 3, H, W): overlapping crests, light at the top and dark below, with wind ripples."""
    horizon = rng.uniform(*_HORIZON, (count, 1))
    images = _render_sky(rng, count, image_size, (0.50, 0.72, 0.90), (0.90, 0.80, 0.64))
    near, far = np.array((0.84, 0.60, 0.32)), np.array((0.90, 0.74, 0.52))
    tone = sample_brightness(rng, count, 0.07)
    dunes = 5
    for dune in range(dunes):
        depth = dune / (dunes - 1)
        swell = 0.03 + 0.11 * depth
        crest = horizon + (0.80 - horizon) * depth**1.1 + swell * (0.5 - _sample_crests(rng, count, image_size))
        colour = (far + (near - far) * depth) * tone * sample_brightness(rng, count, 0.04)
        _paint_below(images, crest, colour, _shade_dune)
    return images


def _shade_dune(below: Floats) -> Floats:
    ripples = 0.035 * np.sin(2 * np.pi * 13 * below)
    return np.asarray(1.06 - 1.1 * np.minimum(below, 0.22) + ripples)


def _sample_crests(rng: np.random.Generator, count: int, image_size: int) -> Floats:
    """Sample heights in [0, 1], (count, W), of a line of dunes with sharp crests."""
    along = rng.uniform(0.7, 1.5, (count, 1)) * _pixel_centres(image_size) + rng.uniform(0, 1, (count, 1))
    return np.asarray(1 - np.abs(np.sin(np.pi * (along + 0.08 * np.sin(2 * np.pi * along)))))


def _render_sky(
    rng: np.random.Generator,
    count: int,
    image_size: int,
    zenith: tuple[float, float, float],
    haze: tuple[float, float, float],
) -> NDArray[np.float32]:
    """Render skies, (count, 3, H, W), that fade from the zenith to the haze at the horizon."""
    fade = np.minimum(_pixel_centres(image_size) / _HORIZON[1], 1)[:, None]
    colour = np.array(zenith)[:, None, None] * (1 - fade) + np.array(haze)[:, None, None] * fade
    sky = colour * sample_brightness(rng, count, 0.06)[:, :, None, None]
    return np.repeat(sky, image_size, axis=3).astype(np.float32)


def _paint_below(images: NDArray[np.float32], top: Floats, colour: Floats, shade: Callable[[Floats], Floats]) -> None:
    """Paint everything below the line `top` (n, W), in place, in a colour (n, 3) shaded by the distance below it."""
    image_size = images.shape[-1]
    below = (_pixel_centres(image_size)[:, None] - top[:, None, :]).astype(np.float32)
    cover = np.clip(below * image_size + 0.5, 0, 1)[:, None]
    paint = colour.astype(np.float32)[:, :, None, None] * shade(np.maximum(below, 0))[:, None]
    images += cover * (paint - images)


def sample_brightness(rng: np.random.Generator, count: int, amount: float) -> NDArray[np.float32]:
    """Sample factors around 1, (count, 1), that brighten or darken a colour."""
    return rng.uniform(1 - amount, 1 + amount, (count, 1)).astype(np.float32)


def _pixel_centres(image_size: int) -> NDArray[np.float64]:
    return (np.arange(image_size) + 0.5) / image_size


_FREQUENCIES = np.arange(1, 4)
# Amplitude of the tint relative to the channel: enough to colour the domain, not enough to hide the pattern.
_TINT = 0.6


def sample_pattern(rng: np.random.Generator, channels: int, size: int, rank: int = 2) -> NDArray[np.float64]:
    """Sample one smooth pattern of unit l2 norm, (channels, size, size).

    Each channel is the sum of `rank` outer products of smooth functions, plus a tint: a constant that raises the
    channel's rank by at most one. The random numbers do not depend on `size`, so a seed gives the same pattern at any
    resolution.
    """
    down = _sample_smooth_functions(rng, channels, rank, size)
    across = _sample_smooth_functions(rng, channels, rank, size)
    pattern = np.einsum("crh,crw->chw", down, across) / np.sqrt(rank)
    pattern += _TINT * rng.standard_normal((channels, 1, 1))
    return np.asarray(pattern / np.linalg.norm(pattern))


def _sample_smooth_functions(rng: np.random.Generator, channels: int, rank: int, size: int) -> NDArray[np.float64]:
    """Sample sums of a few cosines, (channels, rank, size), with random amplitudes and phases, variance about 1."""
    shape = (channels, rank, len(_FREQUENCIES), 1)
    amplitude = rng.standard_normal(shape) / _FREQUENCIES[:, None]
    phase = rng.uniform(0, 2 * np.pi, shape)
    waves = amplitude * np.cos(np.pi * _FREQUENCIES[:, None] * _pixel_centres(size) + phase)
    return np.asarray(waves.sum(axis=2))
