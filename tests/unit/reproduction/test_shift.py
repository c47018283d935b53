"""The table of accuracy against an unseen shift, from run folders written by hand."""

from pathlib import Path

import pytest

from domainwise.reproduction.demo import build_demo
from domainwise.reproduction.plan import RecipePlan, RowPlan
from domainwise.reproduction.recipe import find_scale
from domainwise.reproduction.shift import summarize_shifts, tabulate_shifts
from domainwise.storage.sweep_folder import PlannedRun
from domainwise.training import RunConfig
from run_folders import write_shift_run


def plan(folder: Path, runs: dict[str, list[tuple[float, float, float]]]) -> RecipePlan:
    """Write one run per row and seed with (holdout accuracy, accuracy at shift 12, loss)."""
    recipe = build_demo(radii=(0.2, 0.5, 2.0))
    rows = {row.name: row for row in recipe.rows}
    row_plans = []
    for name, seeds in runs.items():
        row = rows[name]
        planned = {}
        for trial, (holdout, shifted, loss) in enumerate(seeds):
            path = write_shift_run(folder / f"{name}-{trial}", row.algorithm, holdout, shifted, loss, trial=trial)
            run = PlannedRun(path, path.name, "silhouettes", row.algorithm, ("shift_0", "shift_12"), trial, 0)
            planned[run] = RunConfig(algorithm=row.algorithm, output=path)
        row_plans.append(RowPlan(row, "silhouettes", "training_domain", planned))
    return RecipePlan(recipe, find_scale("cpu"), folder, tuple(row_plans), {})


def test_means_over_seeds_and_the_radius_selected_by_training_domain_validation(tmp_path: Path) -> None:
    summaries = summarize_shifts(
        plan(
            tmp_path,
            {
                "erm": [(0.5, 0.5, 0.1)],
                "mat, epsilon 0.2": [(0.8, 0.6, 0.2), (0.6, 0.7, 0.4)],
                "mat, epsilon 0.5": [(0.9, 0.2, 0.1), (0.6, 0.4, 0.1)],
            },
        )
    )
    assert [each.is_selected for each in summaries] == [True, False, True]
    assert summaries[1].loss == pytest.approx(0.3)
    assert summaries[1].holdout == pytest.approx(0.7)
    assert {shift: each.mean for shift, each in summaries[1].accuracy.items()} == {0.0: 1.0, 12.0: pytest.approx(0.65)}
    assert summaries[1].accuracy[12.0].error == pytest.approx(0.05 / 2**0.5)
    assert summaries[2].accuracy[12.0].mean == pytest.approx(0.3)


def test_the_smaller_radius_is_selected_on_a_tie(tmp_path: Path) -> None:
    tie = {"uat, epsilon 0.2": [(0.9, 0.1, 0.1)], "uat, epsilon 0.5": [(0.9, 0.9, 0.1)]}
    assert [each.is_selected for each in summarize_shifts(plan(tmp_path, tie))] == [True, False]


def test_the_table_has_one_row_per_method_and_radius(tmp_path: Path) -> None:
    summaries = summarize_shifts(plan(tmp_path, {"erm": [(0.5, 0.25, 0.1)], "at, epsilon 2": [(0.5, 0.75, 0.1)]}))
    table = tabulate_shifts(summaries, "title")
    assert table.header == ("method", "radius", "loss", "holdout", "shift 0", "shift 12")
    assert table.rows == (
        ("erm *", "", "0.100", "0.500", "1.000", "0.250"),
        ("at *", "2", "0.100", "0.500", "1.000", "0.750"),
    )


def test_without_finished_runs_there_is_no_table(tmp_path: Path) -> None:
    assert summarize_shifts(plan(tmp_path, {})) == []
