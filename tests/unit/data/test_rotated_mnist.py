"""Rotated MNIST: digits, angles, direction and interpolation."""

from pathlib import Path

import numpy as np
import pytest
import torch
from test_mnist import REAL_DATA, needs_mnist, random_digits, write_digits
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.functional import rotate as torchvision_rotate

from domainwise.data.dataset import Dataset
from domainwise.data.mnist import load_digits, rotate, rotated_mnist
from domainwise.networks import NETWORKS

COUNT = 301
ANGLES = (0, 15, 30, 45, 60, 75)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_digits(tmp_path_factory.mktemp("data"), *random_digits(COUNT))


@pytest.fixture(scope="module")
def dataset(data_dir: Path) -> Dataset:
    return rotated_mnist(7, data_dir=data_dir)


def by_torchvision(images: Tensor, degrees: float, fill: float | None) -> Tensor:
    # fill=None means black.
    return torchvision_rotate(images[:, None], degrees, interpolation=InterpolationMode.BILINEAR, fill=fill)[:, 0]


def assert_same_but_for_ties(actual: Tensor, expected: Tensor) -> None:
    """Equal up to the rounding of the few values halfway between two levels."""
    difference = (actual.int() - expected.int()).abs()
    assert difference.max() <= 1
    assert (difference > 0).double().mean() < 1e-3


def test_every_image_is_in_one_domain_rotated(dataset: Dataset) -> None:
    images, labels = (torch.from_numpy(values) for values in random_digits(COUNT))
    shuffled = np.random.default_rng(7).permutation(COUNT)
    assert [len(domain) for domain in dataset.domains] == [51, 50, 50, 50, 50, 50]
    for index, (angle, domain) in enumerate(zip(ANGLES, dataset.domains, strict=True)):
        members = torch.from_numpy(shuffled[index::6])
        assert torch.equal(domain.labels, labels[members].long())
        assert_same_but_for_ties(domain.images[:, 0], by_torchvision(images[members], angle, fill=None))


def test_settings(dataset: Dataset) -> None:
    assert dataset.name == "rotated_mnist"
    assert dataset.domain_names == ("0", "15", "30", "45", "60", "75")
    assert dataset.classes == ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
    assert dataset.image_shape == (1, 28, 28)
    assert dict(dataset.defaults) == {"lr": 1e-3, "batch_size": 64}
    assert (dataset.steps, dataset.record_every) == (5001, 100)
    for domain in dataset.domains:
        assert domain.role is None
        assert domain.images.dtype == torch.uint8
        assert domain.labels.dtype == torch.int64


def test_default_network_fits_the_images(dataset: Dataset) -> None:
    assert dataset.network == "mnist_cnn"
    images = dataset.domains[1].images[:2].float() / 255
    assert NETWORKS[dataset.network](dataset.image_shape, 10, 0.0)(images).shape == (2, 10)


def test_images_depend_only_on_the_seed(data_dir: Path, dataset: Dataset) -> None:
    again, other = (rotated_mnist(seed, data_dir=data_dir) for seed in (7, 8))
    for one, two, three in zip(dataset.domains, again.domains, other.domains, strict=True):
        assert torch.equal(one.images, two.images)
        assert torch.equal(one.labels, two.labels)
        assert not torch.equal(one.images, three.images)


def test_rotation_by_0_is_the_identity() -> None:
    images = torch.from_numpy(random_digits(COUNT)[0])
    assert torch.equal(rotate(images, 0), images)


def test_rotation_by_90_is_exact() -> None:
    images = torch.from_numpy(random_digits(COUNT)[0])
    assert torch.equal(rotate(images, 90), images.rot90(1, (1, 2)))


def test_rotation_is_counter_clockwise() -> None:
    right_of_centre = torch.zeros(1, 28, 28, dtype=torch.uint8)
    right_of_centre[0, 13:15, 22:24] = 255
    rows, columns = torch.nonzero(rotate(right_of_centre, 30)[0] > 127).double().mean(0) - 13.5
    # Rows count downwards.
    assert -rows == pytest.approx(9 * 0.5, abs=0.5)
    assert columns == pytest.approx(9 * 3**0.5 / 2, abs=0.5)


@pytest.mark.parametrize("angle", [*ANGLES, 7.5])
def test_rotation_equals_torchvision(angle: float) -> None:
    images = torch.from_numpy(random_digits(2500)[0])
    assert_same_but_for_ties(rotate(images, angle), by_torchvision(images, angle, fill=None))


@pytest.mark.parametrize("angle", ANGLES)
def test_rotation_equals_torchvision_with_zero_fill_for_black_borders(angle: float) -> None:
    # With a fill, torchvision fades light borders twice.
    images = torch.from_numpy(random_digits(COUNT)[0])
    inside = torch.zeros_like(images)
    inside[:, 2:-2, 2:-2] = images[:, 2:-2, 2:-2]
    assert_same_but_for_ties(rotate(inside, angle), by_torchvision(inside, angle, fill=0))


def test_outside_is_black() -> None:
    rotated = rotate(torch.full((1, 28, 28), 255, dtype=torch.uint8), 45)[0]
    # The corners, and not the centre, lie farther out than half the side.
    assert rotated[[0, 0, -1, -1], [0, -1, 0, -1]].tolist() == [0, 0, 0, 0]
    assert (rotated[7:21, 7:21] == 255).all()


@needs_mnist
def test_real_digits_are_rotated_as_by_torchvision() -> None:
    dataset = rotated_mnist(3, data_dir=REAL_DATA)
    images, labels = load_digits(REAL_DATA)
    shuffled = np.random.default_rng(3).permutation(70_000)
    assert [len(domain) for domain in dataset.domains] == [11_667] * 4 + [11_666] * 2
    for index, (angle, domain) in enumerate(zip(ANGLES, dataset.domains, strict=True)):
        members = torch.from_numpy(shuffled[index::6])
        assert torch.equal(domain.labels, labels[members])
        # The last ones too: they are in a different chunk.
        for part in (slice(0, 500), slice(-500, None)):
            assert_same_but_for_ties(domain.images[part, 0], by_torchvision(images[members[part]], angle, fill=None))
