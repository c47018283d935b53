"""Selected models, our means next to the paper's, and verdicts from paired runs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from domainwise.reproduction.comparison import (
    Comparison,
    compare_with_paper,
    judge_claims,
    judge_plan,
    list_failures,
    select_models,
    tabulate_comparisons,
    tabulate_verdicts,
)
from domainwise.reproduction.memory import StepCost, judge_step_costs
from domainwise.reproduction.plan import RecipePlan, RowPlan
from domainwise.reproduction.recipe import Block, Claim, Recipe, Row, load_scales
from domainwise.storage.run_folder import RunFolder
from domainwise.storage.sweep_folder import PlannedRun
from domainwise.training import RunConfig
from run_folders import write_run

RECIPE = Recipe(
    key="table_1",
    name="test",
    numbers=("Table 1",),
    about="AT and ERM",
    published=1,
    rows=(Row("erm", "erm"), Row("at", "at")),
    blocks=(Block(("pacs", "nico"), "training_domain"),),
    claims=(Claim("AT above ERM", "at", "erm"), Claim("ERM above AT on nico", "erm", "at", ("nico",))),
)


def frame(*rows: tuple[str, str, str, int, float]) -> pl.DataFrame:
    names = ("row", "dataset", "test_domain", "trial", "accuracy")
    unknown = {"training": None, "is_collapsed": None}
    lines: list[dict[str, Any]] = [
        {**dict(zip(names, row, strict=True)), **unknown, "run": "-".join(map(str, row[:4]))} for row in rows
    ]
    return pl.DataFrame(lines, schema_overrides={"training": pl.Float64, "is_collapsed": pl.Boolean})


def paired(differences: list[float], dataset: str = "pacs") -> pl.DataFrame:
    """Return one trial per difference in points, AT minus ERM."""
    rows = []
    for trial, difference in enumerate(differences):
        rows.append(("erm", dataset, "photo", trial, 0.5))
        rows.append(("at", dataset, "photo", trial, 0.5 + difference / 100))
    return frame(*rows)


def test_means_over_domains_then_over_trials() -> None:
    models = frame(
        ("erm", "pacs", "photo", 0, 0.6),
        ("erm", "pacs", "sketch", 0, 0.8),
        ("erm", "pacs", "photo", 1, 0.7),
        ("erm", "pacs", "sketch", 1, 0.9),
        ("at", "nico", "test", 0, 0.7),
    )
    erm, at = compare_with_paper(RECIPE, models)
    assert (erm.row, erm.dataset, erm.trials) == ("erm", "pacs", 2)
    # Means 70 and 80: 75, standard deviation 5 * sqrt(2), over the root of two.
    assert erm.ours == pytest.approx(75)
    assert erm.error == pytest.approx(5)
    assert (erm.paper, erm.paper_error) == (79.7, 0.0)
    assert erm.standardized_difference == pytest.approx((75 - 79.7) / 5)
    assert at.error is None
    # Only the paper's error is known, 2.2.
    assert at.standardized_difference == pytest.approx((70 - 68.2) / 2.2)


def test_without_standard_errors_the_difference_is_not_standardized() -> None:
    assert Comparison("mat", "pacs", 70.0, None, 1, 80.0, None).standardized_difference is None
    assert Comparison("mat", "pacs", 70.0, None, 1, 80.0, None).difference == -10
    assert Comparison("mat", "pacs", 70.0, 1.0, 3, None, None).standardized_difference is None


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([1.0, 2.0, 1.5, 2.5, 1.0, 3.0], "holds"),
        ([-1.0, -2.0, -1.5, -2.5, -1.0, -3.0], "does not hold"),
        ([0.2, -0.1, 0.1, -0.2, 0.0, 0.1], "no practical difference"),
        ([1.0, -2.0, 1.5, -2.5, 1.0, 3.0], "inconclusive"),
        ([5.0], "inconclusive"),
    ],
)
def test_the_verdict_follows_the_interval_over_trials(differences: list[float], verdict: str) -> None:
    first, _ = judge_claims(RECIPE, paired(differences))
    assert first.verdict == verdict
    assert f"points over {len(differences)} trial" in first.evidence


def test_the_margin_is_the_recipes() -> None:
    models = paired([0.2, -0.1, 0.1, -0.2, 0.0, 0.1])
    assert judge_claims(replace(RECIPE, margin=0.1), models)[0].verdict == "inconclusive"


def test_evidence() -> None:
    # The mean 2, a standard deviation of 1, and a t quantile of 6.2053 at 97.5 %, for two claims: 2 ± 3.5826.
    first, second = judge_claims(RECIPE, paired([1.0, 2.0, 3.0]))
    assert (
        first.evidence
        == "on pacs only: +2.0 [-1.6, +5.6] points over 3 trials, at ahead in 3; at least 4 trials needed"
    )
    assert first.judgement is not None
    assert (str(first.judgement.trials_needed), first.judgement.level) == ("at least 4", 0.025)
    assert second.evidence == "no trial with the same test domains of both finished"
    one = judge_claims(RECIPE, paired([5.0]))[0]
    assert (
        one.evidence
        == "on pacs only: +5.0 (too few trials) points over 1 trial, at ahead in 1; at least 2 trials needed"
    )
    hopeless = judge_claims(RECIPE, paired([40.0, -40.0, 30.0, -30.0] * 2))[0]
    assert hopeless.evidence.endswith("; more than 1000 trials needed")
    wide = judge_claims(RECIPE, paired([40.0, -40.0, 30.0, -30.0]))[0]
    assert wide.evidence.startswith("on pacs only: +0.0 (too few trials) points over 4 trials")
    decided = judge_claims(RECIPE, paired([1.0, 2.0, 1.5, 2.5, 1.0, 3.0]))[0]
    assert decided.evidence.endswith("points over 6 trials, at ahead in 6")
    assert " +0.0 [" in judge_claims(RECIPE, paired([-0.03, 0.02, -0.02]))[0].evidence


def test_looking_early_needs_more_trials() -> None:
    models = paired([1.0, 2.0, 1.5, 2.5, 1.0, 3.0])
    early = judge_claims(RECIPE, models, is_sequential=True)[0]
    assert early.verdict == "inconclusive"
    assert early.judgement is not None
    assert str(early.judgement.trials_needed) == "7 to 16"


def test_collapsed_and_failed_runs_leave_a_claim_open() -> None:
    models = paired([1.0, 2.0, 1.5, 2.5, 1.0, 3.0])
    bad = models.with_columns(is_collapsed=(pl.col("row") == "at") & (pl.col("trial") == 2))
    collapsed = judge_claims(RECIPE, bad)[0]
    assert collapsed.verdict == "inconclusive"
    assert collapsed.evidence.endswith(
        "at ahead in 6; runs are at chance level or failed in 1 of 6 trials: at on photo in trial 2 is at chance level"
    )
    run = PlannedRun(Path("run"), "run", "pacs from photo", "at", ("sketch",), 6, 0)
    failed = judge_claims(RECIPE, models, failures={"at": {run: "the loss is nan"}})[0]
    assert failed.verdict == "inconclusive"
    assert failed.evidence.endswith("1 of 7 trials: at on sketch in trial 6 failed (the loss is nan)")
    elsewhere = replace(run, dataset="vlcs")
    assert judge_claims(RECIPE, models, failures={"at": {elsewhere: ""}, "mat": {run: ""}})[0].verdict == "holds"


def test_failures_of_a_plan(tmp_path: Path) -> None:
    failed = plan(tmp_path, "training_domain", {("art", 0): True, ("art", 1): False})
    (run,) = (run for run in failed.runs if run.trial == 1)
    RunFolder(run.folder).write_failure("the loss is nan")
    assert list_failures(failed) == {"erm": {run: "the loss is nan"}}


def test_the_failed_runs_of_a_plan_are_part_of_its_verdicts(tmp_path: Path) -> None:
    row_plans = []
    for row, accuracy in (("erm", 0.5), ("at", 0.6)):
        runs = {}
        for trial in range(7):
            accuracies = (accuracy + 0.01 * (trial % 2) * (row == "at"),)
            output = write_run(
                tmp_path / f"{row}-{trial}", row, "art", accuracies, trial=trial, dataset="pacs", is_done=trial < 6
            )
            config = RunConfig("pacs", row, test_domains=("art",), trial_seed=trial, output=output)
            runs[PlannedRun(output, output.name, "pacs", row, ("art",), trial, 0)] = config
        row_plans.append(RowPlan(Row(row, row), "pacs", "training_domain", runs))
    planned = RecipePlan(RECIPE, load_scales()["cpu"], tmp_path, tuple(row_plans), {})
    assert judge_plan(planned, select_models(planned))[0].verdict == "holds"
    RunFolder(tmp_path / "at-6").write_failure("the loss is nan")
    first = judge_plan(planned, select_models(planned))[0]
    assert first.verdict == "inconclusive"
    assert first.evidence.endswith("1 of 7 trials: at on art in trial 6 failed (the loss is nan)")


def test_domains_of_a_trial_are_one_observation() -> None:
    domains = frame(*((row, "pacs", name, 0, level) for name in "abcdef" for row, level in (("erm", 0.5), ("at", 0.6))))
    alone = judge_claims(RECIPE, domains)[0]
    assert alone.verdict == "inconclusive"
    assert alone.evidence.startswith("on pacs only: +10.0 (too few trials) points over 1 trial")


def test_a_claim_about_an_average_needs_all_its_datasets() -> None:
    ahead = paired([1.0, 2.0, 1.5, 2.5, 1.0, 3.0])
    assert judge_claims(RECIPE, ahead)[0].verdict == "holds"
    assert judge_claims(RECIPE, ahead)[0].evidence.startswith("on pacs only: +1.8 ")
    average = replace(RECIPE, claims=(Claim("AT above ERM on average", "at", "erm", needs_all=True),))
    assert judge_claims(average, ahead)[0].verdict == "inconclusive"
    assert judge_claims(average, ahead)[0].evidence.startswith("on pacs only: +1.8 ")
    both = judge_claims(average, pl.concat([ahead, paired([3.0, 4.0, 3.5, 4.5, 3.0], "nico")]))[0]
    assert both.verdict == "holds"
    # The sixth trial has one dataset only.
    assert both.evidence.startswith("+2.6 [")
    assert "over 5 trials" in both.evidence


def test_claims_that_no_run_can_decide_leave_the_error_level_to_the_others() -> None:
    models = paired([1.0, 2.0, 3.0])
    alone, other = judge_claims(RECIPE, models, RECIPE.claims[:1])
    assert alone.judgement is not None
    assert alone.judgement.level == 0.05
    assert (other.verdict, other.judgement) == ("inconclusive", None)
    assert other.evidence == "the runs that would decide it are not planned"
    left_open = judge_claims(RECIPE, models, RECIPE.claims[1:])[0]
    assert left_open.evidence.endswith("not planned; on pacs +2.0 points over 3 trials")


def test_a_claim_about_one_dataset_uses_only_that() -> None:
    good, bad = [3.0, 4.0, 5.0, 3.0, 4.0, 5.0], [-3.0, -4.0, -5.0, -3.0, -4.0, -5.5]
    models = pl.concat([paired(good), paired(bad, "nico")])
    both, nico = judge_claims(RECIPE, models)
    assert both.verdict == "no practical difference"
    assert nico.verdict == "holds"


def test_tables_of_comparisons_and_verdicts() -> None:
    models = pl.concat([paired([1.0, 2.0]), paired([1.0], "nico")])
    table = tabulate_comparisons(compare_with_paper(RECIPE, models), "title")
    assert table.header == ("", "pacs", "paper", "difference", "nico", "paper", "difference")
    assert table.rows[1][:4] == ("at", "51.5 ± 0.5", "81.5 ± 0.4", "-30.0 (-46.9 SE)")
    assert table.rows[1][4:] == ("51.0", "68.2 ± 2.2", "-17.2 (-7.8 of the paper's SE)")
    verdicts = tabulate_verdicts(judge_claims(RECIPE, models))
    assert verdicts.rows[0][0] == "AT above ERM"
    assert "97.5 % confidence intervals over trials, so that all 2 verdicts together" in verdicts.notes[0]


def test_the_papers_averages_need_all_their_datasets() -> None:
    names = ("pacs", "office_home", "vlcs", "nico")
    all_four = frame(*(("at", name, "a", trial, 0.5 + 0.1 * trial) for name in names for trial in (0, 1)))
    average = compare_with_paper(RECIPE, all_four)[-1]
    assert (average.row, average.dataset, average.paper, average.trials) == ("at", "avg", 71.2, 2)
    assert average.ours == pytest.approx(55)
    assert average.error == pytest.approx(5)
    three = all_four.filter(pl.col("dataset") != "vlcs")
    assert "avg" not in [each.dataset for each in compare_with_paper(RECIPE, three)]
    one_trial = all_four.filter((pl.col("dataset") != "vlcs") | (pl.col("trial") == 0))
    assert compare_with_paper(RECIPE, one_trial)[-1].ours == pytest.approx(50)


def test_models_selected_on_the_test_domain_show_their_training_accuracy() -> None:
    models = paired([1.0, 2.0]).with_columns(training=pl.when(pl.col("row") == "at").then(pl.lit(0.4)))
    table = tabulate_comparisons(compare_with_paper(RECIPE, models), "title")
    assert table.header == ("", "pacs", "in training", "paper", "difference")
    assert [row[2] for row in table.rows] == ["", "40.0"]


def test_memory_and_time_are_judged_by_the_measurements() -> None:
    erm, mat = StepCost("erm", 0, 100, 1.0), StepCost("mat", 50, 200, 1.5)
    less, same = judge_step_costs([erm, mat, StepCost("ldat", 5, 150, 1.6)])
    assert (less.verdict, same.verdict) == ("holds", "holds")
    less, same = judge_step_costs([erm, mat, StepCost("ldat", 5, 250, 1.9)])
    assert (less.verdict, same.verdict) == ("does not hold", "does not hold")


ERM = Row("erm", "erm")


def plan(folder: Path, selection: str, is_done: dict[tuple[str, int], bool]) -> RecipePlan:
    runs = {}
    for (domain, trial), done in is_done.items():
        output = write_run(folder / f"{domain}-{trial}", "erm", domain, (0.2, 0.6), trial=trial, is_done=done)
        config = RunConfig("pacs", "erm", test_domains=(domain,), trial_seed=trial, output=output)
        runs[PlannedRun(output, output.name, "toy", "erm", (domain,), trial, 0)] = config
    return RecipePlan(RECIPE, load_scales()["cpu"], folder, (RowPlan(ERM, "toy", selection, runs),), {})


def test_a_trial_counts_once_all_its_domains_are_done(tmp_path: Path) -> None:
    done = {("art", 0): True, ("cartoon", 0): True, ("art", 1): True, ("cartoon", 1): False}
    models = select_models(plan(tmp_path, "training_domain", done))
    assert models.select("test_domain", "trial").sort("test_domain").rows() == [("art", 0), ("cartoon", 0)]
    assert models["accuracy"].to_list() == [0.6, 0.6]
    assert models["training"].to_list() == [None, None]
    assert {Path(run).name for run in models["run"]} == {"art-0", "cartoon-0"}


def test_selection_on_the_test_domain_reports_the_training_accuracy(tmp_path: Path) -> None:
    models = select_models(plan(tmp_path, "test_domain", {("art", 0): True}))
    assert models["training"].to_list() == [0.9]


def test_without_finished_runs_nothing_is_selected(tmp_path: Path) -> None:
    assert select_models(plan(tmp_path, "training_domain", {("art", 0): False})).is_empty()
