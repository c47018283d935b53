"""Accuracy against what a table varies: which rows make a curve, and that ours and the paper's can be compared."""

from typing import Any

import pytest

from domainwise.reproduction.comparison import Compared
from domainwise.reproduction.recipe import recipes
from domainwise.reproduction.settings_figure import find_varied_settings, plot_accuracy_by_setting


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("table_7", {"mat, eta 0.1": 0.1, "mat, eta 0.01": 0.01, "mat, eta 0.001": 0.001}),
        ("table_8", {"ldat, rho 0.1": 0.1, "ldat, rho 0.01": 0.01}),
    ],
)
def test_what_a_table_varies(key: str, expected: dict[str, float]) -> None:
    assert {row: value for row, (_, value) in find_varied_settings(recipes()[key].rows).items()} == expected


def test_every_table_of_settings_varies_some() -> None:
    for recipe in recipes().values():
        if recipe.kind == "settings":
            assert len(find_varied_settings(recipe.rows)) > 1


def test_curves_levels_and_one_span() -> None:
    recipe = recipes()["table_7"]
    compared = [
        Compared(row.name, "pacs", 50.0 + 2 * place, None, 1, 80.0 + place, 0.5)
        for place, row in enumerate(recipe.rows)
    ]
    ours, paper = plot_accuracy_by_setting(recipe, compared).axes
    assert ours.get_title() == "pacs, ours"
    assert _points(ours) == [(0.001, 58.0), (0.01, 56.0), (0.1, 54.0)]
    assert _points(paper) == [(0.001, 84.0), (0.01, 83.0), (0.1, 82.0)]
    levels = {line.get_label(): line.get_ydata()[0] for line in ours.lines if line.get_linestyle() == "--"}
    assert levels == {"ERM": 50.0, "AT": 52.0}
    assert ours.get_xscale() == "log"
    assert ours.get_ylim()[1] - ours.get_ylim()[0] == pytest.approx(paper.get_ylim()[1] - paper.get_ylim()[0])


def test_no_axis_goes_below_zero() -> None:
    recipe = recipes()["table_7"]
    compared = [
        Compared(row.name, "pacs", 10.0, None, 1, 20.0 + 10 * place, 0.5) for place, row in enumerate(recipe.rows)
    ]
    ours, paper = plot_accuracy_by_setting(recipe, compared).axes
    assert ours.get_ylim()[0] == 0.0
    assert paper.get_ylim()[1] > 60


def _points(panel: Any) -> list[tuple[float, float]]:
    (curve,) = (line for line in panel.lines if line.get_marker() == "o")
    return list(zip(*(values.tolist() for values in curve.get_data()), strict=True))
