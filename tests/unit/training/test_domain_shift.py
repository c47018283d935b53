"""Diversity and correlation shift: against known integrals, and on images whose domains differ in a known way."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from domainwise.data import Dataset, Domain, silhouettes, silhouettes_spurious
from domainwise.errors import DomainwiseError
from domainwise.training import ShiftReport, measure_domain_shift
from domainwise.training.domain_shift import describe_shift, estimate_shift

COUNT = 600
IS_OWN = torch.arange(2 * COUNT) < COUNT
HALVES = torch.arange(2 * COUNT) % 2


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def draw_normal(generator: torch.Generator, first_coordinate: Tensor | float) -> Tensor:
    """Standard normal samples in the plane, moved along the first axis."""
    z = torch.randn(2 * COUNT, 2, generator=generator)
    z[:, 0] += first_coordinate
    return z


def flip(labels: Tensor, own: float, other: float, generator: torch.Generator) -> Tensor:
    """Return labels that agree with the given ones with one probability per side."""
    agree = torch.rand(len(labels), generator=generator) < torch.where(IS_OWN, own, other)
    return torch.where(agree, labels, 1 - labels)


def test_the_same_distribution_has_no_shift(generator: torch.Generator) -> None:
    diversity, correlation = estimate_shift(draw_normal(generator, 0.0), HALVES, IS_OWN, generator)
    assert diversity < 0.02
    assert abs(correlation) < 0.05


def test_many_classes_in_few_samples_are_no_shift(generator: torch.Generator) -> None:
    labels = torch.arange(2 * COUNT) % 20
    _, correlation = estimate_shift(draw_normal(generator, labels.float()), labels, IS_OWN, generator)
    assert abs(correlation) < 0.1


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_diversity_is_the_mass_that_only_one_side_has(share: float, generator: torch.Generator) -> None:
    """Both sides share a mode, and each has a share of its mass in a mode of its own: the integral is that share."""
    is_apart = torch.arange(2 * COUNT) % 100 < 100 * share
    z = draw_normal(generator, 12.0 * is_apart * torch.where(IS_OWN, 1, -1))
    diversity, correlation = estimate_shift(z, HALVES, IS_OWN, generator)
    assert diversity == pytest.approx(share, abs=0.05)
    assert abs(correlation) < 0.05


def test_few_samples_need_few_dimensions(generator: torch.Generator) -> None:
    """Why z has two dimensions and not OoD-Bench's eight: half of the mass is apart, with 300 samples per side."""
    order = torch.cat([torch.arange(300), torch.arange(COUNT, COUNT + 300)])
    noise = torch.randn(len(order), 8, generator=generator)
    noise[:, 0] += 12.0 * (order % 4 < 2) * torch.where(IS_OWN[order], 1, -1)
    few, _ = estimate_shift(noise[:, :2], HALVES[order], IS_OWN[order], generator)
    many, _ = estimate_shift(noise, HALVES[order], IS_OWN[order], generator)
    assert few == pytest.approx(0.5, abs=0.1)
    assert many < 0.2


def test_a_density_vanishes_below_two_percent_of_the_sum(generator: torch.Generator) -> None:
    """For N(0, 1) and N(2, 1) the densities' ratio is exp(2 z - 2), which gives the region and the integral."""
    edge = 1 + math.log(0.98 / 0.02) / 2
    tails = [0.5 * math.erfc((edge - mean) / math.sqrt(2)) for mean in (0, 2)]
    diversity, correlation = estimate_shift(draw_normal(generator, 2.0 * IS_OWN), HALVES, IS_OWN, generator)
    assert diversity == pytest.approx(tails[1] - tails[0], abs=0.06)
    assert abs(correlation) < 0.05


@pytest.mark.parametrize(("own", "other"), [(0.85, 0.1), (0.9, 0.5), (0.8, 0.8)])
def test_correlation_is_the_difference_of_the_rules(own: float, other: float, generator: torch.Generator) -> None:
    """Two modes of equal mass, where the classes have probability `own` or `other`: the integral is the difference."""
    modes = flip(HALVES, own, other, generator)
    diversity, correlation = estimate_shift(draw_normal(generator, 12.0 * modes), HALVES, IS_OWN, generator)
    assert diversity < 0.02
    assert correlation == pytest.approx(own - other, abs=0.08)


def test_class_frequencies_are_no_shift(generator: torch.Generator) -> None:
    labels = (torch.rand(2 * COUNT, generator=generator) < torch.where(IS_OWN, 0.9, 0.2)).long()
    diversity, correlation = estimate_shift(draw_normal(generator, 3.0 * labels), labels, IS_OWN, generator)
    assert diversity < 0.02
    assert abs(correlation) < 0.05


def split(dataset: Dataset, name: str, parts: int) -> Dataset:
    """Return a dataset whose domains are random parts of one domain."""
    domain = dataset.domains[dataset.index(name)]
    order = torch.randperm(len(domain), generator=torch.Generator().manual_seed(0))
    domains = tuple(
        Domain(f"part_{number}", domain.images[indices], domain.labels[indices])
        for number, indices in enumerate(order.chunk(parts))
    )
    return dataclasses.replace(dataset, domains=domains)


