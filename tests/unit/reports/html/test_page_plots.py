"""The plots of a page: they show the numbers of the tables at the positions that their axes say."""

import re
from pathlib import Path

import pytest

from domainwise.reports import build_report
from domainwise.reports.cells import Cell, Column, Row, Table, build_grids
from domainwise.reports.html.page_data import read_page_data
from domainwise.reports.html.plots import (
    MAX_THIN_LINES,
    Curves,
    RadiusCurves,
    collect_curves,
    collect_domain_cells,
    collect_radius_curves,
    plot_curves,
    plot_domains,
    plot_radius_curves,
)
from domainwise.reports.html.svg import NUM_COLORS, Marker, assign_markers
from domainwise.reports.methods import Variant
from domainwise.selection import SELECTIONS, read_runs
from run_folders import DOMAINS, write_grid, write_run

MARKERS = {"erm": Marker(0, 0), "mat": Marker(1, 1)}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    write_grid(tmp_path, "erm", 0.4)
    write_grid(tmp_path, "mat", 0.5)
    return build_report(read_runs([tmp_path])).tables[0]


def test_every_test_domain_cell_is_plotted(table: Table) -> None:
    cells = {(algorithm, domain): cell for algorithm, domain, cell in collect_domain_cells(table)}
    assert len(cells) == 2 * len(DOMAINS)
    for row in table.rows:
        for column, cell in zip(table.columns, row.cells, strict=True):
            if column.kind == "domain":
                assert cells[row.algorithm, column.domain] == cell
    assert cells["mat", "sketch"].mean == pytest.approx(72)


def test_missing_cells_have_no_marker(tmp_path: Path) -> None:
    write_run(tmp_path / "one", "erm", "art")
    write_run(tmp_path / "two", "mat", "sketch")
    plot = plot_domains(build_report(read_runs([tmp_path])).tables[0], MARKERS)
    assert plot is not None
    assert re.findall(r"<title>(.*?)</title>", plot) == ["erm on art: 70.0", "mat on sketch: 70.0"]


def test_markers_are_where_the_axis_says() -> None:
    columns = (Column("art", "domain", "toy", "art"),)
    table = Table("toy", "training_domain", columns, (Row("erm", (Cell(40.0, 2.0, 3),)), Row("mat", (Cell(60.0),))), ())
    plot = plot_domains(table, MARKERS, chance=50)
    assert plot is not None
    places = {
        words: float(x) for x, words in re.findall(r'translate\(([\d.]+) [\d.]+\)"[^>]*><title>(.*?)</title>', plot)
    }
    ticks = {float(value): float(x) for x, value in re.findall(r'<text x="([\d.]+)"[^>]*>(\d+)</text>', plot)}
    assert places["erm on art: 40.0 ± 2.0"] == pytest.approx(ticks[40], abs=0.2)
    assert places["mat on art: 60.0"] == pytest.approx(ticks[60], abs=0.2)
    assert ">chance, 50</text>" in plot
    (bar,) = re.findall(r'd="M([\d.]+) [\d.]+L([\d.]+) [\d.]+" class="error', plot)
    width = (ticks[60] - ticks[40]) / 20
    assert float(bar[1]) - float(bar[0]) == pytest.approx(4 * width, abs=0.3)


def test_chance_outside_the_axis_is_a_note(table: Table) -> None:
    plot = str(plot_domains(table, MARKERS, chance=1))
    assert ">chance: 1</text>" in plot
    assert 'class="chance"' not in plot
    assert "chance" not in str(plot_domains(table, MARKERS))


def test_table_without_numbers_has_no_plot() -> None:
    columns = (Column("art", "domain", "toy", "art"),)
    assert plot_domains(Table("toy", "training_domain", columns, (Row("erm", (Cell(None),)),), ()), MARKERS) is None


def test_methods_differ_in_color_and_shape() -> None:
    names = [f"method {number}" for number in range(30)]
    assert len(set(assign_markers(names, {}).values())) == 30
    few = [assign_markers(names, {})[name] for name in names[:NUM_COLORS]]
    assert len({marker.color for marker in few}) == len({marker.shape for marker in few}) == NUM_COLORS


def test_variants_share_a_color_and_differ_in_shape() -> None:
    variants = {each.name: each for each in (Variant("mat", (("epsilon", 0.1),)), Variant("mat", (("epsilon", 1),)))}
    markers = assign_markers(["erm", *variants], variants)
    assert markers["mat, epsilon 0.1"].color == markers["mat, epsilon 1"].color != markers["erm"].color
    assert markers["mat, epsilon 0.1"].shape != markers["mat, epsilon 1"].shape


def collect(folder: Path, selection: str = "training_domain") -> Curves:
    data = read_page_data([folder])
    return collect_curves(data.runs.frame, SELECTIONS[selection](data.runs.frame), data.page_runs, "toy")


def test_curves_are_means_over_trials_of_the_selected_draw(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "erm", "art", (0.2, 0.4), trial=0)
    write_run(tmp_path / "b", "erm", "art", (0.4, 0.8), trial=1)
    write_run(tmp_path / "worse", "erm", "art", (0.9, 0.9), trial=1, draw=1, training=0.5)
    curves = collect(tmp_path)
    assert curves.means["test"]["erm"] == [(0, pytest.approx(30)), (1, pytest.approx(60))]
    assert curves.means["training"]["erm"] == [(0, pytest.approx(89)), (1, pytest.approx(90))]
    assert curves.means["loss"]["erm"] == [(0, pytest.approx(1)), (1, pytest.approx(0.5))]
    assert len(curves.runs["test"]["erm"]) == 2


