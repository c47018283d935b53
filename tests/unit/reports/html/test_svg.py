"""SVG elements, scales and ticks."""

import pytest

from domainwise.reports.html import svg


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 100, [0, 20, 40, 60, 80, 100]),
        (43.2, 61.9, [45, 50, 55, 60]),
        (0.012, 0.02, [0.012, 0.014, 0.016, 0.018, 0.02]),
        (0, 1999, [0, 500, 1000, 1500]),
        (5, 5, [5]),
    ],
)
def test_ticks_are_round_numbers_within_the_limits(low: float, high: float, expected: list[float]) -> None:
    assert svg.choose_ticks(low, high, 6) == pytest.approx(expected)


@pytest.mark.parametrize("max_count", [3, 5, 7])
def test_number_of_ticks(max_count: int) -> None:
    for low in (0, 0.3, 7, 12.34, 99):
        for width in (1e-3, 0.7, 1, 3.3, 42, 1e4):
            assert 1 < len(svg.choose_ticks(low, low + width, max_count)) <= max_count


def test_log_ticks() -> None:
    assert svg.choose_log_ticks(0.15, 9) == pytest.approx([0.2, 0.5, 1, 2, 5])
    assert svg.choose_log_ticks(0.01, 1000) == pytest.approx([0.01, 0.1, 1, 10, 100, 1000])


def test_scale_maps_limits_to_ends() -> None:
    scale = svg.Scale(0, 10, 100, 0)
    assert [scale(value) for value in (0, 5, 10)] == [100, 50, 0]
    log = svg.Scale(0.1, 10, 0, 100, is_log=True)
    assert [log(value) for value in (0.1, 1, 10)] == pytest.approx([0, 50, 100])
    assert svg.Scale(3, 3, 0, 10)(3) == 5


def test_axis_limits_have_a_minimum_width() -> None:
    low, high = svg.axis_limits([50, 50.1], min_width=8)
    assert high - low == pytest.approx(8)
    assert svg.axis_limits([1, 99], min_width=8, bounds=(0, 100)) == (0, 100)


def test_elements_are_escaped() -> None:
    made = svg.element("text", "a < b", class_='"x"', text_anchor="end", d=None, x=1.25)
    assert made == '<text class="&#34;x&#34;" text-anchor="end" x="1.2">a &lt; b</text>'
