"""The few things that all drawings are made of."""

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
def test_ticks_are_round_numbers_within(low: float, high: float, expected: list[float]) -> None:
    assert svg.ticks(low, high, 6) == pytest.approx(expected)


@pytest.mark.parametrize("most", [3, 5, 7])
def test_ticks_are_never_too_many_nor_too_few(most: int) -> None:
    for low in (0, 0.3, 7, 12.34, 99):
        for width in (1e-3, 0.7, 1, 3.3, 42, 1e4):
            assert 1 < len(svg.ticks(low, low + width, most)) <= most


def test_ticks_of_a_log_scale() -> None:
    assert svg.log_ticks(0.15, 9) == pytest.approx([0.2, 0.5, 1, 2, 5])
    assert svg.log_ticks(0.01, 1000) == pytest.approx([0.01, 0.1, 1, 10, 100, 1000])


def test_a_scale_goes_from_end_to_end() -> None:
    scale = svg.Scale(0, 10, 100, 0)
    assert [scale(value) for value in (0, 5, 10)] == [100, 50, 0]
    log = svg.Scale(0.1, 10, 0, 100, is_log=True)
    assert [log(value) for value in (0.1, 1, 10)] == pytest.approx([0, 50, 100])
    assert svg.Scale(3, 3, 0, 10)(3) == 5


def test_little_noise_does_not_fill_the_drawing() -> None:
    low, high = svg.spread([50, 50.1], at_least=8)
    assert high - low == pytest.approx(8)
    assert svg.spread([1, 99], at_least=8, limits=(0, 100)) == (0, 100)


def test_elements_are_escaped() -> None:
    made = svg.element("text", "a < b", class_='"x"', text_anchor="end", d=None, x=1.25)
    assert made == '<text class="&#34;x&#34;" text-anchor="end" x="1.2">a &lt; b</text>'