def pick(dataset: Dataset, *names: str) -> Dataset:
    return dataclasses.replace(dataset, domains=tuple(dataset.domains[dataset.index(name)] for name in names))


def measure(dataset: Dataset, repeats: int = 1, **settings: object) -> ShiftReport:
    return measure_domain_shift(dataset, device="cpu", repeats=repeats, max_images=400, **settings)


def test_parts_of_one_domain_have_no_shift() -> None:
    report = measure(split(silhouettes(train_count=500, test_count=4, shifts=(8,)), "style_0", 2))
    assert report.diversity < 0.03
    assert report.correlation < 0.05
    assert report.meaning.startswith("no notable shift")


def test_domains_of_different_styles_are_diverse() -> None:
    """Each domain adds its own pattern; the animals do not change."""
    report = measure(silhouettes(train_count=200, test_count=200, shifts=(8,)))
    assert all(each.diversity > 0.95 and each.correlation < 0.05 for each in report.left_out)
    assert all(each.accuracy > 0.95 for each in report.left_out)
    test = report.left_out[2]
    assert (test.domain, test.others) == ("shift_8", ("style_0", "style_1")), "test domains train nothing"
    assert [(each.domain, *each.others) for each in report.pairs] == [
        ("style_0", "style_1"),
        ("style_0", "shift_8"),
        ("style_1", "shift_8"),
    ]


def test_a_reversed_background_is_a_correlation_shift() -> None:
    """`flipped` has the backgrounds of `grass` and `desert` together, but with the other animal on each."""
    report = measure(silhouettes_spurious(train_count=300, test_count=300))
    shifts = {each.domain: each for each in report.left_out}
    assert shifts["flipped"].diversity < 0.05
    assert shifts["flipped"].correlation > 0.5
    assert 0.15 < shifts["balanced"].correlation < shifts["flipped"].correlation
    assert "the same features go with other labels" in shifts["flipped"].meaning
    assert shifts["grass"].diversity > 0.9


def test_the_seed_determines_everything() -> None:
    dataset = pick(silhouettes_spurious(train_count=100, test_count=100), "grass", "flipped")
    state = torch.get_rng_state()
    first, again, other = measure(dataset), measure(dataset), measure(dataset, seed=1)
    assert first == again
    assert first.left_out != other.left_out
    assert torch.equal(torch.get_rng_state(), state)
    assert first.left_out[0].diversity_std is None
    assert measure(dataset, repeats=2).left_out[0].diversity_std is not None


def test_features_of_a_network() -> None:
    dataset = pick(silhouettes(train_count=60, test_count=4), "style_0", "style_1")
    report = measure(dataset, network="squeezenet1_1", weights="none")
    assert report.features == "frozen squeezenet1_1 with random weights"
    assert report.left_out[0].accuracy > 0.6
    assert measure(dataset).features.endswith("(no network)")


def test_rare_classes_and_few_images_are_reported() -> None:
    dataset = pick(silhouettes(train_count=60, test_count=4), "style_0", "style_1")
    first, second = dataset.domains
    kept = (second.labels == 0) | (torch.arange(len(second)) < 4)
    domains = first, Domain(second.name, second.images[kept], second.labels[kept])
    report = measure(dataclasses.replace(dataset, domains=domains))
    assert "style_0 and style_1: classes with fewer than 4 images are left out: camel" in report.caveats
    assert "style_0 and style_1: only 30 images on one side; the numbers are rough" in report.caveats
    assert report.left_out[0].images == (30, 30)


def test_what_cannot_be_measured() -> None:
    dataset = silhouettes(train_count=20, test_count=4)
    with pytest.raises(DomainwiseError, match="has one domain; a shift needs at least two"):
        measure(pick(dataset, "style_0"))
    first, second = dataset.domains[:2]
    apart = tuple(
        Domain(each.name, each.images[each.labels == label], each.labels[each.labels == label])
        for label, each in enumerate((first, second))
    )
    with pytest.raises(DomainwiseError, match="style_0 and style_1 share no class with at least 4 images"):
        measure(dataclasses.replace(dataset, domains=apart))
    with pytest.raises(DomainwiseError, match="repeats must be at least 1, got 0"):
        measure(dataset, repeats=0)
    with pytest.raises(DomainwiseError, match="pass the network with --network"):
        measure(dataset, weights="weights/mine.pth")


@pytest.mark.parametrize(
    ("diversity", "correlation", "meaning"),
    [
        (0.02, 0.01, "no notable shift: styles are alike, labels follow the same rule"),
        (0.5, 0.01, "styles differ, labels follow the same rule"),
        (0.02, 0.5, "styles are alike, the same features go with other labels"),
        (0.4, 0.2, "styles differ, some features go with other labels"),
        (0.97, 0.0, "styles barely overlap, so whether labels follow the same rule cannot be measured"),
    ],
)
def test_meaning(diversity: float, correlation: float, meaning: str) -> None:
    assert describe_shift(diversity, correlation) == meaning
