"""Hyperparameters: distributions, checked values, words of a command line, and settings that go together."""

import dataclasses
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domainwise.errors import DomainwiseError
from domainwise.hparams import Choice, Hparams, Power, Uniform, bounded, searched


@dataclass(frozen=True)
class Example(Hparams):
    VARIANTS = {"fast": {"count": 1, "size": 9.0}, "named": {"kind": "square"}}

    variant: Literal["usual", "fast", "named"] = "usual"
    count: int = searched(3, Choice((3, 5)))
    size: float = 1.5
    limit: float | None = None
    kind: Literal["round", "square"] = "round"
    is_bold: bool = False
    title: str = "none given"


@given(seed=st.integers(0, 2**32 - 1))
def test_draws_stay_inside_their_range(seed: int) -> None:
    random = np.random.RandomState(seed)
    assert -2 <= Uniform(-2, 3).draw(random) <= 3
    assert 10**-5 <= Power(10, -5, -3.5).draw(random) <= 10**-3.5
    whole = Power(2, 3, 5.5, whole=True).draw(random)
    assert isinstance(whole, int)
    assert 8 <= whole <= 45
    assert Choice((0.0, 0.1, 0.5)).draw(random) in (0.0, 0.1, 0.5)


@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_draws_are_those_of_a_legacy_random_state(seed: int) -> None:
    def random() -> np.random.RandomState:
        return np.random.RandomState(seed)

    exponent = random().uniform(-4.5, -2.5)
    assert Uniform(-4.5, -2.5).draw(random()) == exponent
    assert Power(10, -4.5, -2.5).draw(random()) == 10**exponent
    assert Power(2, 3, 9, whole=True).draw(random()) == int(2 ** random().uniform(3, 9))
    assert Choice((0.0, 0.1, 0.5)).draw(random()) == random().choice([0.0, 0.1, 0.5])


def test_whole_numbers_are_cut_down_not_rounded() -> None:
    drawn = [Power(2, 0, 1, whole=True).draw(np.random.RandomState(seed)) for seed in range(50)]
    assert set(drawn) == {1}


def test_choices_come_up_alike() -> None:
    random = np.random.RandomState(0)
    drawn = [Choice(("a", "b", "c")).draw(random) for _ in range(3000)]
    for option in "abc":
        assert drawn.count(option) == pytest.approx(1000, abs=100)


def test_distributions_draw_plain_numbers() -> None:
    random = np.random.RandomState(0)
    assert type(Uniform(0, 1).draw(random)) is float
    assert type(Power(10, 0, 1).draw(random)) is float
    assert type(Choice((5, 10)).draw(random)) is int


def test_every_method_has_a_learning_rate_and_weight_decay_with_the_benchmark_ranges() -> None:
    fields = Hparams.names()
    assert fields["lr"].default == 5e-5
    assert fields["lr"].metadata["search"] == Power(10, -5, -3.5)
    assert fields["weight_decay"].default == 0
    assert fields["weight_decay"].metadata["search"] == Power(10, -6, -2)


def test_of_fills_in_defaults() -> None:
    hparams = Example.of(lr=0.1, kind="square")
    assert hparams == Example(lr=0.1, kind="square")
    assert (hparams.count, hparams.size, hparams.limit, hparams.title) == (3, 1.5, None, "none given")


def test_hparams_cannot_be_changed() -> None:
    hparams = Example.of()
    with pytest.raises(dataclasses.FrozenInstanceError):
        hparams.lr = 1.0  # type: ignore[misc]


def test_whole_numbers_are_numbers() -> None:
    lr = Example.of(lr=1).lr
    assert lr == 1.0
    assert type(lr) is float
    assert Example.of(limit=2).limit == 2.0
    assert Example.of(limit=None).limit is None


@pytest.mark.parametrize(
    ("given_value", "said"),
    [
        ({"lr": "fast"}, "lr must be a number, not 'fast'"),
        ({"lr": True}, "lr must be a number, not True"),
        ({"lr": None}, "lr must be a number, not None"),
        ({"count": 2.5}, "count must be a whole number, not 2.5"),
        ({"count": True}, "count must be a whole number, not True"),
        ({"is_bold": 1}, "is_bold must be true or false, not 1"),
        ({"limit": "none"}, "limit must be a number or none, not 'none'"),
        ({"kind": "oval"}, "kind must be 'round', 'square', not 'oval'"),
        ({"variant": "fats"}, "variant must be 'usual', 'fast', 'named', not 'fats'"),
        ({"title": 3}, "title must be a word, not 3"),
    ],
)
def test_of_refuses_a_wrong_type_in_words(given_value: dict[str, object], said: str) -> None:
    with pytest.raises(DomainwiseError) as caught:
        Example.of(**given_value)
    assert said in str(caught.value)


