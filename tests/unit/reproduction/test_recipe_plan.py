"""The runs that a recipe plans at each scale."""

from pathlib import Path
from typing import Any

import pytest

from domainwise.reproduction.plan import RecipePlan, plan_recipe
from domainwise.reproduction.recipe import estimate_cost, load_recipes, load_scales
from domainwise.reproduction.smoke_data import write_smoke_data
from domainwise.training import RunConfig
from domainwise.training.registry import DatasetCache


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_smoke_data(tmp_path_factory.mktemp("layouts"))


def plan(recipe: str, scale: str, folder: Path, data_dir: Path, **options: Any) -> RecipePlan:
    return plan_recipe(
        load_recipes()[recipe], load_scales()[scale], folder / recipe, folder / "runs", data_dir=data_dir, **options
    )


@pytest.mark.parametrize("name", ["pacs", "office_home", "vlcs", "nico", "colored_mnist"])
def test_smoke_data_has_the_layouts_of_the_datasets(name: str, data: Path) -> None:
    dataset = DatasetCache().build(RunConfig(dataset=name, algorithm="erm", data_dir=data))
    assert len(dataset.domains) == (3 if name == "colored_mnist" else 4)
    assert all(len(domain) >= 16 for domain in dataset.domains)


def test_recipes_share_a_folder_only_if_the_run_is_the_same(data: Path, tmp_path: Path) -> None:
    seen: dict[Path, dict[str, Any]] = {}
    shared = 0
    for recipe in load_recipes().values():
        planned = plan(recipe.key, "smoke", tmp_path, data)
        assert not planned.skipped
        # One cell per method.
        assert len(planned.runs) == (len(recipe.rows) if recipe.blocks else 0)
        for run, config in planned.runs.items():
            identity = config.identity()
            shared += run.folder in seen
            assert seen.setdefault(run.folder, identity) == identity
    assert shared >= 10


def test_missing_data_is_skipped_with_a_reason(tmp_path: Path) -> None:
    planned = plan("table_1", "cpu", tmp_path, tmp_path / "nowhere")
    assert set(planned.skipped) == {"pacs", "office_home", "vlcs", "nico"}
    assert not planned.runs
    assert "data prepare pacs" in planned.skipped["pacs"]


def test_single_source_runs_have_the_dataset_names_of_the_published_table(data: Path, tmp_path: Path) -> None:
    planned = plan("table_10", "cpu", tmp_path, data, settings={"weights": "none"})
    sources = ("art_painting", "cartoon", "photo", "sketch")
    assert {run.dataset for run in planned.runs} == {f"pacs from {source}" for source in sources}
    assert {len(run.test_domains) for run in planned.runs} == {3}


def test_datasets_can_be_restricted(data: Path, tmp_path: Path) -> None:
    planned = plan("table_1", "cpu", tmp_path, data, datasets=["nico", "vlcs"])
    assert {row_plan.dataset for row_plan in planned.row_plans} == {"nico", "vlcs"}
    assert not planned.skipped


def test_rows_can_be_restricted(data: Path, tmp_path: Path) -> None:
    planned = plan("table_7", "smoke", tmp_path, data, rows=["at", "mat, eta 0.1"])
    assert [row_plan.row.name for row_plan in planned.row_plans] == ["at", "mat, eta 0.1"]


def test_full_scale_settings(data: Path, tmp_path: Path) -> None:
    full = plan("table_1", "full", tmp_path, data, settings={"weights": "none", "steps": 3})
    configs = {config.dataset_name: config for config in full.runs.values()}
    assert {config.network for config in configs.values()} == {"resnet18"}
    assert {config.steps for config in configs.values()} == {3}
    assert configs["pacs"].dataset_options == {"image_size": 224}
    assert configs["nico"].batch_norm == "live"
    assert len(full.runs) == 2 * 3 * (3 * 4 + 1)


def test_the_estimated_cost_counts_the_planned_runs(data: Path, tmp_path: Path) -> None:
    for scale in (load_scales()["smoke"], load_scales()["cpu"]):
        for recipe in load_recipes().values():
            planned = plan(recipe.key, scale.name, tmp_path, data, settings={"weights": "none"})
            assert estimate_cost(recipe, scale).runs == len(planned.runs), (recipe.key, scale.name)
    # An ERM run takes 65 s of updates and 55 s of evaluations, AT 1.6 times the updates; two cores share them.
    expected = 13 * ((65 + 55) + (65 * 1.6 + 55)) / 2
    assert estimate_cost(load_recipes()["table_1"], load_scales()["cpu"]).seconds == pytest.approx(expected)
    assert estimate_cost(load_recipes()["table_1"], load_scales()["full"]).seconds is None
    # One training domain instead of three, three test domains instead of one: a third of the updates, twice the rest.
    single = sum(65 / 3 * factor + 55 * 2 for factor in (1.0, 1.6, 1.6, 8.1))
    assert estimate_cost(load_recipes()["table_10"], load_scales()["cpu"]).seconds == pytest.approx(4 * single / 2)
