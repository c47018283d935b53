"""The synthetic datasets: animals, patterns, backgrounds, and what domains have in common."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from domainwise.data.dataset import Dataset, Domain
from domainwise.data.rendering import ANIMALS, render_animals, sample_pattern, sample_poses
from domainwise.data.synthetic import silhouettes, silhouettes_spurious
from domainwise.errors import DomainwiseError

SMALL = {"train_count": 64, "test_count": 64}


def named(dataset: Dataset, name: str) -> Domain:
    return dataset.domains[dataset.index(name)]


def pixels(domain: Domain) -> NDArray[np.float64]:
    return domain.images.numpy() / 255


def same(first: Domain, second: Domain) -> bool:
    assert first.masks is not None
    assert second.masks is not None
    return (
        torch.equal(first.images, second.images)
        and torch.equal(first.labels, second.labels)
        and torch.equal(first.masks, second.masks)
    )


def style(domain: Domain) -> NDArray[np.float64]:
    """The domain's pattern, estimated from images without noise where there is no animal."""
    assert domain.masks is not None
    bare = np.where(domain.masks.numpy()[:, None], np.nan, pixels(domain))
    return np.asarray(np.nanmedian(bare, axis=0) - 0.5)


def is_on_grass(domain: Domain) -> NDArray[np.bool_]:
    """Whether the background in the lower half is more green than red."""
    assert domain.masks is not None
    half = domain.images.shape[-1] // 2
    bare = ~domain.masks.numpy()[:, half:]
    green_over_red = (pixels(domain)[:, 1] - pixels(domain)[:, 0])[:, half:]
    return np.asarray((green_over_red * bare).sum((1, 2)) > 0)


@pytest.mark.parametrize("make", [silhouettes, silhouettes_spurious])
def test_images_depend_only_on_the_seed(make) -> None:
    first, again, other = make(3, **SMALL), make(3, **SMALL), make(4, **SMALL)
    for one, two, three in zip(first.domains, again.domains, other.domains, strict=True):
        assert same(one, two)
        assert not torch.equal(one.images, three.images)


def test_patterns_depend_on_the_seed() -> None:
    first, other = (style(named(silhouettes(seed, noise=0, **SMALL), "style_0")) for seed in (0, 1))
    cosine = (first * other).sum() / np.linalg.norm(first) / np.linalg.norm(other)
    assert abs(cosine) < 0.8


def test_training_domains_have_different_animals_and_patterns() -> None:
    dataset = silhouettes(0, noise=0, **SMALL)
    first, second = named(dataset, "style_0"), named(dataset, "style_1")
    assert first.masks is not None
    assert second.masks is not None
    assert not torch.equal(first.masks, second.masks)
    assert np.linalg.norm(style(first) - style(second)) > 1


def test_pattern_has_unit_norm_and_low_rank_apart_from_its_tint() -> None:
    for seed in range(5):
        pattern = sample_pattern(np.random.default_rng(seed), 3, 32)
        assert np.linalg.norm(pattern) == pytest.approx(1, abs=1e-12)
        for channel in pattern:
            # Differences between rows remove the constant tint and keep the rank of the rest.
            assert np.linalg.matrix_rank(np.diff(channel, axis=0), tol=1e-9) == 2
            assert np.linalg.matrix_rank(channel, tol=1e-9) == 3


def test_pattern_rank_can_be_chosen() -> None:
    pattern = sample_pattern(np.random.default_rng(0), 1, 32, rank=1)
    assert np.linalg.matrix_rank(np.diff(pattern[0], axis=0), tol=1e-9) == 1


def test_pattern_is_smooth_and_the_same_at_any_resolution() -> None:
    coarse, fine = (sample_pattern(np.random.default_rng(0), 3, size) for size in (32, 64))
    # Averaging 2 x 2 pixels halves the side, so at unit norm each value is twice as large.
    averaged = 2 * fine.reshape(3, 32, 2, 32, 2).mean(axis=(2, 4))
    assert np.abs(averaged - coarse).max() < 0.02 * np.abs(coarse).max()
    assert np.abs(np.diff(coarse, axis=2)).max() < 0.4 * np.abs(coarse).max()


@pytest.mark.parametrize(("image_size", "norm"), [(32, 3.0), (64, 6.0)])
def test_training_pattern_has_the_requested_norm(image_size: int, norm: float) -> None:
    dataset = silhouettes(0, image_size=image_size, style_norm=3.0, noise=0, **SMALL)
    assert np.linalg.norm(style(named(dataset, "style_0"))) == pytest.approx(norm, rel=0.01)


