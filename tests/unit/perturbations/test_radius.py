"""Radii as numbers, fractions and root mean squares per pixel."""

import math

import pytest

from domainwise import UniversalPerturbation
from domainwise.perturbations.radius import format_radius, parse_radius, split_radius


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.5, (0.5, "")),
        (2, (2.0, "")),
        (0, (0.0, "")),
        ("0.5", (0.5, "")),
        ("1e-1", (0.1, "")),
        ("51/255", (0.2, "")),
        ("25.5/255 rms", (0.1, "rms")),
        (" 51 / 255  rms ", (0.2, "rms")),
    ],
)
def test_a_radius_has_a_number_and_a_unit(value: float | str, expected: tuple[float, str]) -> None:
    number, unit = split_radius(value)
    assert (number, unit) == (pytest.approx(expected[0]), expected[1])


@pytest.mark.parametrize("value", ["", "rms", "2/0 rms", "two", "-1", "-1 rms", "nan", "1/2/3", "2/255 px", -0.1, True])
def test_a_radius_without_a_valid_number_is_an_error(value: float | str) -> None:
    with pytest.raises(ValueError, match=r"^radius must be a number of at least 0, such as 0.5 or '2/255 rms', got "):
        split_radius(value, "radius")


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (3, 224, 224)])
def test_rms_is_the_same_change_per_pixel_on_every_shape(shape: tuple[int, ...]) -> None:
    radius = parse_radius("2/255 rms", shape)
    assert radius / math.sqrt(math.prod(shape)) == pytest.approx(2 / 255)
    perturbation = UniversalPerturbation(shape, epsilon="2/255 rms")
    assert perturbation.epsilon == radius
    assert perturbation.delta().square().mean().sqrt().item() == pytest.approx(2 / 255, rel=1e-5)


def test_numbers_and_fractions_do_not_depend_on_the_shape() -> None:
    assert parse_radius(0.5, (3, 8, 8)) == parse_radius("0.5", (1, 2, 2)) == 0.5
    assert parse_radius("8/255", (3, 8, 8), "linf") == 8 / 255


def test_the_largest_entry_has_no_root_mean_square() -> None:
    with pytest.raises(
        ValueError,
        match=r"^epsilon must be a number without unit for norm='linf', got '2/255 rms'; rms needs norm='l2'$",
    ):
        UniversalPerturbation((3, 8, 8), epsilon="2/255 rms", norm="linf")


@pytest.mark.parametrize(
    ("value", "norm", "expected"),
    [
        (4 / 255, "linf", "4/255"),
        (0.0, "linf", "0"),
        (0.1, "linf", "0.1"),
        (0.5 / 255, "linf", "0.5/255"),
        (4 / 255, "l2", "0.0156863"),
        (1.0, "linf", "1"),
        (1.0, "l2", "1"),
    ],
)
def test_a_radius_is_formatted_in_the_unit_of_its_norm(value: float, norm: str, expected: str) -> None:
    assert format_radius(value, norm) == expected
