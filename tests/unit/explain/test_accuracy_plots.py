"""Plots of accuracy against a setting: curves, bands, level lines, and how many runs are behind them."""

import polars as pl
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from domainwise.explain.plots.accuracy import (
    plot_accuracy,
    plot_accuracy_by_epsilon,
    plot_differences,
    plot_robustness,
)
from domainwise.selection.verdicts import judge_differences

COLORS = {"A": "C0", "B": "C1"}


def test_a_series_is_a_curve_with_a_band_or_a_level_line() -> None:
    points = pl.DataFrame(
        [("A", 1.0, 0.7, 0.1), ("A", 0.1, 0.6, None), ("B", None, 0.5, 0.05), ("C", 1.0, 0.9, 0.1)],
        schema=["label", "rank", "mean", "error"],
        orient="row",
    )
    panel = Figure().subplots()
    plot_accuracy(panel, points, "rank", COLORS, ticks=[0.1, 1.0])
    lines = {line.get_label(): line for line in panel.lines}
    assert set(lines) == {"A", "B"}
    assert list(lines["A"].get_xdata()) == [0.1, 1.0]
    assert list(lines["A"].get_ydata()) == [0.6, 0.7]
    assert list(lines["B"].get_ydata()) == [0.5, 0.5]
    (band,) = (each for each in panel.collections if isinstance(each, PolyCollection))
    (path,) = band.get_paths()
    assert {(round(x, 3), round(y, 3)) for x, y in path.vertices} == {(0.1, 0.6), (1.0, 0.6), (1.0, 0.8)}
    assert [label.get_text() for label in panel.get_xticklabels()] == ["0.1", "1"]
    assert panel.get_xscale() == "linear"


def test_errors_and_counts_are_optional_and_styles_are_kept() -> None:
    points = pl.DataFrame({"label": ["A", "A", "B", "B"], "shift": [0, 4, 0, 4], "mean": [0.9, 0.8, 0.7, 0.6]})
    panel = Figure().subplots()
    plot_accuracy(panel, points, "shift", COLORS, dashed=("B",))
    assert [line.get_linestyle() for line in panel.lines] == ["-", "--"]
    assert [line.get_color() for line in panel.lines] == ["C0", "C1"]


def test_the_error_of_a_single_point_is_a_line() -> None:
    points = pl.DataFrame({"label": ["A"], "epsilon": [1.0], "mean": [0.5], "error": [0.1]})
    panel = Figure().subplots()
    plot_accuracy(panel, points, "epsilon", COLORS)
    (bar,) = panel.collections[-1].get_paths()
    assert bar.vertices.ravel().tolist() == pytest.approx([1.0, 0.4, 1.0, 0.6])


def test_a_logarithmic_axis_leaves_zero_out() -> None:
    points = pl.DataFrame({"label": ["A", "A"], "epsilon": [0.0, 1.0], "mean": [0.9, 0.8]})
    panel = Figure().subplots()
    plot_accuracy(panel, points, "epsilon", COLORS, is_log=True)
    assert list(panel.lines[0].get_xdata()) == [1.0]


def attacks_on(domains: list[str]) -> pl.DataFrame:
    return pl.DataFrame(
        [
            ("erm", domain, attack, norm, epsilon, 0.5, 100)
            for attack, norm, epsilons in (
                ("sample", "l2", (0.0, 0.5)),
                ("pgd", "linf", (0.0, 4 / 255)),
                ("apgd", "linf", (0.0, 4 / 255)),
                ("mine", None, (None,)),
            )
            for domain in domains
            for epsilon in epsilons
        ],
        schema=["label", "domain", "attack", "norm", "epsilon", "accuracy", "images"],
        orient="row",
    )


