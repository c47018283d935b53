"""Colored MNIST: digits, noisy labels, and the correlation of colour and label."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from test_mnist import REAL_DATA, needs_mnist, random_digits, write_digits
from torch import Tensor

from domainwise.data.dataset import Dataset, Domain
from domainwise.data.mnist import colored_mnist, load_digits
from domainwise.errors import DomainwiseError
from domainwise.networks import NETWORKS

COUNT = 9_001
AGREEMENT = {"+90%": 0.9, "+80%": 0.8, "-90%": 0.1}


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_digits(tmp_path_factory.mktemp("data"), *random_digits(COUNT))


@pytest.fixture(scope="module")
def dataset(data_dir: Path) -> Dataset:
    return colored_mnist(7, data_dir=data_dir)


def colours(domain: Domain) -> Tensor:
    """The channel of each image that is not zero."""
    lit = domain.images.flatten(2).any(2)
    assert (lit.sum(1) == 1).all()
    return lit[:, 1].long()


def origins(domain: Domain) -> NDArray[np.int64]:
    """Index of the random digit of each image."""
    place = {image.tobytes(): index for index, image in enumerate(random_digits(COUNT)[0])}
    assert len(place) == COUNT
    return np.array([place[image.tobytes()] for image in domain.images.amax(1).numpy()])


def noise(domain: Domain) -> Tensor:
    """Where the label contradicts the digit."""
    digit = random_digits(COUNT)[1][origins(domain)]
    return domain.labels != torch.from_numpy((digit <= 4).astype(np.int64))


def assert_rate(happened: Tensor, probability: float) -> None:
    """Within four standard deviations of a binomial."""
    bound = 4 * (probability * (1 - probability) / len(happened)) ** 0.5
    assert happened.double().mean().item() == pytest.approx(probability, abs=bound)


def test_every_image_is_in_one_domain(dataset: Dataset) -> None:
    assert [len(domain) for domain in dataset.domains] == [3001, 3000, 3000]
    assert sorted(np.concatenate([origins(domain) for domain in dataset.domains])) == list(range(COUNT))


def test_shuffled_images_go_to_the_three_domains_in_turn(dataset: Dataset) -> None:
    shuffled = np.random.default_rng(7).permutation(COUNT)
    for index, domain in enumerate(dataset.domains):
        assert np.array_equal(origins(domain), shuffled[index::3])


def test_settings(dataset: Dataset) -> None:
    assert dataset.name == "colored_mnist"
    assert dataset.domain_names == ("+90%", "+80%", "-90%")
    assert dataset.classes == ("5 to 9", "0 to 4")
    assert dataset.image_shape == (2, 28, 28)
    assert dict(dataset.defaults) == {"lr": 1e-3, "batch_size": 64}
    assert (dataset.steps, dataset.record_every) == (5001, 100)
    for domain in dataset.domains:
        assert domain.role is None
        assert domain.images.dtype == torch.uint8
        assert domain.labels.dtype == torch.int64


@pytest.mark.parametrize(("image_size", "network"), [(28, "mnist_cnn"), (14, "mlp")])
def test_default_network_fits_the_images(data_dir: Path, image_size: int, network: str) -> None:
    dataset = colored_mnist(7, data_dir=data_dir, image_size=image_size)
    assert dataset.network == network
    images = dataset.domains[0].images[:2].float() / 255
    assert NETWORKS[network](dataset.image_shape, 2, 0.0)(images).shape == (2, 2)


def test_a_quarter_of_the_labels_is_flipped(dataset: Dataset) -> None:
    for domain in dataset.domains:
        assert_rate(noise(domain), 0.25)


def test_label_noise_is_equal_for_all_digits(dataset: Dataset) -> None:
    for domain in dataset.domains:
        digit, flipped = torch.from_numpy(random_digits(COUNT)[1][origins(domain)]), noise(domain)
        for number in range(10):
            assert_rate(flipped[digit == number], 0.25)


@pytest.mark.parametrize("name", AGREEMENT)
def test_colour_agrees_with_the_noisy_label_as_often_as_named(dataset: Dataset, name: str) -> None:
    domain = dataset.domains[dataset.index(name)]
    agrees = colours(domain) == domain.labels
    # Equally often for both labels, and for flipped and unflipped ones.
    for group in (domain.labels == 0, domain.labels == 1, noise(domain), ~noise(domain)):
        assert_rate(agrees[group], AGREEMENT[name])


def test_domains_have_independent_noise(dataset: Dataset) -> None:
    first, second, third = (noise(domain)[:3000] for domain in dataset.domains)
    # Independent quarters coincide in a sixteenth.
    for one, two in ((first, second), (second, third), (first, third)):
        assert_rate(one & two, 1 / 16)


def test_images_equal_domainbeds_for_the_same_random_numbers(dataset: Dataset) -> None:
    images, numbers = (torch.from_numpy(values) for values in random_digits(COUNT))
    shuffled = np.random.default_rng(7).permutation(COUNT)
    # In reverse order: the random numbers of a domain do not depend on the others.
    for index, flip in ((2, 0.9), (1, 0.2), (0, 0.1)):
        members = torch.from_numpy(shuffled[index::3])
        children = [np.random.SeedSequence(7, spawn_key=(index, child)) for child in (0, 1)]
        for_labels, for_colours = (np.random.default_rng(child).random(len(members)) for child in children)
        labels = (numbers[members] < 5).float()
        labels = (labels - torch.from_numpy(for_labels < 0.25).float()).abs()
        colour = (labels - torch.from_numpy(for_colours < flip).float()).abs()
        coloured = torch.stack([images[members], images[members]], dim=1)
        coloured[torch.arange(len(members)), (1 - colour).long(), :, :] *= 0
        assert torch.equal(dataset.domains[index].images, coloured)
        assert torch.equal(dataset.domains[index].labels, labels.long())


def test_images_depend_only_on_the_seed(data_dir: Path, dataset: Dataset) -> None:
    again, other = (colored_mnist(seed, data_dir=data_dir) for seed in (7, 8))
    for one, two, three in zip(dataset.domains, again.domains, other.domains, strict=True):
        assert torch.equal(one.images, two.images)
        assert torch.equal(one.labels, two.labels)
        assert not np.array_equal(origins(one), origins(three))
        assert not torch.equal(noise(one), noise(three))


def test_small_images_are_every_second_pixel(data_dir: Path, dataset: Dataset) -> None:
    small = colored_mnist(7, data_dir=data_dir, image_size=14)
    assert small.image_shape == (2, 14, 14)
    for large, domain in zip(dataset.domains, small.domains, strict=True):
        assert torch.equal(domain.images, large.images[:, :, 0:28:2, 0:28:2])
        assert torch.equal(domain.labels, large.labels)


@pytest.mark.parametrize("image_size", [0, 7, 13, 27, 32, -28])
def test_other_sizes_raise(data_dir: Path, image_size: int) -> None:
    with pytest.raises(DomainwiseError, match=f"image_size must be 28 or 14 pixels, got {image_size}$"):
        colored_mnist(7, data_dir=data_dir, image_size=image_size)


@needs_mnist
def test_real_digits_have_the_expected_rates() -> None:
    dataset = colored_mnist(3, data_dir=REAL_DATA)
    images, numbers = load_digits(REAL_DATA)
    shuffled = np.random.default_rng(3).permutation(70_000)
    assert [len(domain) for domain in dataset.domains] == [23_334, 23_333, 23_333]
    for index, domain in enumerate(dataset.domains):
        members = torch.from_numpy(shuffled[index::3])
        assert torch.equal(domain.images.amax(1), images[members])
        assert_rate(domain.labels == (numbers[members] < 5), 0.75)
        assert_rate(colours(domain) == domain.labels, AGREEMENT[domain.name])
