"""Cows and camels, drawn as anti-aliased silhouettes a whole batch at a time.

An animal is a table of limbs, and a limb a chain of bones: round segments that taper from joint to joint. A pixel's
distance to the animal is the smooth minimum of its distances to the limbs, and its coverage is how far it lies inside.
"""

from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]

# The frame: x runs forward and y up, the feet stand on y = 0, and the animal is about 1 high and 1.24 long.
# A limb is how it follows the stride (legs only), then its joints, each x, y, radius; bones run from joint to joint.
# Both animals fill the same box and nearly the same area, so that only shape tells them apart.
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
_CHUNK_PIXELS = 1 << 19


@dataclass(frozen=True)
class Poses:
    """Where each animal of a batch stands and how. Every field has shape (n,); lengths are shares of the image's side.

    Args:
        x: the middle of the animal, from the left.
        feet: the line that it stands on, from the top.
        height: from feet to the tip of horns or humps.
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


def random_poses(rng: np.random.Generator, count: int, *, highest_feet: float = 0.0) -> Poses:
    """Poses that keep the whole animal in the image, with feet no higher than `highest_feet` (a share from the top)."""
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


def draw_animals(labels: NDArray[np.int64], poses: Poses, image_size: int) -> NDArray[np.float32]:
    """Coverage in [0, 1], (n, H, W), of the animal `ANIMALS[label]` in each pose."""
    coverage = np.empty((len(labels), image_size, image_size), np.float32)
    # A few hundred images at a time stay in the processor's cache.
    chunk = max(1, _CHUNK_PIXELS // image_size**2)
    for label, limbs in enumerate(_LIMBS):
        members = np.flatnonzero(labels == label)
        for start in range(0, len(members), chunk):
            some = members[start : start + chunk]
            coverage[some] = _coverage(limbs, _take(poses, some), image_size)
    return coverage


def _take(poses: Poses, index: NDArray[np.intp]) -> Poses:
    """The poses at `index`, each field of shape (m, 1, 1) to broadcast over pixels."""
    return Poses(*(values[index, None, None].astype(np.float32) for values in vars(poses).values()))


def _coverage(limbs: tuple[_Limb, ...], poses: Poses, image_size: int) -> Floats:
    centres = (np.arange(image_size, dtype=np.float32) + 0.5) / image_size
    x = (centres - poses.x) * poses.facing / poses.height
    y = (poses.feet - centres[:, None]) / poses.height
    distance = reduce(_smooth_minimum, (_distance_to_limb(x, y, limb, poses) for limb in limbs))
    # The ground cuts the soles flat.
    distance = np.maximum(distance, -y)
    return np.clip(0.5 - distance * (poses.height * image_size), 0, 1)


def _distance_to_limb(x: Floats, y: Floats, limb: _Limb, poses: Poses) -> Floats:
    """Distance of every point of the grid x (n, 1, W), y (n, H, 1) to one posed limb, (n, H, W), negative inside."""
    swing, joints = limb
    distance: Floats = reduce(np.minimum, (_distance_to_bone(x, y, *ends, swing, poses) for ends in pairwise(joints)))
    return distance


def _distance_to_bone(x: Floats, y: Floats, start: _Joint, end: _Joint, swing: int, poses: Poses) -> Floats:
    """Distance to the hull of two circles: the nearest circle between them lies back from the foot by the taper."""
    (x1, y1), (x2, y2) = _posed(start, swing, poses), _posed(end, swing, poses)
    length = np.hypot(x2 - x1, y2 - y1)
    along_x, along_y = (x2 - x1) / length, (y2 - y1) / length
    taper = (start[2] - end[2]) / length
    from_x, from_y = x - x1, y - y1
    along = from_x * along_x + from_y * along_y
    across = np.abs(from_x * along_y - from_y * along_x)
    reach = np.clip(along - across * (taper / np.sqrt(1 - taper**2)), 0, length)
    return np.asarray(np.sqrt((along - reach) ** 2 + across**2) - (start[2] - taper * reach))


def _posed(joint: _Joint, swing: int, poses: Poses) -> tuple[Floats, Floats]:
    """A joint after the stride has sheared the legs below the hip and the nod the head before the shoulder."""
    x, y, _ = joint
    return x + poses.stride * swing * max(_HIP - y, 0.0), y + poses.nod * max(x - _SHOULDER, 0.0)


def _smooth_minimum(a: Floats, b: Floats) -> Floats:
    """The minimum, rounded off where both are near, so that limbs grow out of the body instead of being stuck on."""
    near = np.maximum(_FILLET - np.abs(a - b), 0)
    return np.minimum(a, b) - near**2 / (4 * _FILLET)
