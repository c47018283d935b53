"""Recipes: names, rows, and the paper's numbers."""

import pytest

from domainwise.algorithms import ALGORITHMS
from domainwise.data import DATASETS
from domainwise.errors import DomainwiseError
from domainwise.hparams import SPACES
from domainwise.reports.published import load_published_tables
from domainwise.reproduction.comparison import find_published_value
from domainwise.reproduction.recipe import (
    Row,
    find_recipe,
    find_scale,
    list_paper_recipes,
    load_recipes,
    vary_row,
)
from domainwise.selection import SELECTIONS

KEYS = list(load_recipes())


def test_every_table_and_figure_of_the_paper_has_a_recipe() -> None:
    numbers = {number for recipe in load_recipes().values() for number in recipe.numbers}
    assert numbers >= {f"Table {number}" for number in (1, 2, 3, 6, 7, 8, 9, 10)}
    assert numbers >= {f"Figure {number}" for number in (1, 2, 3, 4, 5)}
    assert "Theorem 4.1" in numbers
    assert {recipe.published for recipe in load_recipes().values()} >= set(load_published_tables())


@pytest.mark.parametrize("key", KEYS)
def test_a_recipe_names_existing_things(key: str) -> None:
    recipe = load_recipes()[key]
    assert len({row.name for row in recipe.rows}) == len(recipe.rows)
    for row in recipe.rows:
        ALGORITHMS[row.algorithm].Hparams.build(**row.hparams)
        assert row.space in SPACES
    for block in recipe.blocks:
        assert set(block.datasets) <= set(DATASETS)
        assert block.selection in SELECTIONS
    for name in (recipe.key, recipe.name, *recipe.numbers):
        assert find_recipe(name) is recipe


def test_a_name_belongs_to_one_recipe() -> None:
    names = [name for recipe in load_recipes().values() for name in recipe.names]
    assert len(set(names)) == len(names)
    assert find_recipe("figure_5").key == "table_6"


def test_a_misspelled_name_gets_a_suggestion() -> None:
    with pytest.raises(DomainwiseError, match="did you mean 'table_1'"):
        find_recipe("tabel_1")
    with pytest.raises(DomainwiseError, match="full, cpu, smoke"):
        find_scale("gpu")


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
def test_published_values(key: str, row: str, dataset: str, mean: float | None) -> None:
    recipe = load_recipes()[key]
    value = find_published_value(recipe, next(each for each in recipe.rows if each.name == row), dataset)
    assert (value.mean if value else None) == mean


def test_every_cell_of_the_published_tables_is_found() -> None:
    for recipe in load_recipes().values():
        for block in recipe.blocks if recipe.published else ():
            for dataset in block.datasets:
                label = f"{dataset} from {block.train_domains[0]}" if block.train_domains else dataset
                empty = [row.name for row in recipe.rows if find_published_value(recipe, row, label) is None]
                borrowed = [row.name for row in recipe.rows if row.space == "domainbed"]
                allowed = {"table_2": borrowed if dataset == "vlcs" else [], "table_10": ["erm"]}
                assert empty == allowed.get(recipe.key, []), (recipe.key, label)


def test_some_recipes_are_not_in_the_paper() -> None:
    assert len(list_paper_recipes()) == 13
    assert [key for key in load_recipes() if key not in [recipe.key for recipe in list_paper_recipes()]] == [
        "demo",
        "threats",
    ]


def test_varied_rows_are_expanded() -> None:
    rows = {row.name: row for row in load_recipes()["table_7"].rows}
    assert list(rows) == ["erm", "at", "mat, eta 0.1", "mat, eta 0.01", "mat, eta 0.001"]
    assert rows["mat, eta 0.01"].hparams == {"count": 20, "weight_step_size": 0.01}
    assert rows["mat, eta 0.01"].setting == ("weight_step_size", 0.01)
    assert rows["mat, eta 0.01"].paper == "eta = 0.01"
    assert rows["erm"].setting is None
    demo = {row.name: row for row in load_recipes()["demo"].rows}
    assert demo["at, epsilon 1"].hparams == {"epsilon": 1.0}
    assert demo["mat, paper, epsilon 0.5"].hparams["weights"] == "domain"
    assert (demo["mat, epsilon 1"].method, demo["mat, paper, epsilon 0.5"].method) == ("mat", "mat, paper")


def test_several_varied_hyperparameters_belong_together() -> None:
    row = Row("at, epsilon {:g}", "at", hparams={"steps": 2}, varied=("epsilon", "step_size"))
    varied = vary_row(row, [2.0, 0.5])
    assert (varied.name, varied.hparams) == ("at, epsilon 2", {"steps": 2, "epsilon": 2.0, "step_size": 0.5})


def test_every_settings_recipe_varies_a_hyperparameter() -> None:
    for recipe in load_recipes().values():
        if recipe.kind == "settings":
            assert len([row for row in recipe.rows if row.varied]) > 1


def test_draws_and_trials_must_be_positive() -> None:
    assert (find_scale("cpu", trials=3).trials, find_scale("cpu", draws=2).draws) == (3, 2)
    with pytest.raises(DomainwiseError, match="trials must be at least 1, got 0"):
        find_scale("cpu", trials=0)
    with pytest.raises(DomainwiseError, match="draws must be at least 1, got -1"):
        find_scale("cpu", draws=-1)