def test_each_attack_and_norm_has_a_panel_in_its_unit() -> None:
    figure = plot_robustness(attacks_on(["art"]))
    panels = [panel for panel in figure.axes if panel.axison]
    assert [panel.get_title() for panel in panels] == [
        "art: one perturbation per sample",
        "art: PGD",
        "art: APGD",
        "art: mine",
    ]
    assert [panel.get_xlabel() for panel in panels] == [
        "l2 radius of the attack",
        *["linf radius of the attack, in 1/255"] * 2,
        "",
    ]
    assert [list(panel.lines[0].get_xdata()) for panel in panels[:3]] == [[0, 0.5], [0, 4], [0, 4]]
    # Without an epsilon, a level line.
    assert list(panels[3].lines[0].get_ydata()) == [0.5, 0.5]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["erm (n = 1)"]


def test_several_domains_are_columns() -> None:
    figure = plot_robustness(attacks_on(["art", "sketch"]))
    assert [panel.get_title() for panel in figure.axes][:3] == [
        "art: one perturbation per sample",
        "sketch: one perturbation per sample",
        "art: PGD",
    ]


@pytest.fixture
def frame() -> pl.DataFrame:
    rows = [
        (method, epsilon, trial, "sketch", accuracy)
        for method, epsilon, accuracies in (
            ("erm", None, (0.5, 0.5, 0.53)),
            ("mat", 0.1, (0.6, 0.62, 0.58)),
            ("mat", 1.0, (0.7, 0.74, 0.66)),
        )
        for trial, accuracy in enumerate(accuracies)
    ]
    return pl.DataFrame(rows, schema=["method", "epsilon", "trial", "domain", "accuracy"], orient="row")


def test_figure_1_has_a_curve_per_method_and_a_level_line_without_epsilon(frame: pl.DataFrame) -> None:
    figure = plot_accuracy_by_epsilon(frame)
    figure.draw_without_rendering()
    (panel,) = figure.axes
    lines = {str(line.get_label()): line for line in panel.lines}
    assert set(lines) == {"MAT (n = 3)", "ERM (n = 3)"}
    assert list(lines["MAT (n = 3)"].get_xdata()) == [0.1, 1.0]
    assert list(lines["MAT (n = 3)"].get_ydata()) == pytest.approx([0.6, 0.7])
    assert list(lines["ERM (n = 3)"].get_ydata()) == pytest.approx([0.51, 0.51])
    assert panel.get_xscale() == "log"


def test_a_curve_with_uneven_trials_says_so(frame: pl.DataFrame) -> None:
    more = pl.DataFrame([("mat", 5.0, 0, "sketch", 0.4)], schema=frame.columns, orient="row")
    (panel,) = plot_accuracy_by_epsilon(pl.concat([frame, more], how="vertical_relaxed")).axes
    assert {str(line.get_label()) for line in panel.lines} == {"MAT (n = 1 to 3)", "ERM (n = 3)"}


def test_differences_are_sorted_and_colored_by_verdict() -> None:
    differences = {
        "clearly better": [2.1, 3.0, 1.8, 2.6, 2.9, 2.2],
        "the same": [0.1, -0.1, 0.2, -0.2, 0.0, 0.1],
        "one trial": [1.0],
        "no trial": [],
    }
    figure = plot_differences(judge_differences(differences, margin=0.75), "difference in accuracy")
    (axes,) = figure.axes
    assert axes.get_xlabel() == "difference in accuracy, points\nhollow: no interval yet"
    assert [text.get_text() for text in axes.get_yticklabels()] == [
        "no trial",
        "the same",
        "one trial",
        "clearly better",
    ]
    (band,) = axes.patches
    assert band.get_extents().transformed(axes.transData.inverted()).intervalx.tolist() == pytest.approx([-0.75, 0.75])
    zero, *lines = axes.get_lines()
    intervals = {round(line.get_ydata()[0]): line for line in lines if len(line.get_ydata()) == 2}
    points = {round(line.get_ydata()[0]): line for line in lines if len(line.get_ydata()) == 1}
    assert zero.get_xdata() == [0, 0]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["holds", "no practical difference", "inconclusive"]
    assert {place: line.get_color() for place, line in intervals.items()} == {1: "C0", 3: "C2"}
    assert {place: line.get_fillstyle() for place, line in points.items()} == {1: "full", 2: "none", 3: "full"}
