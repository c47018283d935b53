"""Every recipe can be read, names what there is, and finds the paper's numbers."""

from pathlib import Path
from typing import Any

import pytest

from domainwise.algorithms import ALGORITHMS
from domainwise.data import DATASETS
from domainwise.errors import DomainwiseError
from domainwise.hparams import SPACES
from domainwise.reports.published import load_published_tables
from domainwise.reproduction.comparison import published_value
from domainwise.reproduction.plan import cost_of, plan_recipe
from domainwise.reproduction.recipe import recipe_named, recipes, scale_named, scales
from domainwise.reproduction.smoke_data import write_layouts
from domainwise.selection import SELECTIONS
from domainwise.training import RunConfig
from domainwise.training.registry import DatasetCache

KEYS = list(recipes())


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_layouts(tmp_path_factory.mktemp("layouts"))


def test_every_table_and_figure_of_the_paper_has_one() -> None:
    numbers = {number for recipe in recipes().values() for number in recipe.numbers}
    assert numbers >= {f"Table {number}" for number in (1, 2, 3, 6, 7, 8, 9, 10)}
    assert numbers >= {f"Figure {number}" for number in (1, 2, 3, 4, 5)}
    assert "Theorem 4.1" in numbers
    assert {recipe.published for recipe in recipes().values()} >= set(load_published_tables())


@pytest.mark.parametrize("key", KEYS)
def test_it_names_what_there_is(key: str) -> None:
    recipe = recipes()[key]
    assert len({row.name for row in recipe.rows}) == len(recipe.rows)
    for row in recipe.rows:
        ALGORITHMS[row.algorithm].Hparams.build(**row.hparams)
        assert row.space in SPACES
    for block in recipe.blocks:
        assert set(block.datasets) <= set(DATASETS)
        assert block.selection in SELECTIONS
    for name in (recipe.key, recipe.name, *recipe.numbers):
        assert recipe_named(name) is recipe


def test_a_name_belongs_to_one_recipe() -> None:
    names = [name for recipe in recipes().values() for name in recipe.names]
    assert len(set(names)) == len(names)
    assert recipe_named("figure_5").key == "table_6"


def test_a_misspelt_name_is_told_the_right_one() -> None:
    with pytest.raises(DomainwiseError, match="did you mean 'table_1'"):
        recipe_named("tabel_1")
    with pytest.raises(DomainwiseError, match="full, cpu, smoke"):
        scale_named("gpu")


@pytest.mark.parametrize(
    ("key", "row", "dataset", "mean"),
    [
        ("table_1", "at", "nico", 68.2),
        ("table_2", "erm", "pacs", 81.7),
        ("table_2", "irm", "colored_mnist", 60.2),
        ("table_2", "at", "avg2", 64.3),
        ("table_2", "irm", "avg1", 68.0),
        ("table_3", "ldat, rank 500", "colored_mnist", 19.0),
        ("table_6", "erm", "vlcs", 74.2),
        ("table_6", "mat, count 20", "pacs", 82.3),
        ("table_7", "mat, eta 0.01", "pacs", 82.2),
        ("table_8", "ldat, rho 0.1", "pacs", 82.2),
        ("table_9", "gut", "nico", 66.6),
        ("table_10", "ncdg", "pacs from photo", 49.0),
        ("table_10", "erm", "pacs from photo", None),
    ],
)
def test_the_papers_number_is_found(key: str, row: str, dataset: str, mean: float | None) -> None:
    recipe = recipes()[key]
    value = published_value(recipe, next(each for each in recipe.rows if each.name == row), dataset)
    assert (value.mean if value else None) == mean


def test_every_cell_of_the_papers_tables_is_found_but_for_what_it_leaves_empty() -> None:
    for recipe in recipes().values():
        for block in recipe.blocks if recipe.published else ():
            for dataset in block.datasets:
                label = f"{dataset} from {block.train_domains[0]}" if block.train_domains else dataset
                empty = [row.name for row in recipe.rows if published_value(recipe, row, label) is None]
                borrowed = [row.name for row in recipe.rows if row.space == "domainbed"]
                allowed = {"table_2": borrowed if dataset == "vlcs" else [], "table_10": ["erm"]}
                assert empty == allowed.get(recipe.key, []), (recipe.key, label)


