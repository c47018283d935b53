"""Synthetic datasets of cow and camel silhouettes: domains that differ by a pattern, or by the background."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from domainwise.data.dataset import Dataset, Domain, Role
from domainwise.data.rendering import (
    ANIMALS,
    Floats,
    render_animals,
    render_desert,
    render_grass,
    sample_brightness,
    sample_pattern,
    sample_poses,
)
from domainwise.errors import DomainwiseError
from domainwise.hparams import Distribution, Power
from domainwise.perturbations.checks import measure_memory

_DEFAULTS: Mapping[str, float] = {
    "lr": 1e-3,
    "batch_size": 64,
    "epsilon": 0.5,
    "step_size": 0.5,
    "count": 10,
    "rank": 5,
}
_SEARCH: Mapping[str, Distribution] = {
    "lr": Power(10, -3.5, -2.5),
    "discriminator_lr": Power(10, -3.5, -2.5),
    "batch_size": Power(2, 5, 7, whole=True),
    "epsilon": Power(10, -1, 0.5),
}
_GRAY = 0.5
_TEST_PATTERNS = 4
_REFERENCE_SIZE = 32
# First part of the key of a domain's random numbers in `silhouettes`.
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
    """Build a dataset of cows and camels on a gray background under patterns not seen in training.

    A training domain `style_<i>` adds one fixed pattern to all of its images. A test domain `shift_<norm>` adds one of
    four other patterns to each image. All test domains have the same animals and noise; only the norm differs.

    Args:
        seed: seed for animals, noise and patterns. Each domain has its own random stream: adding one changes no other.
        image_size: side of the image in pixels.
        num_domains: number of training domains.
        train_count: images per training domain.
        test_count: images per test domain.
        style_norm: l2 norm over (C, H, W) of the training patterns at 32 pixels, with pixels in [0, 1]. It is scaled
            in proportion to `image_size`, which preserves the look of the image.
        shifts: norms of the test patterns, one per test domain, on the same scale as `style_norm`. They are measured
            before the image is clipped to [0, 1], which affects about 2 % of the values at 8 and 12 % at 16.
        noise: standard deviation of the noise per pixel.
    """
    _check_sizes(seed, image_size, train_count, test_count, noise)
    _check_styles(num_domains, style_norm, shifts)
    _check_memory(image_size, (num_domains, train_count), (len(shifts), test_count))
    scale = image_size / _REFERENCE_SIZE
    train = [
        _build_style_domain(seed, index, train_count, image_size, style_norm * scale, noise)
        for index in range(num_domains)
    ]
    norms = {f"shift_{shift:g}": shift * scale for shift in shifts}
    test = _build_shift_domains(seed, test_count, image_size, norms, noise)
    return _build_dataset("silhouettes", (*train, *test))


def silhouettes_spurious(
    seed: int = 0,
    *,
    image_size: int = 32,
    train_count: int = 2000,
    test_count: int = 1000,
    majority: float = 0.97,
    noise: float = 0.05,
) -> Dataset:
    """Build a dataset of cows and camels whose background predicts the class in training and misleads in the test.

    In `grass` a fraction `majority` of the animals are cows, in `desert` that fraction are camels. In the test domain
    `flipped` the correlation is reversed: half of the images are on grass, with that fraction of camels, and half in
    the desert, with that fraction of cows. `balanced` has equally many of both on either background, so the drop in
    accuracy from `balanced` to `flipped` measures the reliance on the background.

    Args:
        seed: seed for animals, backgrounds and noise. Each domain has its own random stream: changing one changes no
            other.
        image_size: side of the image in pixels.
        train_count: images per training domain.
        test_count: images per test domain.
        majority: fraction of the more frequent class per background, rounded to whole images.
        noise: standard deviation of the noise per pixel.
    """
    _check_sizes(seed, image_size, train_count, test_count, noise)
    if not 0.5 <= majority < 1:
        raise DomainwiseError(f"majority must be at least 0.5 and below 1, got {majority}")
    _check_memory(image_size, (2, train_count), (2, test_count))
    half = test_count // 2
    rest = test_count - half
    minority = 1 - majority
    plan: list[tuple[str, Role, list[_Group]]] = [
        ("grass", "train", [(_GRASS, train_count, majority)]),
        ("desert", "train", [(_DESERT, train_count, minority)]),
        ("flipped", "test", [(_GRASS, half, minority), (_DESERT, rest, majority)]),
        ("balanced", "test", [(_GRASS, half, 0.5), (_DESERT, rest, 0.5)]),
    ]
    domains = tuple(
        _build_spurious_domain(_spawn_generators(seed, index), name, role, groups, image_size, noise)
        for index, (name, role, groups) in enumerate(plan)
    )
    return _build_dataset("silhouettes_spurious", domains)


def _build_dataset(name: str, domains: tuple[Domain, ...]) -> Dataset:
    return Dataset(
        name=name,
        classes=ANIMALS,
        domains=domains,
        network="small_cnn",
        defaults=_DEFAULTS,
        search=_SEARCH,
        steps=1000,
        record_every=100,
    )


def _build_style_domain(seed: int, index: int, count: int, image_size: int, norm: float, noise: float) -> Domain:
    animal_rng, style_rng, noise_rng = _spawn_generators(seed, _TRAIN, index)
    labels = animal_rng.permutation(count) % len(ANIMALS)
    images, coverage = _render_on_gray(animal_rng, labels, image_size)
    _add_noise(noise_rng, images, noise)
    images += (norm * sample_pattern(style_rng, 3, image_size)).astype(np.float32)
    return _build_domain(f"style_{index}", "train", images, labels, coverage)


def _build_shift_domains(
    seed: int, count: int, image_size: int, norms: Mapping[str, float], noise: float
) -> list[Domain]:
    animal_rng, style_rng, noise_rng = _spawn_generators(seed, _TEST)
    # Every pattern is used equally often for both classes.
    order = animal_rng.permutation(count)
    labels, pattern_index = order % len(ANIMALS), order // len(ANIMALS) % _TEST_PATTERNS
    images, coverage = _render_on_gray(animal_rng, labels, image_size)
    _add_noise(noise_rng, images, noise)
    patterns = np.stack([sample_pattern(style_rng, 3, image_size) for _ in range(_TEST_PATTERNS)]).astype(np.float32)
    return [
        _build_domain(name, "test", images + (norm * patterns)[pattern_index], labels, coverage)
        for name, norm in norms.items()
    ]


def _render_on_gray(rng: np.random.Generator, labels: NDArray[np.int64], image_size: int) -> tuple[Floats, Floats]:
    """Render gray animals, lighter or darker than the background: images (n, 3, H, W) and coverage (n, H, W)."""
    contrast = rng.choice((-1, 1), len(labels)) * rng.uniform(0.2, 0.4, len(labels))
    coverage = render_animals(labels, sample_poses(rng, len(labels)), image_size)
    gray = _GRAY + contrast.astype(np.float32)[:, None, None] * coverage
    return np.repeat(gray[:, None], 3, axis=1), coverage


_COW, _CAMEL = 0, 1
_GRASS, _DESERT = 0, 1
# A background, a number of images, and the fraction of cows among them.
_Group = tuple[int, int, float]
# Black, dark brown, chestnut and cream: the same coats for both animals, none close to a background colour.
_COATS = np.array([(0.08, 0.07, 0.08), (0.22, 0.13, 0.08), (0.38, 0.19, 0.09), (0.98, 0.95, 0.88)], np.float32)


def _build_spurious_domain(
    generators: list[np.random.Generator],
    name: str,
    role: Role,
    groups: list[_Group],
    image_size: int,
    noise: float,
) -> Domain:
    animal_rng, background_rng, noise_rng = generators
    backgrounds = np.concatenate([np.full(count, background) for background, count, _ in groups])
    labels = np.concatenate(
        [
            np.where(np.arange(count) < round(count * cow_fraction), _COW, _CAMEL).astype(np.int64)
            for _, count, cow_fraction in groups
        ]
    )
    order = animal_rng.permutation(len(labels))
    backgrounds, labels = backgrounds[order], labels[order]
    images = np.empty((len(labels), 3, image_size, image_size), np.float32)
    for background, render in ((_GRASS, render_grass), (_DESERT, render_desert)):
        is_background = backgrounds == background
        images[is_background] = render(background_rng, int(is_background.sum()), image_size)
    coverage = render_animals(labels, sample_poses(animal_rng, len(labels), highest_feet=0.66), image_size)
    coats = _COATS[animal_rng.integers(len(_COATS), size=len(labels))]
    coats = coats * sample_brightness(animal_rng, len(labels), 0.12)
    images += coverage[:, None] * (coats[:, :, None, None] - images)
    _add_noise(noise_rng, images, noise)
    return _build_domain(name, role, images, labels, coverage)


def _spawn_generators(seed: int, *key: int) -> list[np.random.Generator]:
    """Return three independent generators for the domain `key`: animals, background or pattern, and noise."""
    return [np.random.default_rng(child) for child in np.random.SeedSequence(seed, spawn_key=key).spawn(3)]


def _add_noise(rng: np.random.Generator, images: Floats, noise: float) -> None:
    """Add normal noise of standard deviation `noise` in place."""
    images += noise * rng.standard_normal(images.shape, dtype=np.float32)


def _build_domain(name: str, role: Role, images: Floats, labels: NDArray[np.int64], coverage: Floats) -> Domain:
    """Build a domain from images (n, 3, H, W), clipped to [0, 1]."""
    return Domain(
        name=name,
        images=torch.from_numpy((images.clip(0, 1) * 255).round().astype(np.uint8)),
        labels=torch.from_numpy(labels),
        role=role,
        masks=torch.from_numpy(coverage > 0.5),
    )


def _check_sizes(seed: int, image_size: int, train_count: int, test_count: int, noise: float) -> None:
    if seed < 0:
        raise DomainwiseError(f"seed must be at least 0, got {seed}")
    if image_size < 16:
        raise DomainwiseError(f"image_size must be at least 16 pixels to distinguish the animals, got {image_size}")
    for name, count in (("train_count", train_count), ("test_count", test_count)):
        if count < 1:
            raise DomainwiseError(f"{name} must be at least 1, got {count}")
    _check_range("noise", noise)


def _check_styles(num_domains: int, style_norm: float, shifts: Sequence[float]) -> None:
    if num_domains < 1:
        raise DomainwiseError(f"num_domains must be at least 1, got {num_domains}")
    _check_range("style_norm", style_norm)
    if not shifts:
        raise DomainwiseError("shifts is empty: without a shift there is no test domain; name at least one, such as 8")
    for shift in shifts:
        _check_range("every shift", shift)
    names = [f"{shift:g}" for shift in shifts]
    if len(set(names)) < len(names):
        raise DomainwiseError(f"shifts must be distinct, got {', '.join(names)}")


# Of noise and patterns, whose pixels are in [0, 1]: far beyond it, numbers overflow.
_LARGEST = 1e6


def _check_range(name: str, value: float) -> None:
    # NaN fails every comparison.
    if not 0 <= value < float("inf"):
        raise DomainwiseError(f"{name} must be finite and at least 0, got {value}")
    if value > _LARGEST:
        raise DomainwiseError(f"{name} must be at most {_LARGEST:g}, got {value}")


def _check_memory(image_size: int, *domains: tuple[int, int]) -> None:
    """Raise an error if the images do not fit into memory.

    Args:
        domains: numbers of domains, each with the number of images per domain.
    """
    total, largest = sum(number * count for number, count in domains), max(count for _, count in domains)
    # Colours and mask of every image, and floats while the largest domain is built.
    required, available = image_size**2 * (4 * total + 30 * largest), measure_memory()
    if required > available:
        raise DomainwiseError(
            f"{total:,} images of {image_size} x {image_size} pixels need {required // 10**9:,} GB of memory, and "
            f"there are {available // 10**9:,} GB; reduce the image size or the number of images"
        )