@pytest.mark.parametrize("call", [lambda: Example.of(coutn=3), lambda: Example.parse({"coutn": "3"})])
def test_an_unknown_name_gets_the_nearest_spelling(call) -> None:
    with pytest.raises(DomainwiseError, match="unknown hyperparameter 'coutn'; did you mean 'count'") as caught:
        call()
    for name in ("lr", "weight_decay", "variant", "title"):
        assert name in str(caught.value)


def test_parse_reads_words_as_the_type_of_their_field() -> None:
    words = {
        "lr": "1e-3",
        "count": "7",
        "size": "2",
        "limit": "none",
        "kind": "square",
        "is_bold": "true",
        "title": "7",
        "variant": "fast",
    }
    parsed = Example.parse(words)
    assert parsed == {
        "lr": 0.001,
        "count": 7,
        "size": 2.0,
        "limit": None,
        "kind": "square",
        "is_bold": True,
        "title": "7",
        "variant": "fast",
    }
    assert type(parsed["size"]) is float
    assert Example.parse({"limit": "0.5", "is_bold": "False"}) == {"limit": 0.5, "is_bold": False}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"lr": "fast"}, "lr must be a number, not 'fast'"),
        ({"count": "2.5"}, "count must be a whole number, not '2.5'"),
        ({"kind": "oval"}, "kind must be 'round', 'square', not 'oval'"),
        ({"is_bold": "yes"}, "is_bold must be true or false, not 'yes'"),
        ({"limit": "low"}, "limit must be a number or none, not 'low'"),
    ],
)
def test_parse_refuses_a_wrong_word(words: dict[str, str], said: str) -> None:
    with pytest.raises(DomainwiseError) as caught:
        Example.parse(words)
    assert said in str(caught.value)


def test_parsed_words_are_values_for_of() -> None:
    assert Example.of(**Example.parse({"variant": "fast", "size": "4"})) == Example(variant="fast", count=1, size=4.0)


def test_a_variant_sets_what_goes_together_and_nothing_else() -> None:
    assert Example.of(variant="fast") == Example(variant="fast", count=1, size=9.0)
    assert Example.of(variant="named") == Example(variant="named", kind="square")
    assert Example.of(variant="usual") == Example.of() == Example()


@pytest.mark.parametrize("order", [("variant", "size"), ("size", "variant")])
def test_a_value_given_beside_a_variant_wins(order: tuple[str, str]) -> None:
    values = {"variant": "fast", "size": 0.25}
    hparams = Example.of(**{name: values[name] for name in order})
    assert (hparams.count, hparams.size) == (1, 0.25)


def test_a_default_given_beside_a_variant_wins_too() -> None:
    assert Example.of(variant="fast", count=3).count == 3
    assert Example.of(variant="named", kind="round").kind == "round"


def test_as_dict_holds_every_field() -> None:
    hparams = Example.of(variant="fast", lr=0.5)
    assert hparams.as_dict() == {
        "lr": 0.5,
        "weight_decay": 0.0,
        "variant": "fast",
        "count": 1,
        "size": 9.0,
        "limit": None,
        "kind": "round",
        "is_bold": False,
        "title": "none given",
    }
    assert Example.of(**hparams.as_dict()) == hparams


@dataclass(frozen=True)
class Bounded(Hparams):
    share: float = bounded(0.5, low=0, high=1)
    size: float | None = bounded(None, above=0)
    count: int = searched(3, Choice((3, 5)), low=2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"share": -0.1}, "share must be at least 0 and at most 1, not -0.1"),
        ({"share": 1.5}, "share must be at least 0 and at most 1, not 1.5"),
        ({"share": float("nan")}, "share must be at least 0 and at most 1, not nan"),
        ({"size": 0}, "size must be above 0, not 0.0"),
        ({"size": float("inf")}, "size must be above 0, not inf"),
        ({"count": 1}, "count must be at least 2, not 1"),
    ],
)
def test_a_number_outside_its_bounds_is_named(given: dict[str, float], said: str) -> None:
    with pytest.raises(DomainwiseError, match=said):
        Bounded.of(**given)


def test_bounds_are_allowed_themselves_and_none_has_no_size() -> None:
    kept = Bounded.of(share=1, count=2)
    assert (kept.share, kept.size, kept.count) == (1.0, None, 2)
    assert Bounded.of(share=0, size=1e-9).share == 0.0