def test_test_images_differ_by_one_of_four_patterns_of_the_requested_norm() -> None:
    dataset = silhouettes(0, shifts=(0, 1), noise=0, **SMALL)
    patterns = pixels(named(dataset, "shift_1")) - pixels(named(dataset, "shift_0"))
    # The tolerance is for rounding to 256 levels: a pattern of norm 1 spans few of them, but is never clipped.
    assert np.linalg.norm(patterns.reshape(64, -1), axis=1) == pytest.approx(1, abs=0.05)
    kinds: list[NDArray[np.float64]] = []
    for pattern in patterns:
        if all(np.linalg.norm(pattern - kind) > 0.3 for kind in kinds):
            kinds.append(pattern)
    assert len(kinds) == 4
    seen = style(named(dataset, "style_0")) / 3
    assert all(np.linalg.norm(seen - kind) > 0.3 for kind in kinds)


def test_test_domains_are_paired() -> None:
    dataset = silhouettes(0, **SMALL)
    start, end = named(dataset, "shift_0"), named(dataset, "shift_16")
    assert start.masks is not None
    assert end.masks is not None
    assert torch.equal(start.labels, end.labels)
    assert torch.equal(start.masks, end.masks)
    assert not torch.equal(start.images, end.images)


def test_noise_has_the_requested_strength() -> None:
    clean, noisy = (named(silhouettes(0, noise=noise, **SMALL), "shift_0") for noise in (0, 0.05))
    assert (pixels(noisy) - pixels(clean)).std() == pytest.approx(0.05, rel=0.03)


def test_mask_covers_the_animal() -> None:
    domain = named(silhouettes(0, noise=0, **SMALL), "shift_0")
    assert domain.masks is not None
    contrast = np.abs(pixels(domain)[:, 0] - 0.5)
    halfway = contrast.max(axis=(1, 2), keepdims=True) / 2
    assert ((contrast > halfway) == domain.masks.numpy()).mean() > 0.999
    brighter = pixels(domain)[:, 0].max(axis=(1, 2)) > 0.6
    assert 0.2 < brighter.mean() < 0.8


def test_sizes_counts_and_roles() -> None:
    dataset = silhouettes(0, image_size=24, num_domains=3, train_count=10, test_count=6, shifts=(0, 2.5))
    assert dataset.domain_names == ("style_0", "style_1", "style_2", "shift_0", "shift_2.5")
    assert [domain.role for domain in dataset.domains] == ["train"] * 3 + ["test"] * 2
    assert [tuple(domain.images.shape) for domain in dataset.domains] == [(10, 3, 24, 24)] * 3 + [(6, 3, 24, 24)] * 2
    for domain in dataset.domains:
        assert domain.masks is not None
        assert domain.masks.shape == (len(domain), 24, 24)
        assert (domain.labels.dtype, domain.masks.dtype) == (torch.int64, torch.bool)
        assert domain.labels.sum() * 2 == len(domain)


def test_a_domain_does_not_depend_on_the_others() -> None:
    few = silhouettes(0, num_domains=1, shifts=(4,), train_count=20, test_count=12)
    many = silhouettes(0, num_domains=3, shifts=(0, 4), train_count=20, test_count=12)
    more_tests = silhouettes(0, num_domains=1, shifts=(4,), train_count=20, test_count=14)
    assert same(named(few, "style_0"), named(many, "style_0"))
    assert same(named(few, "shift_4"), named(many, "shift_4"))
    assert same(named(few, "style_0"), named(more_tests, "style_0"))


def test_count_does_not_change_the_pattern() -> None:
    few, many = (silhouettes(0, noise=0, train_count=count, test_count=1) for count in (60, 90))
    assert np.abs(style(named(few, "style_0")) - style(named(many, "style_0"))).max() < 0.005


def test_area_and_bounding_box_do_not_predict_the_class() -> None:
    poses = sample_poses(np.random.default_rng(0), 400)
    drawn = [render_animals(np.full(400, label), poses, 32) for label in range(len(ANIMALS))]
    cow, camel = ((d.mean(), (d > 0.5).any(1).sum(1).mean(), (d > 0.5).any(2).sum(1).mean()) for d in drawn)
    assert cow == pytest.approx(camel, rel=0.02)
    overlap = (drawn[0] * drawn[1]).sum() / np.maximum(drawn[0], drawn[1]).sum()
    assert overlap < 0.8


