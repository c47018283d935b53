"""The runs that a recipe plans at each scale."""

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from domainwise.data import Dataset
from domainwise.errors import DomainwiseError
from domainwise.reproduction.plan import RecipePlan, move_recipe, plan_recipe
from domainwise.reproduction.recipe import Row, estimate_cost, load_recipes, load_scales
from domainwise.reproduction.runner import plan_recipes
from domainwise.reproduction.smoke_data import write_smoke_data
from domainwise.training import RunConfig
from domainwise.training.registry import DatasetCache, resolve_config


class DatasetCaches(DatasetCache):
    """Keeps every dataset, not only the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.caches: defaultdict[str, DatasetCache] = defaultdict(DatasetCache)

    def build(self, config: RunConfig, *callbacks: Any) -> Dataset:
        return self.caches[f"{config.dataset} {config.dataset_options}"].build(config, *callbacks)


CACHE = DatasetCaches()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_smoke_data(tmp_path_factory.mktemp("layouts"))


def plan(recipe: str, scale: str, folder: Path, data_dir: Path, **options: Any) -> RecipePlan:
    return plan_recipe(
        load_recipes()[recipe],
        load_scales()[scale],
        folder / recipe,
        folder / "runs",
        data_dir=data_dir,
        cache=CACHE,
        **options,
    )


@pytest.mark.parametrize("name", ["pacs", "office_home", "vlcs", "nico", "colored_mnist"])
def test_smoke_data_has_the_layouts_of_the_datasets(name: str, data: Path) -> None:
    dataset = DatasetCache().build(RunConfig(dataset=name, algorithm="erm", data_dir=data))
    assert len(dataset.domains) == (3 if name == "colored_mnist" else 4)
    assert all(len(domain) >= 16 for domain in dataset.domains)


@pytest.mark.parametrize("scale", ["smoke", "cpu"])
def test_recipes_share_a_folder_only_if_the_run_is_the_same(scale: str, data: Path, tmp_path: Path) -> None:
    seen: dict[Path, dict[str, Any]] = {}
    shared = 0
    for recipe in load_recipes().values():
        planned = plan(recipe.key, scale, tmp_path, data, settings={"weights": "none"})
        assert not planned.skipped
        if scale == "smoke":  # one cell per method
            assert len(planned.runs) == (len(recipe.rows) if recipe.blocks else 0)
        for run, config in planned.runs.items():
            identity = resolve_config(config, CACHE.build(config))[0].identity()
            shared += run.folder in seen
            assert seen.setdefault(run.folder, identity) == identity
    assert shared >= 10


def test_rows_that_are_the_same_share_their_runs_under_any_name(data: Path, tmp_path: Path) -> None:
    def list_folders(recipe: str, row: str, scale: str = "cpu") -> set[str]:
        planned = plan(recipe, scale, tmp_path, data, datasets=["pacs"], rows=[row], settings={"weights": "none"})
        return {run.folder.parent.name for run in planned.runs}

    # Table 7 varies eta for k = 20, and 0.001 is the default; Table 8 varies rho for l = 10, and 0.01 is the default.
    assert list_folders("table_7", "mat, eta 0.001") == list_folders("table_6", "mat, count 20") == {"mat-count_20"}
    assert list_folders("table_8", "ldat, rho 0.01") == list_folders("table_6", "ldat, rank 10") == {"ldat"}
    assert list_folders("table_6", "mat, count 10") == list_folders("table_2", "mat") == {"mat"}
    assert list_folders("table_7", "mat, eta 0.1") == {"mat-count_20-weight_step_size_0.1"}
    # At full scale Table 2 draws what Table 6 fixes; the first draw is the defaults, so that the others are added.
    assert list_folders("table_6", "mat, count 10", "full") == list_folders("table_2", "mat", "full") == {"mat"}
    assert list_folders("table_2", "ldat", "full") == {"ldat"}


def test_a_fixed_value_is_not_the_default_where_others_are_drawn(data: Path, tmp_path: Path) -> None:
    table_3 = load_recipes()["table_3"]
    fixed = replace(table_3, rows=(Row("fixed", "mat", hparams={"count": 10}), Row("drawn", "mat")))
    scale = replace(load_scales()["cpu"], draws=2)
    planned = plan_recipe(fixed, scale, tmp_path / "fixed", tmp_path / "runs", data_dir=data)
    assert {run.folder.parent.name for run in planned.runs} == {"mat-count_10", "mat"}


def test_claims_that_the_planned_runs_can_decide(data: Path, tmp_path: Path) -> None:
    def list_claims(recipe: str, **options: Any) -> list[str]:
        return [claim.text for claim in plan(recipe, "smoke", tmp_path, data, **options).claims]

    # One cell per method: the first dataset only.
    assert list_claims("table_2") == [
        "MAT is above ERM on PACS",
        "LDAT is above ERM on PACS",
        "MAT is above AT on PACS",
    ]
    assert list_claims("table_2", rows=["mat", "at"]) == ["MAT is above AT on PACS"]
    assert list_claims("table_7", rows=["mat, eta 0.001"]) == []
    everything = plan("table_1", "cpu", tmp_path, data, settings={"weights": "none"})
    assert everything.claims == everything.recipe.claims
    assert plan("table_1", "cpu", tmp_path, data, datasets=["pacs", "nico"]).claims == everything.recipe.claims[1:]


def test_a_recipe_moves_to_another_dataset_with_the_hyperparameters_of_pacs(data: Path, tmp_path: Path) -> None:
    moved = move_recipe(load_recipes()["table_2"], str(data / "VLCS"))
    scale = replace(load_scales()["cpu"], trials=2)
    planned = plan_recipe(moved, scale, tmp_path / "moved", tmp_path / "runs", settings={"weights": "none"})
    assert not planned.skipped
    assert {run.dataset for run in planned.runs} == {"VLCS"}
    (mat,) = {config.hparams["step_size"] for run, config in planned.runs.items() if run.algorithm == "mat"}
    assert mat == 0.1
    assert {config.network for config in planned.runs.values()} == {"mobilenet_v2"}
    # The paper's claims about averages, parts of the datasets and one of them are the same claim on a single dataset.
    texts = [claim.text for claim in planned.claims]
    assert len(texts) == len(set(texts)) == 5
    assert texts[0] == "mat is above erm"
    assert moved.key == "table_2-VLCS"
    # As are a claim and its opposite, which the paper makes for different datasets.
    (claim,) = move_recipe(load_recipes()["table_1"], str(data / "VLCS")).claims
    assert (claim.better, claim.worse) == ("at", "erm")


@pytest.mark.parametrize("name", ["table_10", "theorem"])
def test_recipes_that_are_tied_to_their_data_do_not_move(name: str) -> None:
    with pytest.raises(DomainwiseError, match=f"{name} cannot run on another dataset"):
        move_recipe(load_recipes()[name], "photos/")


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


def test_threads_reach_every_run(data: Path, tmp_path: Path) -> None:
    planned = plan("table_8", "smoke", tmp_path, data, threads=3)
    assert {config.threads for config in planned.runs.values()} == {3}


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
    # An ERM run takes 44 s of updates and 6 s of evaluations, AT 1.6 times the updates; two cores share them.
    expected = 13 * ((44 + 6) + (44 * 1.6 + 6)) / 2
    assert estimate_cost(load_recipes()["table_1"], load_scales()["cpu"]).seconds == pytest.approx(expected)
    assert estimate_cost(load_recipes()["table_1"], load_scales()["full"]).seconds is None
    # One training domain instead of three, three test domains instead of one: a third of the updates, twice the rest.
    single = sum(44 / 3 * factor + 6 * 2 for factor in (1.0, 1.6, 1.6, 8.1))
    assert estimate_cost(load_recipes()["table_10"], load_scales()["cpu"]).seconds == pytest.approx(4 * single / 2)


def test_test_domains_replace_those_of_a_recipe(tmp_path: Path) -> None:
    def list_runs(recipe: str, *test_domains: str) -> dict[Path, tuple[str, ...]]:
        (planned,) = plan_recipes(recipe, "smoke", tmp_path, rows=["erm"], test_domains=test_domains)
        return {run.folder: run.test_domains for run in planned.runs}

    both, one = list_runs("threats"), list_runs("threats", "shift_8")
    assert list(both.values()) == [("shift_0", "shift_4", "shift_8", "shift_12", "shift_16")]
    assert list(one.values()) == [("shift_8",)]
    assert not set(both) & set(one)
    with pytest.raises(DomainwiseError, match="unknown test domain 'shift_9'"):
        list_runs("threats", "shift_9")
    with pytest.raises(DomainwiseError, match="theorem trains no models"):
        plan_recipes("theorem", "smoke", tmp_path, test_domains=["shift_8"])
