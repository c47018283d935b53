"""`domainwise reproduce`: its list, invalid options, and trials that are added until claims are decided."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from domainwise.cli.reproduce import print_result
from domainwise.reproduction.comparison import ClaimVerdict, tabulate_verdicts
from domainwise.reproduction.recipe import load_recipes
from domainwise.reproduction.results import RecipeResult
from domainwise.reproduction.runner import SEQUENTIAL_FILE
from domainwise.storage.sweep_folder import SweepFolder


def test_the_list_has_every_recipe_with_its_cost(domainwise: Callable[..., Any]) -> None:
    outcome = domainwise("reproduce", "--list")
    assert outcome.code == 0, outcome.err
    for recipe in load_recipes().values():
        (line,) = [line for line in outcome.out.splitlines() if f" {recipe.key} " in line]
        assert recipe.about in line
        assert ", ".join(recipe.numbers) in line
    (main,) = [line for line in outcome.out.splitlines() if " table_2 " in line]
    # Sixteen methods, three trials: eight draws on three times four test domains, six on each of the other two.
    assert str(16 * 3 * (8 * 3 * 4 + 6 + 6)) in main.split()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "no recipe given; name at least one or use --all"),
        (("tabel_1",), "unknown recipe 'tabel_1'; did you mean 'table_1'?"),
        (("table_1", "--scale", "gpu"), "unknown scale 'gpu'"),
        (("table_1", "--engine", "slurm"), "unknown engine 'slurm'"),
        (("table_1", "--workers", "0"), "workers must be at least 1, got 0"),
        (("table_1", "--trials", "0"), "trials must be at least 1, got 0"),
        (("table_1", "--draws", "-1"), "draws must be at least 1, got -1"),
        (("table_1", "--margin", "-1"), "margin must be at least 0 points, got -1"),
        (("table_1", "--dataset", "pcas"), "unknown dataset of these recipes 'pcas'; did you mean 'pacs'?"),
        (
            ("table_7", "--row", "mat, eta .1"),
            "unknown row of these recipes 'mat, eta .1'; did you mean 'mat, eta 0.1'?",
        ),
        (("table_8", "--dataset", "nico"), "unknown dataset of these recipes 'nico'"),
        (("table_8", "--on", "nowhere/"), "nowhere"),
        (("table_10", "--on", "silhouettes"), "table_10 cannot run on another dataset"),
    ],
)
def test_an_invalid_option_is_one_line(
    options: tuple[str, ...], message: str, domainwise: Callable[..., Any], tmp_path: Path
) -> None:
    outcome = domainwise("reproduce", *options, "-o", tmp_path / "out")
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


def test_missing_data_is_reported_and_nothing_runs(domainwise: Callable[..., Any], tmp_path: Path) -> None:
    options = ("table_8", "--scale", "cpu", "--data-dir", tmp_path / "nowhere", "-o", tmp_path / "out")
    outcome = domainwise("reproduce", *options)
    assert outcome.code == 0, outcome.err
    assert "table_8: pacs skipped: " in outcome.err
    assert "table_8: 0 runs" in outcome.err
    result = (tmp_path / "out" / "cpu" / "table_8" / "result.md").read_text()
    assert "no finished runs" in result


def test_the_list_as_json(domainwise: Callable[..., Any]) -> None:
    recipes = {each["recipe"]: each for each in json.loads(domainwise("reproduce", "--list", "--json").out)}
    assert list(recipes) == list(load_recipes())
    assert recipes["table_6"]["numbers"] == ["Table 6", "Figure 5"]
    assert recipes["table_1"]["cpu_runs"] == 26
    assert recipes["theorem"]["cpu_seconds"] is None


@pytest.mark.parametrize("width", [80, 100, 160])
def test_the_list_wraps_on_a_narrow_terminal(
    width: int, domainwise: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    output = re.sub(r"\x1b\[[0-9;]*m", "", domainwise("reproduce", "--list").out)
    assert max(map(len, output.splitlines())) <= width
    assert "\u2026" not in output
    words = set(output.split())
    for recipe in load_recipes().values():
        assert {recipe.key, *recipe.about.split(), *" ".join(recipe.numbers).split()} <= {*words, *_strip(words)}


def _strip(words: set[str]) -> set[str]:
    return {word.strip(",") for word in words}


@pytest.mark.parametrize("width", [80, 160])
def test_verdicts_wrap_on_a_narrow_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    evidence = "on pacs, vlcs only: -0.9 [-4.2, +2.4] points over 4 trials, at ahead in 1; 112 trials needed"
    verdict = ClaimVerdict("AT is above ERM on average over the datasets", "inconclusive", evidence)
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    print_result(RecipeResult(load_recipes()["table_1"], (tabulate_verdicts([verdict]),)))
    output = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    assert max(map(len, output.splitlines())) <= width
    assert {*verdict.claim.split(), *evidence.split(), "inconclusive"} <= set(output.split())


def test_results_as_json(domainwise: Callable[..., Any], tmp_path: Path) -> None:
    options = ("--data-dir", tmp_path / "nowhere", "-o", tmp_path / "out", "--report-only", "--json")
    (result,) = json.loads(domainwise("reproduce", "table_8", *options).out)
    assert result["recipe"] == "table_8"
    assert "no finished runs" in result["notes"]
    assert result["files"] == [str(tmp_path / "out" / "cpu" / "table_8" / "result.md")]


def test_until_decided_adds_trials_and_reports_all_of_them(domainwise: Callable[..., Any], tmp_path: Path) -> None:
    def reproduce(*options: str) -> tuple[str, list[str]]:
        outcome = domainwise("reproduce", "table_8", "--scale", "smoke", "-o", tmp_path, "--json", *options)
        assert outcome.code == 0, outcome.err
        (result,) = json.loads(outcome.out)
        (claims,) = (table["rows"] for table in result["tables"] if table["title"] == "Claims of the paper")
        return outcome.err, [evidence for _, _, evidence in claims]

    notes, _ = reproduce("--until-decided", "--trials", "1")
    assert "undecided after 1 trial" in notes
    notes, evidence = reproduce("--until-decided", "--trials", "2")
    assert "trial 1:" in notes
    assert "trial 0:" not in notes
    assert all("over 2 trials" in each for each in evidence)
    # A report on such a folder has all trials, though the scale has one.
    assert reproduce("--report-only")[1] == evidence


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("table_8", "--on", "nowhere/"), "nowhere"),
        (("theorem",), "no claims that the runs of theorem can decide"),
        (("table_8", "--budget", "0.001s"), "the budget is too small"),
    ],
)
def test_a_refused_call_leaves_the_verdicts_as_they_are(
    options: tuple[str, ...], message: str, domainwise: Callable[..., Any], tmp_path: Path
) -> None:
    outcome = domainwise("reproduce", *options, "--scale", "smoke", "-o", tmp_path, "--until-decided")
    assert outcome.code == 2
    assert message in outcome.err
    assert not (tmp_path / "smoke" / SEQUENTIAL_FILE).exists()


def test_nothing_is_written_among_the_runs_of_a_study(domainwise: Callable[..., Any], tmp_path: Path) -> None:
    with SweepFolder(tmp_path / "study").lock():
        outcome = domainwise("reproduce", "table_8", "--scale", "smoke", "-o", tmp_path / "study" / "runs")
    assert outcome.code == 2
    assert f"smoke is among the runs of {tmp_path / 'study'}; choose another --output" in outcome.err
    assert not (tmp_path / "study" / "runs").exists()
