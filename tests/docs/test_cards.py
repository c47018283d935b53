"""Every method has its card, its pinned value and its line in the tables, and they say what the code says."""

import re
from pathlib import Path

import pytest

from domainwise.algorithms import ALGORITHMS
from domainwise.cli.algorithms import hparams_table, overview

ROOT = Path(__file__).parents[2]
CARDS = ROOT / "docs" / "methods"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_card_is_complete(name: str) -> None:
    card = (CARDS / f"{name}.md").read_text()
    assert "**Use it when**" in card
    assert re.findall(r"^## (.*)", card, re.MULTILINE) in (
        ["Hyperparameters", "Implementation details", f"Where {whose} code differs", "Source"]
        for whose in ("the public benchmark's", "other")
    )
    details = card.split("## Implementation details")[1].split("\n## ")[0]
    assert re.findall(r"^(\d+)\. ", details, re.MULTILINE)[:2] == ["1", "2"]
    # Whoever the overview names is among the authors.
    assert ALGORITHMS[name].source.split(" et al.")[0].split()[0] in card.split("## Source")[1]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_cards_hyperparameters_are_those_of_the_class(name: str) -> None:
    card = (CARDS / f"{name}.md").read_text()
    assert f"## Hyperparameters\n\n{hparams_table(ALGORITHMS[name])}\n\n" in card, (
        f"put what `domainwise algorithms {name} --markdown` prints into docs/methods/{name}.md"
    )


def test_there_are_no_cards_without_a_method() -> None:
    assert {card.stem for card in CARDS.iterdir()} == set(ALGORITHMS)


@pytest.mark.parametrize(("page", "cards"), [("README.md", "docs/methods/"), ("docs/methods.md", "methods/")])
def test_the_overview_is_made_from_the_classes(page: str, cards: str) -> None:
    assert f"\n{overview(cards)}\n" in (ROOT / page).read_text(), (
        f"put what `domainwise algorithms --markdown` prints into {page}"
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_there_is_a_pinned_value(name: str) -> None:
    pinned = (ROOT / "tests" / "values" / f"test_{name}.py").read_text()
    assert f"import {ALGORITHMS[name].__name__}" in pinned