@pytest.mark.parametrize("name", ["pacs", "office_home", "vlcs", "nico", "colored_mnist"])
def test_embedded_images_lie_as_the_datasets_do(name: str, data: Path) -> None:
    dataset = DatasetCache().build(RunConfig(dataset=name, algorithm="erm", data_dir=data))
    assert len(dataset.domains) == (3 if name == "colored_mnist" else 4)
    assert all(len(domain) >= 16 for domain in dataset.domains)


def test_recipes_share_a_folder_only_where_the_run_is_the_same(data: Path, tmp_path: Path) -> None:
    seen: dict[Path, dict[str, Any]] = {}
    shared = 0
    for recipe in recipes().values():
        made = plan_recipe(recipe, scales()["smoke"], tmp_path, data_dir=data)
        assert not made.left_out
        # One cell a method.
        assert len(made.runs) == (len(recipe.rows) if recipe.blocks else 0)
        for run, config in made.runs.items():
            identity = config.identity()
            shared += run.folder in seen
            assert seen.setdefault(run.folder, identity) == identity
    assert shared >= 10


def test_data_that_is_not_there_is_left_out_and_said(tmp_path: Path) -> None:
    made = plan_recipe(recipes()["table_1"], scales()["cpu"], tmp_path, data_dir=tmp_path / "nowhere")
    assert set(made.left_out) == {"pacs", "office_home", "vlcs", "nico"}
    assert not made.runs
    assert "data prepare pacs" in made.left_out["pacs"]


def test_runs_bear_the_names_that_the_papers_numbers_have(data: Path, tmp_path: Path) -> None:
    made = plan_recipe(recipes()["table_10"], scales()["cpu"], tmp_path, data_dir=data, settings={"weights": "none"})
    sources = ("art_painting", "cartoon", "photo", "sketch")
    assert {run.dataset for run in made.runs} == {f"pacs from {source}" for source in sources}
    assert {len(run.test_domains) for run in made.runs} == {3}


def test_only_the_datasets_asked_for(data: Path, tmp_path: Path) -> None:
    made = plan_recipe(recipes()["table_1"], scales()["cpu"], tmp_path, data_dir=data, datasets=["nico", "vlcs"])
    assert {part.dataset for part in made.parts} == {"nico", "vlcs"}
    assert not made.left_out


def test_only_the_rows_asked_for(data: Path, tmp_path: Path) -> None:
    made = plan_recipe(recipes()["table_7"], scales()["smoke"], tmp_path, data_dir=data, rows=["at", "mat, eta 0.1"])
    assert [part.row.name for part in made.parts] == ["at", "mat, eta 0.1"]


def test_scales_set_what_they_say(data: Path, tmp_path: Path) -> None:
    full = plan_recipe(
        recipes()["table_1"], scales()["full"], tmp_path, data_dir=data, settings={"weights": "none", "steps": 3}
    )
    configs = {config.dataset_name: config for config in full.runs.values()}
    assert {config.network for config in configs.values()} == {"resnet18"}
    assert {config.steps for config in configs.values()} == {3}
    assert configs["pacs"].dataset_options == {"image_size": 224}
    assert configs["nico"].batch_norm == "live"
    assert len(full.runs) == 2 * 3 * (3 * 4 + 1)


def test_the_cost_counts_the_runs_that_are_planned(data: Path, tmp_path: Path) -> None:
    for scale in (scales()["smoke"], scales()["cpu"]):
        for recipe in recipes().values():
            made = plan_recipe(recipe, scale, tmp_path, data_dir=data, settings={"weights": "none"})
            assert cost_of(recipe, scale).runs == len(made.runs), (recipe.key, scale.name)
    # ERM takes 65 s of updates and 55 s of evaluations a run, AT 1.6 times the updates; two processors share them.
    expected = 13 * ((65 + 55) + (65 * 1.6 + 55)) / 2
    assert cost_of(recipes()["table_1"], scales()["cpu"]).seconds == pytest.approx(expected)
    assert cost_of(recipes()["table_1"], scales()["full"]).seconds is None
    # One domain trains instead of three, and three are tested instead of one: a third of the updates, twice the rest.
    alone = sum(65 / 3 * factor + 55 * 2 for factor in (1.0, 1.6, 1.6, 8.1))
    assert cost_of(recipes()["table_10"], scales()["cpu"]).seconds == pytest.approx(4 * alone / 2)
