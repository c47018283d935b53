"""Rotated MNIST: whose digits, turned how far, which way, and by what interpolation."""

from pathlib import Path

import numpy as np
import pytest
import torch
from test_digits import REAL_DATA, needs_mnist, random_digits, write_digits
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
    # It spells bare black surroundings as None.
    return torchvision_rotate(images[:, None], degrees, interpolation=InterpolationMode.BILINEAR, fill=fill)[:, 0]


def assert_same_but_for_ties(given: Tensor, expected: Tensor) -> None:
    """Equal up to how a value halfway between two levels is rounded, which few are."""
    difference = (given.int() - expected.int()).abs()
    assert difference.max() <= 1
    assert (difference > 0).double().mean() < 1e-3


def test_every_image_stands_in_one_domain_once(dataset: Dataset) -> None:
    images, labels = (torch.from_numpy(values) for values in random_digits(COUNT))
    shuffled = np.random.default_rng(7).permutation(COUNT)
    assert [len(domain) for domain in dataset.domains] == [51, 50, 50, 50, 50, 50]
    for index, (angle, domain) in enumerate(zip(ANGLES, dataset.domains, strict=True)):
        mine = torch.from_numpy(shuffled[index::6])
        assert torch.equal(domain.labels, labels[mine].long())
        assert_same_but_for_ties(domain.images[:, 0], by_torchvision(images[mine], angle, fill=None))


def test_what_it_declares(dataset: Dataset) -> None:
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


def test_its_network_takes_its_images(dataset: Dataset) -> None:
    assert dataset.network == "mnist_cnn"
    images = dataset.domains[1].images[:2].float() / 255
    assert NETWORKS[dataset.network](dataset.image_shape, 10, 0.0)(images).shape == (2, 10)


def test_seed_decides_every_byte(data_dir: Path, dataset: Dataset) -> None:
    again, other = (rotated_mnist(seed, data_dir=data_dir) for seed in (7, 8))
    for one, two, three in zip(dataset.domains, again.domains, other.domains, strict=True):
        assert torch.equal(one.images, two.images)
        assert torch.equal(one.labels, two.labels)
        assert not torch.equal(one.images, three.images)


def test_no_turn_changes_nothing() -> None:
    images = torch.from_numpy(random_digits(COUNT)[0])
    assert torch.equal(rotate(images, 0), images)


def test_quarter_turn_moves_every_pixel_to_its_place() -> None:
    images = torch.from_numpy(random_digits(COUNT)[0])
    assert torch.equal(rotate(images, 90), images.rot90(1, (1, 2)))


def test_turns_counter_clockwise() -> None:
    right_of_centre = torch.zeros(1, 28, 28, dtype=torch.uint8)
    right_of_centre[0, 13:15, 22:24] = 255
    rows, columns = torch.nonzero(rotate(right_of_centre, 30)[0] > 127).double().mean(0) - 13.5
    # Rows count downwards.
    assert -rows == pytest.approx(9 * 0.5, abs=0.5)
    assert columns == pytest.approx(9 * 3**0.5 / 2, abs=0.5)


@pytest.mark.parametrize("angle", [*ANGLES, 7.5])
def test_turns_as_torchvision_does(angle: float) -> None:
    images = torch.from_numpy(random_digits(2500)[0])
    assert_same_but_for_ties(rotate(images, angle), by_torchvision(images, angle, fill=None))


@pytest.mark.parametrize("angle", ANGLES)
def test_turns_as_torchvision_does_with_a_fill_of_zero_where_borders_are_black(angle: float) -> None:
    # Given a fill, torchvision fades light borders twice.
    images = torch.from_numpy(random_digits(COUNT)[0])
    inside = torch.zeros_like(images)
    inside[:, 2:-2, 2:-2] = images[:, 2:-2, 2:-2]
    assert_same_but_for_ties(rotate(inside, angle), by_torchvision(inside, angle, fill=0))


def test_what_comes_from_outside_is_black() -> None:
    turned = rotate(torch.full((1, 28, 28), 255, dtype=torch.uint8), 45)[0]
    # The corners, and not the centre, lie farther out than half the side.
    assert turned[[0, 0, -1, -1], [0, -1, 0, -1]].tolist() == [0, 0, 0, 0]
    assert (turned[7:21, 7:21] == 255).all()


@needs_mnist
def test_real_digits_are_turned_as_torchvision_does() -> None:
    dataset = rotated_mnist(3, data_dir=REAL_DATA)
    images, labels = load_digits(REAL_DATA)
    shuffled = np.random.default_rng(3).permutation(70_000)
    assert [len(domain) for domain in dataset.domains] == [11_667] * 4 + [11_666] * 2
    for index, (angle, domain) in enumerate(zip(ANGLES, dataset.domains, strict=True)):
        mine = torch.from_numpy(shuffled[index::6])
        assert torch.equal(domain.labels, labels[mine])
        # The last ones too: they come from another chunk than the first.
        for some in (slice(0, 500), slice(-500, None)):
            assert_same_but_for_ties(domain.images[some, 0], by_torchvision(images[mine[some]], angle, fill=None))
