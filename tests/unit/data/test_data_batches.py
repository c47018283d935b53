"""Batches: images, labels and memory layout."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from domainwise.data.augmentation import augment_batch
from domainwise.data.batches import draw_batches, iterate_batches
from domainwise.data.dataset import Domain
from domainwise.data.strong_augmentation import augment_strongly

CPU = torch.device("cpu")


def domain(count: int, number: int = 0, shape: Sequence[int] = (3, 5, 4)) -> Domain:
    """Images whose first pixel is their index and whose second is the domain; the rest is noise."""
    generator = torch.Generator().manual_seed(number)
    images = torch.randint(0, 256, (count, *shape), generator=generator, dtype=torch.uint8)
    images[:, 0, 0, 0] = torch.arange(count)
    images[:, 0, 0, 1] = number
    return Domain(f"domain {number}", images, (torch.arange(count) * 7 + number) % 5)


def indices_of(x: Tensor) -> Tensor:
    return (x[:, 0, 0, 0] * 255).round().long()


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("is_augmented", [False, True])
def test_one_batch_per_domain_in_float_and_channels_last(is_augmented: bool) -> None:
    parts = [(domain(20, number), torch.arange(20)) for number in range(3)]
    batches = draw_batches(parts, 8, seeded(0), CPU, augmentation=seeded(1) if is_augmented else None)
    assert len(batches) == 3
    for x, y in batches:
        assert x.shape == (8, 3, 5, 4)
        assert x.dtype == torch.float32
        assert x.is_contiguous(memory_format=torch.channels_last)
        assert x.min() >= 0
        assert x.max() <= 1
        assert y.shape == (8,)
        assert y.dtype == torch.int64


def test_images_are_drawn_from_the_indices_with_their_labels() -> None:
    parts = [(domain(200, 0), torch.arange(50, 100)), (domain(120, 1), torch.tensor([3, 70, 119]))]
    batches = draw_batches(parts, 400, seeded(0), CPU)
    for (source, indices), (x, y) in zip(parts, batches, strict=True):
        chosen = indices_of(x)
        # All of the indices and no others.
        assert set(chosen.tolist()) == set(indices.tolist())
        assert torch.equal(y, source.labels[chosen])
        assert torch.equal(x, source.images[chosen].float() / 255)
        # About equally often.
        counts = torch.bincount(chosen, minlength=200)[indices]
        assert counts.max() < 400 / len(indices) + 5 * (400 / len(indices)) ** 0.5


def test_images_are_drawn_with_replacement_independently_per_domain() -> None:
    parts = [(domain(60, number), torch.arange(60)) for number in range(2)]
    (first, _), (second, _) = draw_batches(parts, 60, seeded(0), CPU)
    assert len(set(indices_of(first).tolist())) < 50
    assert not torch.equal(indices_of(first), indices_of(second))


def test_batches_depend_only_on_the_generator() -> None:
    parts = [(domain(60), torch.arange(60))]
    before = torch.get_rng_state()
    generator = seeded(4)
    first, second = (draw_batches(parts, 16, generator, CPU)[0][0] for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(first, second)
    assert torch.equal(first, draw_batches(parts, 16, seeded(4), CPU)[0][0])
    assert not torch.equal(first, draw_batches(parts, 16, seeded(5), CPU)[0][0])


@pytest.mark.parametrize("is_strong", [False, True])
def test_augmented_batches_have_the_same_images_as_plain_ones(is_strong: bool) -> None:
    augment = augment_strongly if is_strong else augment_batch
    parts = [(domain(60, number), torch.arange(60)) for number in range(3)]
    batches = draw_batches(parts, 10, seeded(4), CPU, augmentation=seeded(1), is_strong=is_strong)
    generator, augmentation = seeded(4), seeded(1)
    for part, (view, label) in zip(parts, batches, strict=True):
        [(x, y)] = draw_batches([part], 10, generator, CPU)
        assert torch.equal(label, y)
        assert not torch.allclose(view, x, atol=0.01)
        as_bytes = (255 * x).round().to(torch.uint8)
        torch.testing.assert_close(view, augment(as_bytes, augmentation), rtol=0, atol=1e-6)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_dataset_is_not_modified(channels: int) -> None:
    source = domain(30, shape=(channels, 6, 6))
    before = source.images.clone()
    draw_batches([(source, torch.arange(30))], 30, seeded(0), CPU, augmentation=seeded(1))
    for x, _ in iterate_batches(source, torch.arange(30), CPU):
        x.zero_()
    assert torch.equal(source.images, before)


@pytest.mark.parametrize("shape", [(3, 5, 4), (1, 28, 28), (3, 224, 224)])
def test_iterate_batches_yields_all_indices_once_in_order(shape: tuple[int, int, int]) -> None:
    source = domain(100, shape=shape)
    indices = torch.randperm(100, generator=seeded(0))[:70]
    batches = list(iterate_batches(source, indices, CPU))
    assert torch.equal(torch.cat([indices_of(x) for x, _ in batches]), indices)
    assert torch.equal(torch.cat([y for _, y in batches]), source.labels[indices])
    for x, _ in batches:
        assert x.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(x, source.images[indices_of(x)].float() / 255)
    again = list(iterate_batches(source, indices, CPU))
    assert all(torch.equal(x, other) for (x, _), (other, _) in zip(batches, again, strict=True))


def test_evaluation_batch_size_depends_on_the_image_size() -> None:
    sizes = {}
    for side, count in ((8, 300), (64, 100), (224, 20), (512, 20)):
        source = Domain("", torch.zeros(count, 3, side, side, dtype=torch.uint8), torch.zeros(count).long())
        sizes[side] = len(next(iter(iterate_batches(source, torch.arange(count), CPU)))[0])
    assert sizes == {8: 256, 64: 85, 224: 16, 512: 16}


def test_no_indices_give_no_batches() -> None:
    assert sum(len(y) for _, y in iterate_batches(domain(5), torch.empty(0, dtype=torch.int64), CPU)) == 0


def test_bytes_become_floats_in_0_to_1() -> None:
    source = Domain("", torch.tensor([0, 51, 255], dtype=torch.uint8).reshape(3, 1, 1, 1), torch.zeros(3).long())
    [(x, _)] = iterate_batches(source, torch.tensor([2, 0, 1]), CPU)
    assert x.flatten().tolist() == pytest.approx([1.0, 0.0, 0.2])


def test_images_are_stored_channels_last() -> None:
    images = torch.randint(0, 256, (4, 3, 5, 6), generator=seeded(0), dtype=torch.uint8)
    source = Domain("", images, torch.zeros(4).long())
    assert source.images.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(source.images, images)
    channels_last = images.contiguous(memory_format=torch.channels_last)
    assert Domain("", channels_last, torch.zeros(4).long()).images.data_ptr() == channels_last.data_ptr()
