"""Animal silhouettes whose domains differ by a smooth pattern laid over the image, in known strengths."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from domainwise.data.dataset import Dataset, Domain, Role
from domainwise.data.shapes import ANIMALS, Floats, draw_animals, random_poses
from domainwise.errors import DomainwiseError
from domainwise.hparams import Distribution, Power

SILHOUETTE_DEFAULTS: Mapping[str, float] = {
    "lr": 1e-3,
    "batch_size": 64,
    "epsilon": 0.5,
    "step_size": 0.5,
    "count": 10,
    "rank": 5,
}
SILHOUETTE_SEARCH: Mapping[str, Distribution] = {
    "lr": Power(10, -3.5, -2.5),
    "discriminator_lr": Power(10, -3.5, -2.5),
    "batch_size": Power(2, 5, 7, whole=True),
    "epsilon": Power(10, -1, 0.5),
}
_GROUND = 0.5
_TEST_PATTERNS = 4
_REFERENCE_SIZE = 32
_TRAIN, _TEST = 0, 1


def silhouettes(
    seed: int = 0,
    *,
    image_size: int = 32,
    num_domains: int = 2,
    train_count: int = 2000,
    test_count: int = 1000,
    style_norm: float = 3.0,
    shifts: Sequence[float] = (0, 4, 8, 12, 16),
    noise: float = 0.05,
) -> Dataset:
    """Cows and camels on gray ground, darker or lighter than it, under patterns that training has not seen.

    A training domain `style_<i>` lays one fixed pattern over all of its images. A test domain `shift_<norm>` lays one
    of four other patterns over each. All test domains hold the same animals and noise: only the shift differs.

    Args:
        seed: draws animals, noise and patterns. Domains have streams of their own: adding one changes no other.
        image_size: side of the image in pixels.
        train_count: images in each training domain.
        test_count: images in each test domain.
        style_norm: l2 norm over (C, H, W) of the training patterns at 32 pixels, with pixels in [0, 1]. It grows in
            proportion to `image_size`, which keeps the look of the image.
        shifts: norms of the test patterns, a domain each, on the same scale as `style_norm`. They are the
            pattern's own, before the image is clipped to [0, 1]: about 2 % of its values at 8 and 12 % at 16.
        noise: standard deviation of the noise on each pixel.
    """
    check_sizes(seed, image_size, train_count, test_count, noise)
    _check_styles(num_domains, style_norm, shifts)
    scale = image_size / _REFERENCE_SIZE
    train = [
        _train_domain(seed, index, train_count, image_size, style_norm * scale, noise) for index in range(num_domains)
    ]
    test = _test_domains(seed, test_count, image_size, {f"shift_{shift:g}": shift * scale for shift in shifts}, noise)
    return Dataset(
        name="silhouettes",
        classes=ANIMALS,
        domains=(*train, *test),
        network="small_cnn",
        defaults=SILHOUETTE_DEFAULTS,
        search=SILHOUETTE_SEARCH,
        steps=1000,
        record_every=100,
    )


def streams(seed: int, *key: int) -> list[np.random.Generator]:
    """Three independent generators for the domain `key`: its objects, its ground or pattern, and its noise."""
    return [np.random.default_rng(child) for child in np.random.SeedSequence(seed, spawn_key=key).spawn(3)]


def as_domain(name: str, role: Role, images: Floats, labels: NDArray[np.int64], coverage: Floats) -> Domain:
    """A domain of images (n, 3, H, W) given in [0, 1]; what lies outside is clipped."""
    return Domain(
        name=name,
        images=torch.from_numpy((images.clip(0, 1) * 255).round().astype(np.uint8)),
        labels=torch.from_numpy(labels),
        role=role,
        masks=torch.from_numpy(coverage > 0.5),
    )


def add_noise(rng: np.random.Generator, images: Floats, noise: float) -> None:
    """Adds normal noise of standard deviation `noise` in place."""
    images += noise * rng.standard_normal(images.shape, dtype=np.float32)


def check_sizes(seed: int, image_size: int, train_count: int, test_count: int, noise: float) -> None:
    """Refuses sizes that cannot be drawn."""
    if seed < 0:
        raise DomainwiseError(f"seed must be 0 or more, not {seed}")
    if image_size < 16:
        raise DomainwiseError(f"image_size must be at least 16 pixels to tell the animals apart, not {image_size}")
    for name, count in (("train_count", train_count), ("test_count", test_count)):
        if count < 1:
            raise DomainwiseError(f"{name} must be at least 1, not {count}")
    _check_not_negative("noise", noise)


def _check_styles(num_domains: int, style_norm: float, shifts: Sequence[float]) -> None:
    if num_domains < 1:
        raise DomainwiseError(f"num_domains must be at least 1, not {num_domains}")
    _check_not_negative("style_norm", style_norm)
    for shift in shifts:
        _check_not_negative("every shift", shift)
    names = [f"{shift:g}" for shift in shifts]
    if len(set(names)) < len(names):
        raise DomainwiseError(f"shifts must differ from one another, but are {', '.join(names)}")


def _check_not_negative(name: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise DomainwiseError(f"{name} must be a finite number, 0 or more, not {value:g}")


def _train_domain(seed: int, index: int, count: int, image_size: int, norm: float, noise: float) -> Domain:
    objects, style, grain = streams(seed, _TRAIN, index)
    labels = objects.permutation(count) % len(ANIMALS)
    images, coverage = _on_gray(objects, labels, image_size)
    add_noise(grain, images, noise)
    images += (norm * smooth_pattern(style, 3, image_size)).astype(np.float32)
    return as_domain(f"style_{index}", "train", images, labels, coverage)


def _test_domains(seed: int, count: int, image_size: int, norms: Mapping[str, float], noise: float) -> list[Domain]:
    objects, style, grain = streams(seed, _TEST)
    # Every pattern meets both classes equally often.
    order = objects.permutation(count)
    labels, which = order % len(ANIMALS), order // len(ANIMALS) % _TEST_PATTERNS
    images, coverage = _on_gray(objects, labels, image_size)
    add_noise(grain, images, noise)
    patterns = np.stack([smooth_pattern(style, 3, image_size) for _ in range(_TEST_PATTERNS)]).astype(np.float32)
    return [
        as_domain(name, "test", images + (norm * patterns)[which], labels, coverage) for name, norm in norms.items()
    ]


def _on_gray(rng: np.random.Generator, labels: NDArray[np.int64], image_size: int) -> tuple[Floats, Floats]:
    """Images (n, 3, H, W) of gray animals, lighter or darker than the ground, and their coverage (n, H, W)."""
    contrast = rng.choice((-1, 1), len(labels)) * rng.uniform(0.2, 0.4, len(labels))
    coverage = draw_animals(labels, random_poses(rng, len(labels)), image_size)
    gray = _GROUND + contrast.astype(np.float32)[:, None, None] * coverage
    return np.repeat(gray[:, None], 3, axis=1), coverage


_FREQUENCIES = np.arange(1, 4)
# The tint's share of a channel's amplitude: enough to colour the domain, not enough to hide the pattern.
_TINT = 0.6


def smooth_pattern(rng: np.random.Generator, channels: int, size: int, rank: int = 2) -> NDArray[np.float64]:
    """One pattern of unit l2 norm, (channels, size, size).

    Each channel is the sum of `rank` outer products of smooth functions, plus a tint: a constant that raises the
    channel's rank by one at most. The draws do not depend on `size`, so one seed gives one pattern at any resolution.
    """
    down = _smooth_functions(rng, channels, rank, size)
    across = _smooth_functions(rng, channels, rank, size)
    pattern = np.einsum("crh,crw->chw", down, across) / np.sqrt(rank)
    pattern += _TINT * rng.standard_normal((channels, 1, 1))
    return np.asarray(pattern / np.linalg.norm(pattern))


def _smooth_functions(rng: np.random.Generator, channels: int, rank: int, size: int) -> NDArray[np.float64]:
    """Sums of a few cosines, (channels, rank, size), of random amplitude and phase and about unit variance."""
    shape = (channels, rank, len(_FREQUENCIES), 1)
    amplitude = rng.standard_normal(shape) / _FREQUENCIES[:, None]
    phase = rng.uniform(0, 2 * np.pi, shape)
    where = (np.arange(size) + 0.5) / size
    waves = amplitude * np.cos(np.pi * _FREQUENCIES[:, None] * where + phase)
    return np.asarray(waves.sum(axis=2))