def test_curves_have_only_steps_that_all_runs_have(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "erm", "art", (0.2, 0.4, 0.6), trial=0)
    write_run(tmp_path / "b", "erm", "art", (0.4, 0.8), trial=1)
    assert [step for step, _ in collect(tmp_path).means["test"]["erm"]] == [0, 1]


def test_many_runs_have_no_thin_lines(tmp_path: Path) -> None:
    for trial in range(MAX_THIN_LINES + 1):
        write_run(tmp_path / str(trial), "erm", "art", trial=trial)
    curves = collect(tmp_path)
    assert not curves.runs
    plots = plot_curves(curves, MARKERS)
    assert len(plots) == 3
    assert all('class="thin' not in plot and 'class="line c0"' in plot for plot in plots)


def test_label_of_curves_has_their_ends(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "erm", "art", (0.25, 0.5))
    write_run(tmp_path / "b", "mat", "art", (0.25, 0.75))
    (plot,) = (each for each in plot_curves(collect(tmp_path), MARKERS) if "test domains" in each)
    assert "First to last: erm 25 to 50, mat 25 to 75." in plot
    assert plot.count('class="line') == 2


def test_single_records_have_no_curve(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "erm", "art", (0.5,))
    assert plot_curves(collect(tmp_path), MARKERS) == []


def radius_curves(folder: Path, *, split_variants: bool = False) -> RadiusCurves | None:
    data = read_page_data([folder], split_variants=split_variants)
    (grid,) = build_grids(data.runs)
    return collect_radius_curves(data.runs.frame, "training_domain", data.page_runs, grid, data.variants)


def test_models_are_selected_per_radius(tmp_path: Path) -> None:
    write_grid(tmp_path, "erm", 0.3)
    write_grid(tmp_path, "mat", 0.4, name="small", hparams={"epsilon": 0.1})
    write_grid(tmp_path, "mat", 0.5, name="large", hparams={"epsilon": 10})
    curves = radius_curves(tmp_path, split_variants=True)
    assert curves is not None
    small, large = curves.methods["mat"]
    assert (small.epsilon, large.epsilon) == (0.1, 10)
    assert small.cell.mean == pytest.approx(52)
    assert large.cell.mean == pytest.approx(62)
    assert large.cell.error == pytest.approx(2 / 3**0.5)
    assert curves.reference is not None
    assert curves.reference.mean == pytest.approx(42)


def test_draws_of_a_search_have_different_radii(tmp_path: Path) -> None:
    write_grid(tmp_path, "mat", 0.4, hparams={"epsilon": 0.1})
    write_grid(tmp_path, "mat", 0.5, draw=1, hparams={"epsilon": 0.2})
    curves = radius_curves(tmp_path)
    assert curves is not None
    assert [each.epsilon for each in curves.methods["mat"]] == [0.1, 0.2]
    assert curves.reference is None


def test_radius_without_all_test_domains_is_left_out(tmp_path: Path) -> None:
    write_grid(tmp_path, "mat", 0.4, hparams={"epsilon": 0.1})
    write_grid(tmp_path, "mat", 0.5, draw=1, hparams={"epsilon": 0.2})
    write_run(tmp_path / "one", "mat", "art", (0.9, 0.99), draw=2, hparams={"epsilon": 0.3})
    curves = radius_curves(tmp_path)
    assert curves is not None
    assert [each.epsilon for each in curves.methods["mat"]] == [0.1, 0.2]


def test_single_radius_is_not_plotted(tmp_path: Path) -> None:
    write_grid(tmp_path, "erm", 0.3)
    write_grid(tmp_path, "mat", 0.4, hparams={"epsilon": 0.1})
    assert radius_curves(tmp_path) is None


def test_variants_that_differ_in_other_settings_are_separate_lines(tmp_path: Path) -> None:
    for norm in ("l2", "linf"):
        for epsilon in (0.1, 0.2):
            write_grid(tmp_path, "mat", 0.4, name=f"{norm}{epsilon}", hparams={"epsilon": epsilon, "norm": norm})
    curves = radius_curves(tmp_path, split_variants=True)
    assert curves is not None
    assert list(curves.methods) == ["mat, norm l2", "mat, norm linf"]


def test_erm_is_a_level_line_and_wide_radii_have_a_log_scale(tmp_path: Path) -> None:
    write_grid(tmp_path, "erm", 0.3)
    for epsilon in (0.1, 1, 10):
        write_grid(tmp_path, "mat", 0.4, name=str(epsilon), hparams={"epsilon": epsilon})
    curves = radius_curves(tmp_path, split_variants=True)
    assert curves is not None
    plot = plot_radius_curves(curves, MARKERS)
    ((start, end),) = re.findall(r'd="M[\d.]+ ([\d.]+)L[\d.]+ ([\d.]+)" class="line dashed c0"', plot)
    assert start == end
    places = [float(x) for x in re.findall(r'translate\(([\d.]+) [\d.]+\)" class="marker c1"', plot)]
    assert places[1] - places[0] == pytest.approx(places[2] - places[1], abs=0.2)
    assert "(log scale)" in plot
    assert plot.count('class="band') == 2
