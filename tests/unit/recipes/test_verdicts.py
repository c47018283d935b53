"""Ours beside the paper's, and verdicts that follow from the pairs alone."""

from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from domainwise.reproduction.comparison import Compared, beside_the_paper
from domainwise.reproduction.memory import Cost, judged_costs
from domainwise.reproduction.recipe import Block, Claim, Recipe, Row
from domainwise.reproduction.reproduce import accuracies, verdicts
from domainwise.reproduction.verdict import judged

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
    made: list[dict[str, Any]] = [
        {**dict(zip(names, row, strict=True)), "training": None, "run": "-".join(map(str, row[:4]))} for row in rows
    ]
    return pl.DataFrame(made, schema_overrides={"training": pl.Float64})


def paired(differences: list[float], dataset: str = "pacs") -> pl.DataFrame:
    """A trial a difference in points, AT minus ERM."""
    rows = []
    for trial, difference in enumerate(differences):
        rows.append(("erm", dataset, "photo", trial, 0.5))
        rows.append(("at", dataset, "photo", trial, 0.5 + difference / 100))
    return frame(*rows)


def test_means_over_domains_then_over_trials() -> None:
    chosen = frame(
        ("erm", "pacs", "photo", 0, 0.6),
        ("erm", "pacs", "sketch", 0, 0.8),
        ("erm", "pacs", "photo", 1, 0.7),
        ("erm", "pacs", "sketch", 1, 0.9),
        ("at", "nico", "test", 0, 0.7),
    )
    erm, at = beside_the_paper(RECIPE, chosen)
    assert (erm.row, erm.dataset, erm.trials) == ("erm", "pacs", 2)
    # Means 70 and 80: 75, standard deviation 5, over the root of two.
    assert erm.ours == pytest.approx(75)
    assert erm.error == pytest.approx(5 / 2**0.5)
    assert (erm.paper, erm.paper_error) == (79.7, 0.0)
    assert erm.in_errors == pytest.approx((75 - 79.7) / (5 / 2**0.5))
    assert at.error is None
    # Only the paper's error is known, 2.2.
    assert at.in_errors == pytest.approx((70 - 68.2) / 2.2)


def test_without_any_error_there_is_no_difference_in_errors() -> None:
    assert Compared("mat", "pacs", 70.0, None, 1, 80.0, None).in_errors is None
    assert Compared("mat", "pacs", 70.0, None, 1, 80.0, None).difference == -10
    assert Compared("mat", "pacs", 70.0, 1.0, 3, None, None).in_errors is None


@pytest.mark.parametrize(
    ("differences", "verdict"),
    [
        ([1.0, 2.0, 1.5, 2.5, 1.0, 3.0], "holds"),
        ([-1.0, -2.0, -1.5, -2.5, -1.0, -3.0], "does not hold"),
        ([1.0, -2.0, 1.5, -2.5, 1.0, 3.0], "cannot be told"),
        ([5.0], "cannot be told"),
    ],
)
def test_the_verdict_follows_sign_and_luck(differences: list[float], verdict: str) -> None:
    first, _ = judged(RECIPE, paired(differences))
    assert first.verdict == verdict
    assert f"{len(differences)} pair" in first.why


def test_one_trial_says_that_it_is_too_few() -> None:
    first, second = judged(RECIPE, paired([5.0]))
    assert "1 pair cannot give a p below 0.05" in first.why
    assert second.why == "there are no runs of both on the same domain and trial"


def test_domains_that_share_a_model_are_one_pair() -> None:
    each_its_own = frame(
        *((row, "pacs", name, 0, level) for name in "abcdef" for row, level in (("erm", 0.5), ("at", 0.6)))
    )
    shared = each_its_own.with_columns(run=pl.col("row"))
    assert judged(RECIPE, each_its_own)[0].verdict == "holds"
    alone = judged(RECIPE, shared)[0]
    assert alone.verdict == "cannot be told"
    assert alone.why.startswith("on pacs alone: +10.0 points over 1 pair of 1 trial")


