"""The demo: which runs it plans, and its page."""

from pathlib import Path
from typing import Any

import pytest

from domainwise.errors import DomainwiseError
from domainwise.reproduction.demo import build_demo, run_demo
from domainwise.reproduction.plan import RecipePlan, plan_recipe
from domainwise.reproduction.recipe import find_scale
from domainwise.sweeps.engine import EngineCallbacks
from domainwise.training import RunConfig
from domainwise.training.registry import DatasetCache
from in_process_engine import train_in_process

DATASETS = DatasetCache()


def plan(trials: int = 1, **options: Any) -> RecipePlan:
    scale = find_scale("cpu", trials)
    settings = {"dataset_options": {"train_count": 20, "test_count": 10}}
    return plan_recipe(build_demo(**options), scale, Path("out"), Path("out/runs"), settings=settings, cache=DATASETS)


def test_the_plan_has_every_method_radius_and_seed_once() -> None:
    runs = plan(trials=2).runs
    assert len(build_demo().rows) == 16
    assert len({run.folder for run in runs}) == len(runs) == 32
    assert {run.trial for run in runs} == {0, 1}
    for row in build_demo().rows:
        assert row.setting is None or row.setting == ("epsilon", row.hparams["epsilon"])
    assert {config.steps for config in runs.values()} == {700}
    assert {config.record_every for config in runs.values()} == {175}
    kept = {run.algorithm for run, config in runs.items() if config.keep_perturbations}
    assert kept == {"uat", "mat", "ldat"}


def test_radii_are_filled_into_every_method() -> None:
    rows = {row.name: row.hparams for row in build_demo(algorithms=("erm", "at", "ldat"), radii=(1.0,)).rows}
    assert list(rows) == ["erm", "erm, augmented", "at, epsilon 1", "ldat, epsilon 1", "ldat, paper, epsilon 1"]
    assert {rows[name]["epsilon"] for name in rows if "epsilon" in name} == {1.0}
    # The default radii and the same ones given are the same runs, except that the paper's solvers have only one.
    given, default = ([row for row in build_demo(radii=radii).rows if not row.label] for radii in ((0.2, 0.5, 1.0), ()))
    assert given == default


def test_the_paper_rows_have_the_solvers_of_the_paper() -> None:
    configs = {each.row.method: config for each in plan().row_plans for config in each.runs.values()}
    mat, ldat = (
        configs[name].algorithm_class().Hparams.build(**configs[name].hparams) for name in ("mat, paper", "ldat, paper")
    )
    assert (mat.weights, mat.warmup, mat.step_size) == ("domain", 0.0, 0.5)
    assert (ldat.solver, ldat.rank, ldat.warmup, ldat.step_size) == ("factors", 5, 0.0, 0.5)
    assert configs["erm, augmented"].augment is True
    assert configs["erm"].augment is None


def test_erm_is_one_run_for_all_variants() -> None:
    def folders(**options: Any) -> dict[str, Path]:
        return {run.algorithm: run.folder for run in plan(radii=(0.5,), **options).runs}

    standard, released = folders(), folders(variant="released")
    assert standard["erm"] == released["erm"] == folders(schedule="simultaneous")["erm"]
    assert standard["mat"] != released["mat"]
    assert "at" not in folders(schedule="simultaneous")


def test_other_variants_and_schedules_leave_out_what_they_do_not_have() -> None:
    released = build_demo(variant="released").rows
    assert {row.hparams["variant"] for row in released if row.varied} == {"released"}
    assert {row.method for row in released} == {"erm", "erm, augmented", "at", "uat", "mat", "ldat"}
    one_pass = {row.method for row in build_demo(schedule="simultaneous").rows}
    assert one_pass == {"erm", "erm, augmented", "uat", "mat, paper", "ldat", "ldat, paper"}


def test_seeds_begin_at_the_first_one(tmp_path: Path) -> None:
    seeds = []

    def engine(configs: list[RunConfig], callbacks: EngineCallbacks) -> None:
        seeds.extend(config.trial_seed for config in configs)
        for index in range(len(configs)):
            callbacks.on_failed(index, "stopped by the test")

    with pytest.raises(DomainwiseError, match="stopped by the test"):
        run_demo(tmp_path, algorithms=("uat",), radii=(0.5,), seed=5, trials=2, engine=engine)  # type: ignore[arg-type]
    assert seeds == [5, 6]


@pytest.mark.parametrize("options", [{"algorithms": ("erm", "irm")}, {"trials": 0}])
def test_invalid_options(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(DomainwiseError):
        run_demo(tmp_path, **options)


@pytest.mark.slow
def test_the_page_has_pictures_of_the_selected_radius(tmp_path: Path) -> None:
    result = run_demo(tmp_path, algorithms=("erm", "mat"), radii=(0.2, 0.5), steps=2, engine=train_in_process)
    assert [file.name for file in result.files] == ["demo.md", "demo.png", "demo.html"]
    text = (tmp_path / "demo.html").read_text()
    assert "Accuracy under unseen shift (standard, two_pass, seed 0)" in text
    for name in ("mat, epsilon 0.2", "mat, epsilon 0.5"):
        assert name in text
    selected = [row[1] for row in result.tables[0].rows if row[0] == "mat *"]
    for radius in ("0.2", "0.5"):
        assert (f"Perturbations of mat, epsilon {radius}" in text) == ([radius] == selected)
    assert "(Grad-CAM)" in text
