"""Curves are means of the chosen runs, step by step."""

from pathlib import Path

import pytest

from domainwise.reports.html.page_data import read_material
from domainwise.reports.html.plots import MOST_RUNS, Curves, curves_of, draw_curves
from domainwise.reports.html.svg import Mark
from domainwise.selection import SELECTIONS
from run_folders import write_run

MARKS = {"erm": Mark(0, 0), "mat": Mark(1, 1)}


def curves(folder: Path, selection: str = "training_domain") -> Curves:
    material = read_material([folder])
    return curves_of(material.runs.frame, SELECTIONS[selection](material.runs.frame), material.facts, "toy")


def test_the_mean_over_trials_of_the_chosen_draw(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "erm", "art", (0.2, 0.4), trial=0)
    write_run(tmp_path / "b", "erm", "art", (0.4, 0.8), trial=1)
    write_run(tmp_path / "worse", "erm", "art", (0.9, 0.9), trial=1, draw=1, training=0.5)
    found = curves(tmp_path)
    assert found.means["test"]["erm"] == [(0, pytest.approx(30)), (1, pytest.approx(60))]
    assert found.means["training"]["erm"] == [(0, pytest.approx(89)), (1, pytest.approx(90))]
    assert found.means["loss"]["erm"] == [(0, pytest.approx(1)), (1, pytest.approx(0.5))]
    assert len(found.runs["test"]["erm"]) == 2


def test_only_steps_that_all_runs_have(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "erm", "art", (0.2, 0.4, 0.6), trial=0)
    write_run(tmp_path / "b", "erm", "art", (0.4, 0.8), trial=1)
    assert [step for step, _ in curves(tmp_path).means["test"]["erm"]] == [0, 1]


def test_many_runs_have_no_lines_of_their_own(tmp_path: Path) -> None:
    for trial in range(MOST_RUNS + 1):
        write_run(tmp_path / str(trial), "erm", "art", trial=trial)
    found = curves(tmp_path)
    assert not found.runs
    drawings = draw_curves(found, MARKS)
    assert len(drawings) == 3
    assert all('class="thin' not in drawing and 'class="line c0"' in drawing for drawing in drawings)


def test_the_words_for_it_have_its_ends(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "erm", "art", (0.25, 0.5))
    write_run(tmp_path / "b", "mat", "art", (0.25, 0.75))
    (drawing,) = (each for each in draw_curves(curves(tmp_path), MARKS) if "test domains" in each)
    assert "From first to last: erm 25 to 50, mat 25 to 75." in drawing
    assert drawing.count('class="line') == 2


def test_single_records_make_no_curve(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "erm", "art", (0.5,))
    assert draw_curves(curves(tmp_path), MARKS) == []
