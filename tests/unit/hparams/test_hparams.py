"""Hyperparameters: distributions, validation, parsing of command-line values, and variants."""

import dataclasses
import subprocess
import sys
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from domainwise.algorithms import ALGORITHMS
from domainwise.errors import DomainwiseError
from domainwise.hparams import Choice, Hparams, Power, Uniform, hparam


@dataclass(frozen=True)
class Example(Hparams):
    VARIANTS = {"fast": {"count": 1, "size": 9.0}, "named": {"kind": "square"}}

    variant: Literal["usual", "fast", "named"] = "usual"
    count: int = hparam(3, help="How many.", search=Choice((3, 5)))
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


def test_integers_are_truncated_not_rounded() -> None:
    draws = [Power(2, 0, 1, whole=True).draw(np.random.RandomState(seed)) for seed in range(50)]
    assert set(draws) == {1}


def test_choices_are_equally_likely() -> None:
    random = np.random.RandomState(0)
    draws = [Choice(("a", "b", "c")).draw(random) for _ in range(3000)]
    for option in "abc":
        assert draws.count(option) == pytest.approx(1000, abs=100)


def test_draws_are_python_numbers() -> None:
    random = np.random.RandomState(0)
    assert type(Uniform(0, 1).draw(random)) is float
    assert type(Power(10, 0, 1).draw(random)) is float
    assert type(Choice((5, 10)).draw(random)) is int


def test_lr_and_weight_decay_have_the_ranges_of_domainbed() -> None:
    fields = Hparams.fields()
    assert fields["lr"].default == 5e-5
    assert fields["lr"].metadata["search"] == Power(10, -5, -3.5)
    assert fields["weight_decay"].default == 0
    assert fields["weight_decay"].metadata["search"] == Power(10, -6, -2)


def test_build_fills_in_defaults() -> None:
    hparams = Example.build(lr=0.1, kind="square")
    assert hparams == Example(lr=0.1, kind="square")
    assert (hparams.count, hparams.size, hparams.limit, hparams.title) == (3, 1.5, None, "none given")


def test_hparams_cannot_be_changed() -> None:
    hparams = Example.build()
    with pytest.raises(dataclasses.FrozenInstanceError):
        hparams.lr = 1.0  # type: ignore[misc]


def test_integers_are_converted_to_floats() -> None:
    lr = Example.build(lr=1).lr
    assert lr == 1.0
    assert type(lr) is float
    assert Example.build(limit=2).limit == 2.0
    assert Example.build(limit=None).limit is None


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"lr": "fast"}, "lr must be a number, got 'fast'"),
        ({"lr": True}, "lr must be a number, got True"),
        ({"lr": None}, "lr must be a number, got None"),
        ({"count": 2.5}, "count must be an integer, got 2.5"),
        ({"count": True}, "count must be an integer, got True"),
        ({"is_bold": 1}, "is_bold must be true or false, got 1"),
        ({"limit": "none"}, "limit must be a number or none, got 'none'"),
        ({"kind": "oval"}, "kind must be one of 'round', 'square', got 'oval'"),
        ({"variant": "fats"}, "variant must be one of 'usual', 'fast', 'named', got 'fats'"),
        ({"title": 3}, "title must be a string, got 3"),
    ],
)
def test_build_rejects_wrong_types(values: dict[str, object], message: str) -> None:
    with pytest.raises(DomainwiseError) as caught:
        Example.build(**values)
    assert message in str(caught.value)


@pytest.mark.parametrize("call", [lambda: Example.build(coutn=3), lambda: Example.parse({"coutn": "3"})])
def test_error_for_an_unknown_name_suggests_the_nearest(call) -> None:
    with pytest.raises(DomainwiseError, match="unknown hyperparameter 'coutn'; did you mean 'count'") as caught:
        call()
    for name in ("lr", "weight_decay", "variant", "title"):
        assert name in str(caught.value)


