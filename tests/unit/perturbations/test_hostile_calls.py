"""Calls that no documentation asks for: each gives the result of a plain call, or an error that names the argument.

The tables below are tried in full on universal perturbations, and in part on the other kinds, which share the checks
of arguments. A refused call must leave the perturbation as it was.
"""

import copy
import re
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import domainwise
from domainwise.perturbations import (
    LowRankPerturbation,
    MultiplePerturbation,
    SampleWisePerturbation,
    UniversalPerturbation,
)

PACKAGE = str(Path(domainwise.__file__).parent)
SHAPE = (2, 5, 4)
NAN, INF = float("nan"), float("inf")
X = torch.rand(6, *SHAPE, generator=torch.Generator().manual_seed(1))
Y = torch.tensor([0, 1, 2, 0, 1, 2])
DOMAIN = torch.tensor([0, 0, 1, 1, 1, 0])

CLASSES: dict[str, tuple[Any, dict[str, Any]]] = {
    "sample-wise": (SampleWisePerturbation, {}),
    "universal": (UniversalPerturbation, {}),
    "multiple": (MultiplePerturbation, {"count": 2}),
    "low-rank": (LowRankPerturbation, {"rank": 2}),
}
# Those that `forward` and `ascend_` are for.
ONE_PASS: dict[str, tuple[Any, dict[str, Any]]] = {
    "universal": CLASSES["universal"],
    "multiple": (MultiplePerturbation, {"count": 2, "weights": "domain"}),
    "low-rank": CLASSES["low-rank"],
}


def build(kind: str, classes: dict[str, tuple[Any, dict[str, Any]]] = CLASSES, **given: Any) -> Any:
    of_kind, options = classes[kind]
    settings = {"shape": SHAPE, "epsilon": 0.5, "num_domains": 2, "generator": torch.Generator().manual_seed(0)}
    return of_kind(**(settings | options | given))


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(18, 3))


MODEL = network()


def losses(x: Tensor) -> Tensor:
    return F.cross_entropy(MODEL(x), Y, reduction="none")


def snapshot(perturbation: Any) -> dict[str, Any]:
    state = copy.deepcopy(perturbation.state_dict())
    return {**state.pop("_extra_state"), **state, "step_size": perturbation.step_size}


def assert_equal(first: Any, second: Any) -> None:
    torch.testing.assert_close(first, second, rtol=0, atol=0, check_stride=False)


def assert_refused(argument: str, call: Callable[[], Any]) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        call()
    message = str(error.value)
    assert re.search(rf"\b{argument}\b.* must ", message), message
    assert "\n" not in message
    assert traceback.extract_tb(error.value.__traceback__)[-1].filename.startswith(PACKAGE)


class NotAPerturbation:
    """Has nothing that anyone would ask for."""


NOT_NUMBERS = ["0.1", [0.1], None, True, 1j, NAN, -1.0, torch.tensor([0.1, 0.2]), NotAPerturbation()]
NOT_COUNTS = ["2", [2], None, True, 1.5, 2.0, NAN, -1, torch.tensor([1, 2]), torch.tensor(1.0), NotAPerturbation()]
NOT_CHOICES = ["other", None, 2, ["l2"], np.array(["l2", "linf"]), torch.zeros(2)]

