"""`domainwise reproduce`: what it lists, and words that it cannot use."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from domainwise.reproduction.recipe import recipes


def test_the_list_has_every_recipe_with_its_cost(domainwise: Callable[..., Any]) -> None:
    outcome = domainwise("reproduce", "--list")
    assert outcome.code == 0, outcome.err
    for recipe in recipes().values():
        (line,) = [line for line in outcome.out.splitlines() if f" {recipe.key} " in line]
        assert recipe.about in line
        assert recipe.numbers[0] in line
    (main,) = [line for line in outcome.out.splitlines() if " table_2 " in line]
    # Sixteen methods in three trials: eight draws of three times four test domains, six on each of the other two.
    assert str(16 * 3 * (8 * 3 * 4 + 6 + 6)) in main.split()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "say which recipes to run, or --all"),
        (("tabel_1",), "unknown recipe 'tabel_1'; did you mean 'table_1'?"),
        (("table_1", "--scale", "gpu"), "unknown scale 'gpu'"),
        (("table_1", "--engine", "slurm"), "unknown engine 'slurm'"),
        (("table_1", "--workers", "0"), "--workers must be at least 1, not 0"),
        (("table_1", "--trials", "0"), "--trials must be at least 1, not 0"),
        (("table_1", "--draws", "-1"), "--draws must be at least 1, not -1"),
        (("table_1", "--dataset", "pcas"), "unknown dataset of these recipes 'pcas'; did you mean 'pacs'?"),
        (
            ("table_7", "--row", "mat, eta .1"),
            "unknown row of these recipes 'mat, eta .1'; did you mean 'mat, eta 0.1'?",
        ),
        (("table_8", "--dataset", "nico"), "unknown dataset of these recipes 'nico'"),
    ],
)
def test_wrong_input_is_one_line(
    words: tuple[str, ...], said: str, domainwise: Callable[..., Any], tmp_path: Path
) -> None:
    outcome = domainwise("reproduce", *words, "-o", tmp_path / "out")
    assert outcome.code == 2
    assert said in outcome.err
    assert outcome.err.count("\n") == 1


def test_data_that_is_not_there_is_said_and_nothing_is_run(domainwise: Callable[..., Any], tmp_path: Path) -> None:
    words = ("table_8", "--scale", "cpu", "--data-dir", tmp_path / "nowhere", "-o", tmp_path / "out")
    outcome = domainwise("reproduce", *words)
    assert outcome.code == 0, outcome.err
    assert "table_8: pacs is left out: " in outcome.out
    assert "table_8: 0 runs" in outcome.out
    result = (tmp_path / "out" / "cpu" / "table_8" / "result.md").read_text()
    assert "no run is finished" in result
