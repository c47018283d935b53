"""Cows on grass and camels in the desert: the ground foretells the animal in training, and misleads in the test."""

import numpy as np
from numpy.typing import NDArray

from domainwise.data.animals import ANIMALS, draw_animals, random_poses
from domainwise.data.dataset import Dataset, Domain, Role
from domainwise.data.grounds import desert, grass, vary
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