REFUSED_SETTINGS: dict[str, list[Any]] = {
    "shape": [
        8, None, "abc", (), (2, 0, 4), (2, -5, 4), (2, 5.0, 4), (2, "5", 4), (2, True, 4), torch.zeros(3), {2: 5}, 2.5,
    ],
    "epsilon": [
        "two", "2/0", [0.5], None, True, 1j, NAN, INF, -0.1, 10**400, torch.tensor([0.5, 0.5]), torch.tensor(NAN),
    ],
    "step_size": [value for value in NOT_NUMBERS if value is not None] + [INF],
    "num_domains": [*NOT_COUNTS, 0],
    "warmup_steps": NOT_COUNTS,
    "norm": NOT_CHOICES,
    "ascent": [value for value in NOT_CHOICES if value is not None],
    "reduction": NOT_CHOICES,
    "bounds": [
        1.0, (1.0, 0.0), (0.5, 0.5), (NAN, 1.0), (0.0, NAN), (0.0,), (0.0, 0.5, 1.0), ("0", "1"), "01", (None, None),
        (0.0, True), {0: 1}, (torch.ones(2, 1, 1), torch.zeros(2, 1, 1)), (0.0, torch.ones(3, 1, 1)),
        (0.0, torch.full((2, 1, 1), NAN)), ([0.0, 0.0], [1.0, 1.0]), torch.tensor([0.0, 1.0, 2.0]), (0.0, 1j),
    ],
    "mean": [0.5, "ab", (0.5,) * 3, (NAN, 0.5), (INF, 0.5), (None, 0.5), ("0.5", "0.5"), [[0.5, 0.5], [0.5, 0.5]], ()],
    "std": [0.5, (0.0, 0.5), (-0.5, 0.5), (NAN, 0.5), (INF, 0.5), (0.5,) * 3, torch.zeros(2), (True, True), {0.5, 0.4}],
    "loss_cap": [value for value in NOT_NUMBERS if value is not None] + [0.0],
    "generator": [0, "0", torch.tensor(0), np.random.default_rng(0)],
}  # fmt: skip
REFUSED_SETTINGS_OF_ONE: dict[str, dict[str, list[Any]]] = {
    "sample-wise": {
        "start": NOT_CHOICES, "over": NOT_CHOICES, "rank": [value for value in NOT_COUNTS if value is not None] + [0],
    },
    "universal": {"start": NOT_CHOICES},
    "multiple": {
        "start": NOT_CHOICES, "weights": NOT_CHOICES, "normalized_over": NOT_CHOICES, "count": [*NOT_COUNTS, 0],
        "temperature": [*NOT_NUMBERS, 0.0], "memory": [*NOT_NUMBERS, 1.1], "weight_step_size": [*NOT_NUMBERS, INF],
    },
    "low-rank": {"rank": [*NOT_COUNTS, 0], "solver": NOT_CHOICES, "shape": [(5, 4), (1, 2, 5, 4)]},
}  # fmt: skip
# Unusual values, each with the plain one that it means.
ACCEPTED_SETTINGS: list[tuple[str, Any, Any]] = [
    ("shape", [2, 5, 4], SHAPE),
    ("shape", torch.Size(SHAPE), SHAPE),
    ("shape", np.array(SHAPE), SHAPE),
    ("shape", torch.tensor(SHAPE), SHAPE),
    ("epsilon", "0.5", 0.5),
    ("epsilon", torch.tensor(0.5), 0.5),
    ("epsilon", np.float64(0.5), 0.5),
    ("epsilon", 1, 1.0),
    ("step_size", torch.tensor(0.25), 0.25),
    ("step_size", np.float32(0.25), 0.25),
    ("step_size", 1, 1.0),
    ("num_domains", np.int64(2), 2),
    ("num_domains", torch.tensor(2), 2),
    ("warmup_steps", np.int32(3), 3),
    ("loss_cap", np.float64(2.0), 2.0),
    ("loss_cap", INF, None),
    ("bounds", [0.0, 1.0], (0.0, 1.0)),
    ("bounds", (0, 1), (0.0, 1.0)),
    ("bounds", torch.tensor([0.0, 1.0]), (0.0, 1.0)),
    ("bounds", np.array([0.0, 1.0]), (0.0, 1.0)),
    ("bounds", (-INF, INF), None),
]
ACCEPTED_STATISTICS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"mean": mean, "std": std}, {"mean": (0.25, 0.5), "std": (0.5, 0.25)})
    for mean, std in (
        ([0.25, 0.5], [0.5, 0.25]),
        (torch.tensor([0.25, 0.5]), np.array([0.5, 0.25])),
        (torch.tensor([0.25, 0.5]).reshape(2, 1, 1), torch.tensor([0.5, 0.25]).reshape(1, 2, 1, 1)),
    )
] + [
    ({"mean": (0, 0), "std": (1, 1)}, {"mean": (0.0, 0.0), "std": (1.0, 1.0)}),
    ({"mean": [0.5], "std": [0.25]}, {"mean": (0.5, 0.5), "std": (0.25, 0.25)}),
]


class ReturnsDict(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"logits": MODEL(x), "loss": losses(x)}