def test_an_average_needs_all_its_datasets() -> None:
    ahead = paired([1.0, 2.0, 1.5, 2.5, 1.0, 3.0])
    assert judged(RECIPE, ahead)[0].verdict == "holds"
    assert judged(RECIPE, ahead)[0].why.startswith("on pacs alone: +1.8 ")
    average = replace(RECIPE, claims=(Claim("AT above ERM on average", "at", "erm", needs_all=True),))
    assert judged(average, ahead)[0].verdict == "cannot be told"
    assert judged(average, ahead)[0].why.startswith("on pacs alone: +1.8 ")
    both = judged(average, pl.concat([ahead, paired([1.0, 2.0], "nico")]))[0]
    assert both.verdict == "holds"
    assert "alone" not in both.why


def test_a_claim_about_one_dataset_looks_at_that_alone() -> None:
    good, bad = [3.0, 4.0, 5.0, 3.0, 4.0, 5.0], [-3.0, -4.0, -5.0, -3.0, -4.0, -5.0]
    chosen = pl.concat([paired(good), paired(bad, "nico")])
    both, nico = judged(RECIPE, chosen)
    assert both.verdict == "cannot be told"
    assert nico.verdict == "holds"


def test_words() -> None:
    chosen = pl.concat([paired([1.0, 2.0]), paired([1.0], "nico")])
    table = accuracies(beside_the_paper(RECIPE, chosen), "title")
    assert table.header == ("", "pacs", "paper", "difference", "nico", "paper", "difference")
    assert table.rows[1][:4] == ("at", "51.5 ± 0.4", "81.5 ± 0.4", "-30.0 (-56.2 errors)")
    assert table.rows[1][4:] == ("51.0", "68.2 ± 2.2", "-17.2 (-7.8 of the paper's errors)")
    assert verdicts(judged(RECIPE, chosen)).rows[0][0] == "AT above ERM"


def test_the_papers_averages_need_all_their_datasets() -> None:
    names = ("pacs", "office_home", "vlcs", "nico")
    all_four = frame(*(("at", name, "a", trial, 0.5 + 0.1 * trial) for name in names for trial in (0, 1)))
    average = beside_the_paper(RECIPE, all_four)[-1]
    assert (average.row, average.dataset, average.paper, average.trials) == ("at", "avg", 71.2, 2)
    assert average.ours == pytest.approx(55)
    assert average.error == pytest.approx(5 / 2**0.5)
    three = all_four.filter(pl.col("dataset") != "vlcs")
    assert "avg" not in [each.dataset for each in beside_the_paper(RECIPE, three)]
    one_trial = all_four.filter((pl.col("dataset") != "vlcs") | (pl.col("trial") == 0))
    assert beside_the_paper(RECIPE, one_trial)[-1].ours == pytest.approx(50)


def test_a_model_that_the_test_domain_chose_shows_its_training() -> None:
    chosen = paired([1.0, 2.0]).with_columns(training=pl.when(pl.col("row") == "at").then(pl.lit(0.4)))
    table = accuracies(beside_the_paper(RECIPE, chosen), "title")
    assert table.header == ("", "pacs", "in training", "paper", "difference")
    assert [row[2] for row in table.rows] == ["", "40.0"]


def test_memory_and_time_are_judged_by_what_was_measured() -> None:
    erm, mat = Cost("erm", 0, 100, 1.0), Cost("mat", 50, 200, 1.5)
    less, same = judged_costs([erm, mat, Cost("ldat", 5, 150, 1.6)])
    assert (less.verdict, same.verdict) == ("holds", "holds")
    less, same = judged_costs([erm, mat, Cost("ldat", 5, 250, 1.9)])
    assert (less.verdict, same.verdict) == ("does not hold", "does not hold")