@pytest.mark.parametrize("label", range(len(ANIMALS)))
def test_animals_are_not_cut_off(label: int) -> None:
    poses = sample_poses(np.random.default_rng(0), 200)
    centred = replace(poses, x=np.full(200, 0.5), feet=np.full(200, 0.9))
    placed_area, whole_area = (render_animals(np.full(200, label), p, 48).sum(axis=(1, 2)) for p in (poses, centred))
    assert placed_area == pytest.approx(whole_area, rel=0.005)


def test_spurious_fractions_are_as_requested() -> None:
    dataset = silhouettes_spurious(0, train_count=100, test_count=200, majority=0.9, noise=0)
    assert [(domain.name, domain.role) for domain in dataset.domains] == [
        ("grass", "train"),
        ("desert", "train"),
        ("flipped", "test"),
        ("balanced", "test"),
    ]
    cows_on_grass = {"grass": 90, "flipped": 10, "balanced": 50}
    cows_in_desert = {"desert": 10, "flipped": 90, "balanced": 50}
    for domain in dataset.domains:
        cow, grass = domain.labels.numpy() == 0, is_on_grass(domain)
        assert (cow & grass).sum() == cows_on_grass.get(domain.name, 0)
        assert (cow & ~grass).sum() == cows_in_desert.get(domain.name, 0)
        assert (grass.sum(), (~grass).sum()) == {"grass": (100, 0), "desert": (0, 100)}.get(domain.name, (100, 100))


def test_spurious_animals_contrast_with_their_background() -> None:
    for domain in silhouettes_spurious(0, noise=0, **SMALL).domains:
        assert domain.masks is not None
        images, masks = pixels(domain), domain.masks.numpy()[:, None]
        animal = (images * masks).sum((2, 3)) / masks.sum((2, 3))
        lower = np.arange(32)[:, None] >= 16
        ground = (images * (~masks & lower)).sum((2, 3)) / (~masks & lower).sum((2, 3))
        assert np.linalg.norm(animal - ground, axis=1).min() > 0.25


def test_spurious_sizes_down_to_a_single_image() -> None:
    dataset = silhouettes_spurious(0, image_size=16, train_count=3, test_count=1)
    assert [tuple(domain.images.shape) for domain in dataset.domains] == [(3, 3, 16, 16)] * 2 + [(1, 3, 16, 16)] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"seed": -1}, "seed must be at least 0, got -1"),
        ({"image_size": 15}, "image_size must be at least 16"),
        ({"num_domains": 0}, "num_domains must be at least 1, got 0"),
        ({"train_count": 0}, "train_count must be at least 1, got 0"),
        ({"test_count": 0}, "test_count must be at least 1, got 0"),
        ({"style_norm": -1.0}, "style_norm must be finite and at least 0, got -1"),
        ({"shifts": (0, -4)}, "every shift must be finite and at least 0, got -4"),
        ({"shifts": (4, 8, 4.0)}, "shifts must be distinct, got 4, 8, 4"),
        ({"noise": -0.1}, "noise must be finite and at least 0, got -0.1"),
        ({"noise": float("nan")}, "noise must be finite"),
        ({"noise": float("inf")}, "noise must be finite"),
        ({"noise": 1e300}, "noise must be at most 1e\\+06, got 1e\\+300"),
        ({"style_norm": 10**400}, "style_norm must be at most 1e\\+06, got 1000"),
        ({"shifts": (0, 1e7)}, "every shift must be at most 1e\\+06"),
        ({"shifts": []}, "shifts is empty: without a shift there is no test domain"),
        ({"train_count": 10**12}, "2,000,000,005,000 images of 32 x 32 pixels need 38,912,000 GB of memory, and there"),
        ({"test_count": 10**12}, "5,000,000,004,000 images of 32 x 32 pixels need 51,200,000 GB"),
        ({"num_domains": 10**12}, "2,000,000,000,005,000 images"),
        ({"image_size": 10**9}, "9,000 images of 1000000000 x 1000000000 pixels need"),
    ],
)
def test_invalid_silhouettes_arguments_raise(arguments: dict, message: str) -> None:
    with pytest.raises(DomainwiseError, match=f"^{message}"):
        silhouettes(**arguments)


@pytest.mark.parametrize("majority", [0.49, 1.0, float("nan")])
def test_invalid_majority_raises(majority: float) -> None:
    with pytest.raises(DomainwiseError, match=r"^majority must be at least"):
        silhouettes_spurious(majority=majority)


def test_spurious_images_that_do_not_fit_into_memory_raise() -> None:
    with pytest.raises(DomainwiseError, match=r"^4,000,000,000 images of 1024 x 1024 pixels need .* GB of memory"):
        silhouettes_spurious(image_size=1024, train_count=10**9, test_count=10**9)