class ReturnsTuple(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return losses(x), x


REFUSED_INPUTS: dict[str, Any] = {
    "list": X.tolist(),
    "tensors in a list": list(X),
    "numpy": X.numpy(),
    "none": None,
    "number": 0.5,
    "uint8": (X * 255).to(torch.uint8),
    "int64": (X * 255).long(),
    "bool": X > 0.5,
    "complex": X.to(torch.complex64),
    "float8": X.to(torch.float8_e4m3fn),
    "one image": X[0],
    "gray": X[:, :1],
    "channels last": X.permute(0, 2, 3, 1),
    "flat": X.flatten(1),
    "one dimension too many": X[None],
    "no dimension": torch.tensor(0.5),
    "sparse": X.to_sparse(),
}
REFUSED_DOMAINS: dict[str, Any] = {
    "list": [0, 0, 1, 1, 1, 0],
    "short list": [0, 1],
    "tuple": (0, 0, 1, 1, 1, 0),
    "numpy": DOMAIN.numpy(),
    "float": 1.0,
    "nan": NAN,
    "name": "photo",
    "names": ["photo"] * 6,
    "bool": True,
    "float tensor": DOMAIN.float(),
    "bool tensor": DOMAIN.bool(),
    "complex tensor": DOMAIN.to(torch.complex64),
    "too short": DOMAIN[:5],
    "column": DOMAIN[:, None],
    "no dimension": torch.tensor(1),
    "one-hot": F.one_hot(DOMAIN, 2),
    "too large": DOMAIN + 1,
    "negative": DOMAIN - 1,
    "too large number": 2,
    "negative number": -1,
    "huge number": 10**30,
    "none": None,
    "range": range(6),
    "dict": {0: 1},
}
REFUSED_LOSSES: dict[str, Any] = {
    "none": None,
    "losses themselves": losses(X),
    "name": "cross_entropy",
    "returns float": lambda x: 0.5,
    "returns none": lambda x: None,
    "returns dict": lambda x: {"loss": losses(x)},
    "returns tuple": lambda x: (losses(x), x),
    "returns list": lambda x: list(losses(x)),
    "returns numpy": lambda x: losses(x).detach().numpy(),
    "model with a dict": ReturnsDict(),
    "model with a tuple": ReturnsTuple(),
    "logits": lambda x: MODEL(x),
    "mean": lambda x: losses(x).mean(),
    "column": lambda x: losses(x)[:, None],
    "too few": lambda x: losses(x)[:5],
    "integers": lambda x: MODEL(x).argmax(1),
    "mistakes": lambda x: MODEL(x).argmax(1) != Y,
    "accuracy": lambda x: (MODEL(x).argmax(1) == Y).float(),
    "complex": lambda x: losses(x).to(torch.complex64),
    "detached": lambda x: losses(x).detach(),
    "without gradients": torch.no_grad()(losses),
    "of the clean batch": lambda x: losses(X),
    "constant": lambda x: torch.zeros(6),
}
REFUSED_STEPS = ["1", None, True, 1.5, 2.0, NAN, -1, [1], torch.tensor([1, 2]), NotAPerturbation()]
# Unusual arguments of `attack`, each with the plain one that it means.
ACCEPTED_CALLS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "x with gradients": ({"x": X.clone().requires_grad_()}, {"x": X}),
    "x expanded over samples": ({"x": X[:1].expand_as(X)}, {"x": X[:1].repeat(6, 1, 1, 1)}),
    "x expanded over channels": ({"x": X[:, :1].expand_as(X)}, {"x": X[:, :1].repeat(1, 2, 1, 1)}),
    "x expanded over pixels": ({"x": X[..., :1, :1].expand_as(X)}, {"x": X[..., :1, :1].repeat(1, 1, 5, 4)}),
    "x of one value": ({"x": torch.tensor(0.5).expand_as(X)}, {"x": torch.full_like(X, 0.5)}),
    "x as a view": ({"x": torch.cat([X, X], 1)[:, :2]}, {"x": X}),
    "x transposed": ({"x": X.mT.contiguous().mT}, {"x": X}),
    "x in channels-last memory": ({"x": X.contiguous(memory_format=torch.channels_last)}, {"x": X}),
    "x as a parameter": ({"x": nn.Parameter(X.clone())}, {"x": X}),
    "domain as int32": ({"domain": DOMAIN.int()}, {"domain": DOMAIN}),
    "domain as a number": ({"domain": 1}, {"domain": torch.ones(6, dtype=torch.int64)}),
    "domain as a numpy number": ({"domain": np.int64(1)}, {"domain": torch.ones(6, dtype=torch.int64)}),
    "domain expanded": ({"domain": torch.tensor([1]).expand(6)}, {"domain": torch.ones(6, dtype=torch.int64)}),
    "domain with steps": ({"domain": DOMAIN.repeat_interleave(2)[::2]}, {"domain": DOMAIN}),
    "steps as a numpy number": ({"steps": np.int64(2)}, {"steps": 2}),
    "steps as a tensor": ({"steps": torch.tensor(2)}, {"steps": 2}),
    "no steps": ({"steps": 0, "loss_fn": lambda x: None}, {"steps": 0}),
    "losses in float64": ({"loss_fn": lambda x: losses(x).double()}, {}),
    "losses as a view": ({"loss_fn": lambda x: torch.stack([losses(x)] * 2, 1)[:, 0]}, {}),
    "losses with a dimension less": ({"loss_fn": lambda x: losses(x)[:, None].squeeze(1)}, {}),
}