def test_parse_converts_to_the_types_of_the_fields() -> None:
    text = {
        "lr": "1e-3",
        "count": "7",
        "size": "2",
        "limit": "none",
        "kind": "square",
        "is_bold": "true",
        "title": "7",
        "variant": "fast",
    }
    parsed = Example.parse(text)
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
    ("text", "message"),
    [
        ({"lr": "fast"}, "lr must be a number, got 'fast'"),
        ({"count": "2.5"}, "count must be an integer, got '2.5'"),
        ({"kind": "oval"}, "kind must be one of 'round', 'square', got 'oval'"),
        ({"is_bold": "yes"}, "is_bold must be true or false, got 'yes'"),
        ({"limit": "low"}, "limit must be a number or none, got 'low'"),
    ],
)
def test_parse_rejects_wrong_types(text: dict[str, str], message: str) -> None:
    with pytest.raises(DomainwiseError) as caught:
        Example.parse(text)
    assert message in str(caught.value)


def test_parsed_values_can_be_built() -> None:
    assert Example.build(**Example.parse({"variant": "fast", "size": "4"})) == Example(
        variant="fast", count=1, size=4.0
    )


def test_a_variant_sets_its_values_only() -> None:
    assert Example.build(variant="fast") == Example(variant="fast", count=1, size=9.0)
    assert Example.build(variant="named") == Example(variant="named", kind="square")
    assert Example.build(variant="usual") == Example.build() == Example()


@pytest.mark.parametrize("order", [("variant", "size"), ("size", "variant")])
def test_explicit_values_override_the_variant(order: tuple[str, str]) -> None:
    values = {"variant": "fast", "size": 0.25}
    hparams = Example.build(**{name: values[name] for name in order})
    assert (hparams.count, hparams.size) == (1, 0.25)


def test_explicit_defaults_override_the_variant() -> None:
    assert Example.build(variant="fast", count=3).count == 3
    assert Example.build(variant="named", kind="round").kind == "round"


def test_as_dict_contains_every_field() -> None:
    hparams = Example.build(variant="fast", lr=0.5)
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
    assert Example.build(**hparams.as_dict()) == hparams


@dataclass(frozen=True)
class Bounded(Hparams):
    share: float = hparam(0.5, help="A share.", low=0, high=1)
    size: float | None = hparam(None, help="A size.", above=0)
    count: int = hparam(3, help="How many.", search=Choice((3, 5)), low=2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"share": -0.1}, "share must be at least 0 and at most 1, got -0.1"),
        ({"share": 1.5}, "share must be at least 0 and at most 1, got 1.5"),
        ({"share": float("nan")}, "share must be at least 0 and at most 1, got nan"),
        ({"size": 0}, "size must be greater than 0, got 0.0"),
        ({"size": float("inf")}, r"size must be greater than 0 and at most 1e\+30, got inf"),
        ({"size": 1e300}, r"size must be greater than 0 and at most 1e\+30, got 1e\+300"),
        ({"count": 10**30}, r"count must be at least 2 and at most 2.14748e\+09, got 10+"),
        ({"lr": float("inf")}, r"lr must be at most 1e\+30, got inf"),
        ({"count": 1}, "count must be at least 2, got 1"),
    ],
)
def test_values_outside_their_bounds_are_rejected(values: dict[str, float], message: str) -> None:
    with pytest.raises(DomainwiseError, match=message):
        Bounded.build(**values)


def test_bounds_are_inclusive_and_none_is_not_checked() -> None:
    hparams = Bounded.build(share=1, count=2)
    assert (hparams.share, hparams.size, hparams.count) == (1.0, None, 2)
    assert Bounded.build(share=0, size=1e-9).share == 0.0


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_field_of_every_method_has_one_line_of_help(algorithm: str) -> None:
    for name, field in ALGORITHMS[algorithm].Hparams.fields().items():
        text = field.metadata.get("help", "")
        assert text.endswith("."), f"{algorithm}: give {name} help=, one sentence"
        assert "\n" not in text
        assert len(text) <= 110, f"{algorithm}: shorten the help of {name}"


def test_hparams_do_not_import_torch_or_numpy() -> None:
    program = "import sys, domainwise.hparams; sys.exit(bool({'torch', 'numpy'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
