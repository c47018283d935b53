"""The table of accuracy against an unseen shift, from run folders written by hand."""

from pathlib import Path

import pytest

from domainwise.reproduction.demo import build_demo
from domainwise.reproduction.plan import RecipePlan, RowPlan
from domainwise.reproduction.recipe import find_scale
from domainwise.reproduction.shift import summarize_shifts, tabulate_selected, tabulate_shifts
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


THREE_SEEDS = {
    "erm": [(0.5, 0.5, 0.1)],
    "mat, epsilon 0.2": [(0.8, 0.6, 0.2), (0.6, 0.7, 0.4), (0.5, 0.5, 0.3)],
    "mat, epsilon 0.5": [(0.9, 0.2, 0.1), (0.5, 0.4, 0.1), (0.6, 0.3, 0.1)],
    "mat, paper, epsilon 0.5": [(0.9, 0.9, 0.1)],
}


def test_means_over_seeds_and_the_radius_selected_most_often(tmp_path: Path) -> None:
    summaries = summarize_shifts(plan(tmp_path, THREE_SEEDS))
    # The paper's solver is a method of its own and does not compete with ours.
    assert [each.is_selected for each in summaries] == [True, False, True, True]
    assert [each.selected_in for each in summaries] == [(0,), (1,), (0, 2), (0,)]
    assert summaries[1].loss == pytest.approx(0.3)
    assert summaries[1].holdout == pytest.approx(1.9 / 3)
    assert {shift: each.mean for shift, each in summaries[1].accuracy.items()} == {0.0: 1.0, 12.0: pytest.approx(0.6)}
    assert summaries[2].accuracy[12.0].mean == pytest.approx(0.3)


def test_each_seed_reports_the_radius_selected_in_it(tmp_path: Path) -> None:
    recipe_plan = plan(tmp_path, THREE_SEEDS)
    table = tabulate_selected(recipe_plan, summarize_shifts(recipe_plan))
    assert table.header == ("method", "radii", "shift 0", "shift 12")
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["mat"][0] == "0.5 0.2 0.5"
    # .2, .7 and .3: the accuracies at the radii that were selected.
    assert rows["mat"][2].startswith("0.400 ± ")
    assert rows["erm"] == ("", "1.000", "0.500")
    assert rows["mat, paper"][0] == "0.5"


def test_the_smaller_radius_is_selected_on_a_tie(tmp_path: Path) -> None:
    tie = {"uat, epsilon 0.2": [(0.9, 0.1, 0.1)], "uat, epsilon 0.5": [(0.9, 0.9, 0.1)]}
    assert [each.is_selected for each in summarize_shifts(plan(tmp_path, tie))] == [True, False]


def test_the_table_has_one_row_per_method_and_radius(tmp_path: Path) -> None:
    summaries = summarize_shifts(plan(tmp_path, {"erm": [(0.5, 0.25, 0.1)], "at, epsilon 2": [(0.5, 0.75, 0.1)]}))
    table = tabulate_shifts(summaries, "title", "training_domain")
    assert table.header == ("method", "radius", "loss", "holdout", "shift 0", "shift 12")
    assert table.rows == (
        ("erm *", "", "0.100", "0.500", "1.000", "0.250"),
        ("at *", "2", "0.100", "0.500", "1.000", "0.750"),
    )


def test_without_finished_runs_there_is_no_table(tmp_path: Path) -> None:
    assert summarize_shifts(plan(tmp_path, {})) == []