REFUSED_STATES: dict[str, tuple[str, Any]] = {
    **{f"epsilon {value}": ("epsilon", value) for value in (NAN, INF, -1.0, None, "large", [0.5, 0.5], True)},
    **{f"epsilon tensor {value}": ("epsilon", torch.tensor(value)) for value in (NAN, INF, -1.0, [0.5, 0.5])},
    **{f"updates {value}": ("updates", value) for value in (-1, 1.5, None, "many", [1], True, NAN)},
    **{f"updates tensor {value}": ("updates", torch.tensor(value)) for value in (-1, 1.5, NAN, [1, 2])},
    **{f"generator {value!r}": ("generator", value) for value in (0, "0", [1, 2])},
    "generator of floats": ("generator", torch.zeros(5056)),
    "generator too short": ("generator", torch.zeros(3, dtype=torch.uint8)),
}  # fmt: skip
REFUSED_SCALES: dict[str, Any] = {
    "list": [1.0, 1.0],
    "numpy": np.ones(2),
    "name": "mean",
    "too many": torch.ones(3),
    "one": torch.ones(1),
    "no dimension": torch.tensor(2.0),
    "column": torch.ones(2, 1),
    "bool": torch.ones(2, dtype=torch.bool),
    "complex": torch.ones(2, dtype=torch.complex64),
    "number": 2.0,
}


def name_value(value: Any) -> str:
    text = str(value) if not isinstance(value, NotAPerturbation) else "object"
    return " ".join(text.split())[:40]


def thin_out(kind: str, values: Iterable[Any], every: int = 8) -> list[Any]:
    """Return all values for universal perturbations, and some for the others: the base class checks them."""
    return list(values)[:: 1 if kind == "universal" else every]


def for_each_kind(values: Iterable[Any], every: int = 8) -> list[Any]:
    values = list(values)
    return [
        pytest.param(kind, value, id=f"{kind}-{name_value(value)}")
        for kind in CLASSES
        for value in thin_out(kind, values, every)
    ]


def refused_settings() -> list[Any]:
    return [
        pytest.param(kind, argument, value, id=f"{kind}-{argument} {name_value(value)}")
        for kind in CLASSES
        for argument, values in [
            *((argument, thin_out(kind, values)) for argument, values in REFUSED_SETTINGS.items()),
            *REFUSED_SETTINGS_OF_ONE[kind].items(),
        ]
        for value in values
    ]


class TestSettings:
    @pytest.mark.parametrize(("kind", "argument", "value"), refused_settings())
    def test_refused(self, kind: str, argument: str, value: Any) -> None:
        given = {"mean": (0.5, 0.5), "std": (0.5, 0.5)} if argument in ("mean", "std") else {}
        assert_refused(argument, lambda: build(kind, **(given | {argument: value})))

    @pytest.mark.parametrize(
        ("kind", "given", "plain"),
        [
            pytest.param(kind, given, plain, id=f"{kind}-{name_value(given)}")
            for kind in CLASSES
            for given, plain in thin_out(
                kind,
                [*(({name: value}, {name: plain}) for name, value, plain in ACCEPTED_SETTINGS), *ACCEPTED_STATISTICS],
                every=4,
            )
        ],
    )
    def test_accepted(self, kind: str, given: dict[str, Any], plain: dict[str, Any]) -> None:
        one, other = build(kind, **given), build(kind, **plain)
        x = X
        if "mean" in given:
            x = (X - torch.tensor(plain["mean"]).reshape(2, 1, 1)) / torch.tensor(plain["std"]).reshape(2, 1, 1)
        assert_equal(one.attack(x, DOMAIN, losses), other.attack(x, DOMAIN, losses))
        assert_equal(snapshot(one), snapshot(other))

    @pytest.mark.parametrize(("kind", "value"), for_each_kind(value for value in NOT_NUMBERS if value is not None))
    def test_a_refused_new_step_size(self, kind: str, value: Any) -> None:
        perturbation = build(kind)
        before = snapshot(perturbation)
        assert_refused("step_size", lambda: setattr(perturbation, "step_size", value))
        assert_equal(snapshot(perturbation), before)

    @pytest.mark.parametrize(("kind", "value"), for_each_kind(REFUSED_SETTINGS["epsilon"]))
    def test_a_refused_new_radius(self, kind: str, value: Any) -> None:
        perturbation = build(kind)
        before = snapshot(perturbation)
        assert_refused("epsilon", lambda: setattr(perturbation, "epsilon", value))
        assert_equal(snapshot(perturbation), before)


