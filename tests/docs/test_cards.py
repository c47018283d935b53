"""Every method has a card, a pinned value and a row in the tables, and all of them match the code."""

import re
from pathlib import Path

import pytest

from domainwise.algorithms import ALGORITHMS
from domainwise.cli.algorithms import format_hparams, format_overview

ROOT = Path(__file__).parents[2]
CARDS = ROOT / "docs" / "methods"


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_card_is_complete(name: str) -> None:
    card = (CARDS / f"{name}.md").read_text()
    assert "**Use it when**" in card
    assert re.findall(r"^## (.*)", card, re.MULTILINE) == [
        "Update",
        "Hyperparameters",
        "Differences from other code",
        "Source",
    ]
    steps = card.split("## Update")[1].split("\n## ")[0]
    assert re.findall(r"^(\d+)\. ", steps, re.MULTILINE)[:2] == ["1", "2"]
    # The overview and the card cite the same author.
    assert ALGORITHMS[name].source.split(" et al.")[0].split()[0] in card.split("## Source")[1]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_hyperparameters_on_the_card_match_the_class(name: str) -> None:
    card = (CARDS / f"{name}.md").read_text()
    assert f"## Hyperparameters\n\n{format_hparams(name)}\n\n" in card, (
        f"paste the output of `domainwise algorithms {name} --markdown` into docs/methods/{name}.md"
    )


def test_no_card_without_a_method() -> None:
    assert {card.stem for card in CARDS.iterdir()} == set(ALGORITHMS)


def test_the_overview_matches_the_classes() -> None:
    assert f"\n{format_overview('methods/')}\n" in (ROOT / "docs" / "methods.md").read_text(), (
        "paste the output of `domainwise algorithms --markdown` into docs/methods.md"
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_method_has_a_pinned_value(name: str) -> None:
    pinned = (ROOT / "tests" / "values" / f"test_{name}.py").read_text()
    imported = " ".join(re.findall(r"from domainwise\.algorithms import (\([^)]*\)|.*)", pinned))
    assert re.search(rf"\b{ALGORITHMS[name].__name__}\b", imported)


def test_the_docs_list_the_methods_that_refuse_sam() -> None:
    page = (ROOT / "docs" / "averaging.md").read_text()
    listed = re.search(r"`--sam` or `--sagm` with ((?:`[a-z]+`(?:, )?)+)", page)
    assert listed is not None
    assert set(re.findall(r"`([a-z]+)`", listed[1])) == {n for n, m in ALGORITHMS.items() if not m.supports_sharpness}
