"""Results of recipes: the figures of Tables 3 and 6 to 8, and Figure 1 with several hyperparameter draws."""

from pathlib import Path
from typing import Any

import pytest

from domainwise.reproduction.comparison import Comparison
from domainwise.reproduction.plan import plan_recipe
from domainwise.reproduction.recipe import find_scale, load_recipes
from domainwise.reproduction.results import build_result, plot_accuracy_by_setting
from domainwise.reproduction.smoke_data import write_smoke_data
from run_folders import write_run


def test_varied_rows_become_a_curve_and_others_level_lines() -> None:
    recipe = load_recipes()["table_7"]
    comparisons = [
        Comparison(row.name, "pacs", 50.0 + 2 * place, None, 1, 80.0 + place, 0.5)
        for place, row in enumerate(recipe.rows)
    ]
    ours, paper = plot_accuracy_by_setting(recipe, comparisons).axes
    assert ours.get_title() == "pacs, ours"
    assert _points(ours) == [(0.001, 58.0), (0.01, 56.0), (0.1, 54.0)]
    assert _points(paper) == [(0.001, 84.0), (0.01, 83.0), (0.1, 82.0)]
    levels = {line.get_label(): line.get_ydata()[0] for line in ours.lines if line.get_linestyle() == "--"}
    assert levels == {"ERM": 50.0, "AT": 52.0}
    assert ours.get_xscale() == "log"
    assert ours.get_ylim()[1] - ours.get_ylim()[0] == pytest.approx(paper.get_ylim()[1] - paper.get_ylim()[0])


def test_no_axis_extends_below_zero() -> None:
    recipe = load_recipes()["table_7"]
    comparisons = [
        Comparison(row.name, "pacs", 10.0, None, 1, 20.0 + 10 * place, 0.5) for place, row in enumerate(recipe.rows)
    ]
    ours, paper = plot_accuracy_by_setting(recipe, comparisons).axes
    assert ours.get_ylim()[0] == 0.0
    assert paper.get_ylim()[1] > 60


def _points(panel: Any) -> list[tuple[float, float]]:
    (curve,) = (line for line in panel.lines if line.get_marker() == "o")
    return list(zip(*(values.tolist() for values in curve.get_data()), strict=True))


def test_figure_1_selects_among_several_draws(tmp_path: Path) -> None:
    data = write_smoke_data(tmp_path / "data")
    scale = find_scale("smoke", draws=2)
    plan = plan_recipe(load_recipes()["figure_1"], scale, tmp_path / "figure_1", tmp_path / "runs", data_dir=data)
    for run, config in plan.runs.items():
        (tested,) = run.test_domains
        write_run(
            run.folder,
            run.algorithm,
            tested,
            (0.1, 0.6 if run.draw else 0.9),
            draw=run.draw,
            training=0.8 + run.draw / 10,
            hparams=config.hparams,
            dataset="pacs",
            domains=(tested, "cartoon", "photo", "sketch"),
        )
    assert {run.draw for run in plan.runs} == {0, 1}
    (panel,) = build_result(plan).figures["accuracy_by_radius_pacs"].axes
    curves = {line.get_label(): line.get_ydata() for line in panel.lines}
    assert set(curves) == {"ERM (n = 1)", "AT (n = 1)", "UAT (n = 1)"}
    assert all(value == 0.6 for curve in curves.values() for value in curve)