REFUSED_ARGUMENTS: dict[str, dict[str, Any]] = {
    "x": REFUSED_INPUTS,
    "domain": REFUSED_DOMAINS,
    "loss_fn": REFUSED_LOSSES,
    "steps": {name_value(value): value for value in REFUSED_STEPS},
}


def refused_calls(kinds: Iterable[str], *arguments: str) -> list[Any]:
    return [
        pytest.param(kind, argument, value, id=f"{kind}-{argument} {name}")
        for kind in kinds
        for argument in arguments
        for name, value in thin_out(kind, REFUSED_ARGUMENTS[argument].items())
    ]


class TestAttack:
    @pytest.mark.parametrize(("kind", "argument", "value"), refused_calls(CLASSES, "x", "domain", "loss_fn", "steps"))
    def test_refused(self, kind: str, argument: str, value: Any) -> None:
        perturbation = build(kind)
        before = snapshot(perturbation)
        given = {"x": X, "domain": DOMAIN, "loss_fn": losses, argument: value}
        assert_refused(argument, lambda: perturbation.attack(**given))
        after = snapshot(perturbation)
        if kind == "sample-wise" and argument == "loss_fn":
            before["generator"] = after["generator"]  # its start is drawn before the first loss
        assert_equal(after, before)

    @pytest.mark.parametrize(("kind", "name"), for_each_kind(ACCEPTED_CALLS, every=2))
    def test_accepted(self, kind: str, name: str) -> None:
        defaults = {"x": X, "domain": DOMAIN, "loss_fn": losses}
        given, plain = ACCEPTED_CALLS[name]
        one, other = build(kind), build(kind)
        # Sums over another memory layout are rounded in another order.
        closeness = {"rtol": 1e-4, "atol": 1e-6, "check_stride": False}
        for _ in range(2):
            perturbed, expected = one.attack(**(defaults | given)), other.attack(**(defaults | plain))
            torch.testing.assert_close(perturbed, expected, **closeness)
        torch.testing.assert_close(snapshot(one), snapshot(other), **closeness)


class TestForward:
    @pytest.mark.parametrize(("kind", "argument", "value"), refused_calls(ONE_PASS, "x", "domain"))
    def test_refused(self, kind: str, argument: str, value: Any) -> None:
        perturbation = build(kind, ONE_PASS)
        assert_refused(argument, lambda: perturbation(**{"x": X, "domain": DOMAIN, argument: value}))

    @pytest.mark.parametrize("name", [name for name in ACCEPTED_CALLS if name.split()[0] in ("x", "domain")])
    @pytest.mark.parametrize("kind", ONE_PASS)
    def test_accepted(self, kind: str, name: str) -> None:
        given, plain = ACCEPTED_CALLS[name]
        perturbation = build(kind, ONE_PASS)
        defaults = {"x": X, "domain": DOMAIN}
        assert_equal(perturbation(**(defaults | given)), perturbation(**(defaults | plain)))


class TestAscend:
    @pytest.mark.parametrize("name", REFUSED_SCALES)
    @pytest.mark.parametrize("kind", ONE_PASS)
    def test_refused(self, kind: str, name: str) -> None:
        perturbation = build(kind, ONE_PASS)
        losses(perturbation(X, DOMAIN)).mean().backward()
        before = snapshot(perturbation)
        assert_refused("gradient_scale", lambda: perturbation.ascend_(REFUSED_SCALES[name]))
        assert_equal(snapshot(perturbation), before)
        perturbation.ascend_()  # the gradients are still there

    @pytest.mark.parametrize("scale", [torch.tensor([2, 3]), torch.tensor([2.0, 3.0]).double()], ids=str)
    @pytest.mark.parametrize("kind", ONE_PASS)
    def test_accepted(self, kind: str, scale: Tensor) -> None:
        one, other = (build(kind, ONE_PASS, ascent="gradient") for _ in range(2))
        for each, factor in ((one, scale), (other, torch.tensor([2.0, 3.0]))):
            losses(each(X, DOMAIN)).mean().backward()
            each.ascend_(factor)
        assert_equal(snapshot(one), snapshot(other))


