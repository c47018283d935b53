"""Accuracy against the radius: what was chosen at each, and nothing that cannot be compared."""

import re
from pathlib import Path

import pytest

from domainwise.reports.cells import grids
from domainwise.reports.html.page_data import Variants, read_material
from domainwise.reports.html.plots import Radii, draw_radii, radii_of
from domainwise.reports.html.svg import Mark
from run_folders import write_grid, write_run

MARKS = {"erm": Mark(0, 0), "mat": Mark(1, 1)}


def radii(folder: Path, variants: Variants = "refuse") -> Radii | None:
    material = read_material([folder], variants=variants)
    (grid,) = grids(material.runs)
    return radii_of(material.runs.frame, "training_domain", material.facts, grid, material.variants)


def test_each_radius_is_chosen_for_on_its_own(tmp_path: Path) -> None:
    write_grid(tmp_path, "erm", 0.3)
    write_grid(tmp_path, "mat", 0.4, name="small", hparams={"epsilon": 0.1})
    write_grid(tmp_path, "mat", 0.5, name="large", hparams={"epsilon": 10})
    found = radii(tmp_path, "split")
    assert found is not None
    small, large = found.methods["mat"]
    assert (small.epsilon, large.epsilon) == (0.1, 10)
    assert small.cell.mean == pytest.approx(52)
    assert large.cell.mean == pytest.approx(62)
    assert large.cell.error == pytest.approx(2 * (2 / 3) ** 0.5 / 3**0.5)
    assert found.reference is not None
    assert found.reference.mean == pytest.approx(42)


def test_draws_of_a_search_have_their_own_radii(tmp_path: Path) -> None:
    write_grid(tmp_path, "mat", 0.4, hparams={"epsilon": 0.1})
    write_grid(tmp_path, "mat", 0.5, draw=1, hparams={"epsilon": 0.2})
    found = radii(tmp_path)
    assert found is not None
    assert [each.epsilon for each in found.methods["mat"]] == [0.1, 0.2]
    assert found.reference is None


def test_a_radius_that_lacks_a_test_domain_is_left_out(tmp_path: Path) -> None:
    write_grid(tmp_path, "mat", 0.4, hparams={"epsilon": 0.1})
    write_grid(tmp_path, "mat", 0.5, draw=1, hparams={"epsilon": 0.2})
    write_run(tmp_path / "one", "mat", "art", (0.9, 0.99), draw=2, hparams={"epsilon": 0.3})
    found = radii(tmp_path)
    assert found is not None
    assert [each.epsilon for each in found.methods["mat"]] == [0.1, 0.2]


def test_one_radius_is_nothing_to_show(tmp_path: Path) -> None:
    write_grid(tmp_path, "erm", 0.3)
    write_grid(tmp_path, "mat", 0.4, hparams={"epsilon": 0.1})
    assert radii(tmp_path) is None


def test_other_settings_are_other_lines(tmp_path: Path) -> None:
    for norm in ("l2", "linf"):
        for epsilon in (0.1, 0.2):
            write_grid(tmp_path, "mat", 0.4, name=f"{norm}{epsilon}", hparams={"epsilon": epsilon, "norm": norm})
    found = radii(tmp_path, "split")
    assert found is not None
    assert list(found.methods) == ["mat, norm l2", "mat, norm linf"]


def test_erm_is_flat_and_far_radii_are_on_a_log_scale(tmp_path: Path) -> None:
    write_grid(tmp_path, "erm", 0.3)
    for epsilon in (0.1, 1, 10):
        write_grid(tmp_path, "mat", 0.4, name=str(epsilon), hparams={"epsilon": epsilon})
    found = radii(tmp_path, "split")
    assert found is not None
    drawing = draw_radii(found, MARKS)
    ((start, end),) = re.findall(r'd="M[\d.]+ ([\d.]+)L[\d.]+ ([\d.]+)" class="line dashed c0"', drawing)
    assert start == end
    places = [float(x) for x in re.findall(r'translate\(([\d.]+) [\d.]+\)" class="mark c1"', drawing)]
    assert places[1] - places[0] == pytest.approx(places[2] - places[1], abs=0.2)
    assert "(log scale)" in drawing
    assert drawing.count('class="band') == 2