class TestLoadStateDict:
    @pytest.mark.parametrize(("kind", "name"), for_each_kind(REFUSED_STATES))
    def test_refused(self, kind: str, name: str) -> None:
        argument, value = REFUSED_STATES[name]
        perturbation, other = build(kind), build(kind, generator=torch.Generator().manual_seed(1))
        state = other.state_dict()
        state["_extra_state"][argument] = value
        before = snapshot(perturbation)
        assert_refused(argument, lambda: perturbation.load_state_dict(state))
        assert_equal(snapshot(perturbation), before)

    @pytest.mark.parametrize(
        ("kind", "extra"), for_each_kind([None, 0.5, [], {}, {"updates": torch.tensor(1)}, torch.zeros(2)])
    )
    def test_refused_without_a_radius(self, kind: str, extra: Any) -> None:
        perturbation = build(kind)
        before = snapshot(perturbation)
        state = build(kind, generator=torch.Generator().manual_seed(1)).state_dict()
        assert_refused("state_dict", lambda: perturbation.load_state_dict({**state, "_extra_state": extra}))
        assert_equal(snapshot(perturbation), before)

    @pytest.mark.parametrize("value", [NAN, INF, -INF])
    @pytest.mark.parametrize("kind", [kind for kind in CLASSES if kind != "sample-wise"])
    def test_refused_with_values_that_are_not_finite(self, kind: str, value: float) -> None:
        perturbation = build(kind)
        before = snapshot(perturbation)
        state = build(kind, generator=torch.Generator().manual_seed(1)).state_dict()
        state["deltas"] = torch.full_like(state["deltas"], value)
        assert_refused("deltas", lambda: perturbation.load_state_dict(state))
        assert_equal(snapshot(perturbation), before)

    @pytest.mark.parametrize("kind", CLASSES)
    def test_a_part_of_another_module_is_refused_as_well(self, kind: str) -> None:
        module = nn.ModuleDict({"perturbation": build(kind)})
        state = module.state_dict()
        state["perturbation._extra_state"]["epsilon"] = NAN
        assert_refused("epsilon", lambda: module.load_state_dict(state))

    @pytest.mark.parametrize("kind", CLASSES)
    def test_plain_numbers_are_accepted(self, kind: str) -> None:
        perturbation = build(kind)
        state = perturbation.state_dict()
        state["_extra_state"] = {"epsilon": 0.25, "updates": 3, "generator": None}
        perturbation.load_state_dict(state)
        assert (perturbation.epsilon, perturbation.updates) == (0.25, 3)


class TestInferenceMode:
    """A state of torch, not an argument: the error is a RuntimeError that says what to do instead."""

    @pytest.mark.parametrize("kind", CLASSES)
    def test_attack_is_refused(self, kind: str) -> None:
        perturbation = build(kind)
        before = snapshot(perturbation)
        with torch.inference_mode(), pytest.raises(RuntimeError, match=r"^attack\(\) needs gradients.*torch.no_grad"):
            perturbation.attack(X, DOMAIN, losses)
        assert_equal(snapshot(perturbation), before)

    @pytest.mark.parametrize("kind", CLASSES)
    def test_a_perturbation_cannot_be_created(self, kind: str) -> None:
        with torch.inference_mode(), pytest.raises(RuntimeError, match=r"^a perturbation needs gradients"):
            build(kind)

    @pytest.mark.parametrize("kind", CLASSES)
    def test_images_from_there_can_be_attacked(self, kind: str) -> None:
        with torch.inference_mode():
            x, domain = X.clone(), DOMAIN.clone()
        assert_equal(build(kind).attack(x, domain, losses), build(kind).attack(X, DOMAIN, losses))

    @pytest.mark.parametrize("kind", ONE_PASS)
    def test_forward_works(self, kind: str) -> None:
        perturbation = build(kind, ONE_PASS)
        expected = perturbation(X, DOMAIN)
        with torch.inference_mode():
            assert_equal(perturbation(X, DOMAIN), expected.detach())
