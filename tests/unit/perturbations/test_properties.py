"""What holds for every kind of perturbation, whatever it is given."""

import copy
import io
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from perturbation_kinds import (
    KEPT,
    KINDS,
    MIXED_BY_SAMPLE,
    ONE_PASS,
    SAMPLE_WISE,
    SHAPE,
    UNPROJECTED,
    WITHOUT_DRAWS,
    build,
    length,
    linear_loss,
    pass_once,
    state_of,
    wavy_loss,
)
from torch import Tensor, nn

from domainwise.perturbations import MultiplePerturbation

repeatable = settings(derandomize=True, deadline=None, max_examples=25)

NORMS = st.sampled_from(["l2", "linf"])
ASCENTS = st.sampled_from(["normalized", "gradient", "sign"])
RADII = st.sampled_from([0.0, 1e-3, 0.1, 0.7, 5.0])
ENDLESS = 1e4
USES = [(kind, "attack") for kind in KEPT] + [(kind, "one pass") for kind in ONE_PASS]
FREE = [kind for kind in WITHOUT_DRAWS if kind not in UNPROJECTED]


@dataclass
class Case:
    """A batch of mixed domains, and the settings of a perturbation for it."""

    domain: Tensor
    double: bool
    seed: int
    settings: dict[str, Any]
    x: Tensor = field(init=False)
    slopes: Tensor = field(init=False)

    def __post_init__(self) -> None:
        source = torch.Generator().manual_seed(self.seed)
        dtype = torch.float64 if self.double else torch.float32
        self.x = torch.rand(len(self.domain), *SHAPE, generator=source, dtype=dtype)
        self.slopes = torch.randn(self.x.shape, generator=source, dtype=dtype)

    def build(self, kind: str, **settings: Any) -> Any:
        return build(kind, seed=self.seed, double=self.double, **(self.settings | settings))

    @property
    def present(self) -> list[int]:
        return self.domain.unique().tolist()

    @property
    def closeness(self) -> dict[str, float]:
        return {"rtol": 0, "atol": 1e-9} if self.double else {"rtol": 1e-5, "atol": 2e-5}


@st.composite
def cases(draw: st.DrawFn, **fixed: Any) -> Case:
    num_domains = draw(st.integers(1, 4))
    chosen = {
        "num_domains": num_domains,
        "norm": draw(NORMS),
        "ascent": draw(ASCENTS),
        "epsilon": draw(st.sampled_from([1e-3, 0.1, 0.7, 5.0])),
        "step_size": draw(st.sampled_from([1e-3, 0.1, 2.0])),
        "bounds": draw(st.sampled_from([None, (0.0, 1.0)])),
        "count": draw(st.integers(1, 4)),
        "rank": draw(st.integers(1, 3)),
    }
    domain = draw(st.lists(st.integers(0, num_domains - 1), min_size=1, max_size=12))
    return Case(torch.tensor(domain), draw(st.booleans()), draw(st.integers(0, 999)), chosen | fixed)


def assert_same_state(first: nn.Module, second: nn.Module, **closeness: float) -> None:
    one, other = state_of(first), state_of(second)
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(one[name], other[name], **closeness)


def assert_offset_in_ball(perturbed: Tensor, case: Case, perturbation: Any) -> None:
    """Perturbed samples lie in the ball around them, one by one or a domain's samples all together."""
    offset = perturbed - case.x
    if getattr(perturbation, "over", "sample") == "domain":
        lengths = [length(offset[case.domain == each], perturbation.norm, 0) for each in case.present]
    else:
        lengths = [*length(offset, perturbation.norm, 1)]
    assert max(lengths) <= perturbation.epsilon * (1 + 1e-5) + 2e-6
    if perturbation.space.is_bounded:
        assert perturbed.min() >= 0
        assert perturbed.max() <= 1


def assert_kept_in_ball(perturbation: Any) -> None:
    epsilon = perturbation.epsilon * (1 + 1e-5)
    if "deltas" in state_of(perturbation):
        points = 2 if isinstance(perturbation, MultiplePerturbation) else 1
        assert length(perturbation.deltas, perturbation.norm, points).max() <= epsilon
    if perturbation.is_kept:
        assert length(perturbation.delta(), perturbation.norm, 1).max() <= epsilon


class TestConstraints:
    @pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in UNPROJECTED])
    @given(
        case=cases(),
        actions=st.lists(
            st.one_of(st.tuples(st.just("attack"), st.integers(1, 3)), st.tuples(st.just("radius"), RADII)),
            min_size=1,
            max_size=4,
        ),
    )
    @repeatable
    def test_attacks_and_new_radii_stay_in_the_ball(
        self, kind: str, case: Case, actions: list[tuple[str, Any]]
    ) -> None:
        perturbation = case.build(kind)
        assert_kept_in_ball(perturbation)
        for action, value in [*actions, ("attack", 1)]:
            if action == "radius":
                perturbation.epsilon = value
                assert perturbation.epsilon == value
            else:
                perturbed = perturbation.attack(case.x, case.domain, wavy_loss(case.slopes), steps=value)
                assert perturbed.isfinite().all()
                assert_offset_in_ball(perturbed, case, perturbation)
            assert_kept_in_ball(perturbation)

    @pytest.mark.parametrize("kind", [kind for kind in ONE_PASS if kind not in UNPROJECTED])
    @given(case=cases(), radii=st.lists(RADII, min_size=1, max_size=4))
    @repeatable
    def test_one_pass_steps_stay_in_the_ball(self, kind: str, case: Case, radii: list[float]) -> None:
        perturbation = case.build(kind)
        for radius in radii:
            pass_once(perturbation, case.x, case.domain, wavy_loss(case.slopes))
            assert_kept_in_ball(perturbation)
            perturbation.epsilon = radius
            assert_kept_in_ball(perturbation)
            assert_offset_in_ball(perturbation(case.x, case.domain), case, perturbation)

    @pytest.mark.parametrize("kind", UNPROJECTED)
    @given(case=cases(norm="l2", bounds=None))
    @repeatable
    def test_a_start_outside_the_ball_ends_with_the_first_step(self, kind: str, case: Case) -> None:
        perturbation = case.build(kind)
        points = perturbation.deltas.ndim - len(SHAPE)
        assert (length(perturbation.deltas, "l2", points) > perturbation.epsilon).all()
        perturbation.attack(case.x, case.domain, linear_loss(case.slopes))
        stepped = length(perturbation.deltas, "l2", points)[case.present]
        assert stepped.max() <= perturbation.epsilon * (1 + 1e-5)

    @pytest.mark.parametrize("kind", UNPROJECTED)
    @pytest.mark.parametrize("norm", ["l2", "linf"])
    def test_a_new_radius_brings_a_start_outside_the_ball_inside(self, kind: str, norm: str) -> None:
        perturbation = build(kind, num_domains=2, norm=norm, epsilon=1.0)
        perturbation.epsilon = 1.0
        assert_kept_in_ball(perturbation)

    @pytest.mark.parametrize("kind", KINDS)
    @given(case=cases(epsilon=5.0))
    @settings(repeatable, max_examples=10)
    def test_perturbed_batches_are_inside_tensor_bounds(self, kind: str, case: Case) -> None:
        low = torch.tensor([-0.25, 0.0]).reshape(2, 1, 1).to(case.x.dtype)
        high = torch.tensor([1.0, 1.5]).reshape(2, 1, 1).to(case.x.dtype)
        perturbation = case.build(kind, bounds=(low, high))
        perturbed = perturbation.attack(case.x, case.domain, wavy_loss(case.slopes), steps=2)
        assert (perturbed >= low).all()
        assert (perturbed <= high).all()

    @pytest.mark.parametrize("start", ["zero", "random", "cube"])
    @pytest.mark.parametrize("over", ["sample", "domain"])
    def test_sample_wise_gradients_are_taken_inside_the_bounds(self, start: str, over: str) -> None:
        perturbation = build(f"sample-wise {start} over {over}", epsilon=9.0, step_size=4.0)
        x = torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(0))
        seen: list[tuple[float, float]] = []

        def loss(x: Tensor) -> Tensor:
            seen.append((x.min().item(), x.max().item()))
            return linear_loss(x.detach() - 0.5)(x)

        perturbation.attack(x, None, loss, steps=3)
        assert len(seen) == 3
        if start == "cube":
            low, high = seen.pop(0)
            assert low < 0 < 1 < high
        assert all(low >= -1e-6 and high <= 1 + 1e-6 for low, high in seen)

    @given(case=cases(), double=st.booleans())
    @repeatable
    def test_the_rank_of_each_channel_is_limited(self, case: Case, double: bool) -> None:
        perturbation = build("low-rank", seed=case.seed, double=double, **case.settings)
        perturbation_rank = case.settings["rank"]
        x, slopes = case.x.to(perturbation.left.dtype), case.slopes.to(perturbation.left.dtype)
        tolerance = 1e-10 if double else 1e-5
        start = torch.linalg.matrix_rank(perturbation.delta().double(), rtol=tolerance)
        assert start.tolist() == [[perturbation_rank] * SHAPE[0]] * perturbation.num_domains
        for _ in range(2):
            perturbation.attack(x, case.domain, wavy_loss(slopes), steps=2)
            pass_once(perturbation, x, case.domain, wavy_loss(slopes))
            ranks = torch.linalg.matrix_rank(perturbation.delta().double(), rtol=tolerance)
            assert ranks.shape == (perturbation.num_domains, SHAPE[0])
            assert ranks.max() <= perturbation_rank

    @pytest.mark.parametrize("kind", ["multiple by domain, perturbation", "multiple by domain, stack"])
    @given(case=cases(), weight_step_size=st.sampled_from([0.0, 1e-3, 1.0, 1e4, 1e30]))
    @repeatable
    def test_learned_mixing_weights_stay_on_the_simplex(self, kind: str, case: Case, weight_step_size: float) -> None:
        perturbation = case.build(kind, weight_step_size=weight_step_size)
        for _ in range(4):
            perturbation.attack(case.x, case.domain, wavy_loss(case.slopes), steps=2)
            pass_once(perturbation, case.x, case.domain, wavy_loss(case.slopes))
            weights = perturbation.mixing_weights()
            assert weights.shape == (perturbation.num_domains, perturbation.count)
            assert weights.min() >= 0
            torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[:, 0]))

    @pytest.mark.parametrize("kind", [*MIXED_BY_SAMPLE, "multiple by domain, perturbation"])
    @given(case=cases(bounds=None, epsilon=50.0, step_size=0.1), weight_step_size=st.sampled_from([1e-3, 1.0, 1e4]))
    @repeatable
    def test_every_offset_is_a_convex_mix_of_its_domains_perturbations(
        self, kind: str, case: Case, weight_step_size: float
    ) -> None:
        case.double = True
        case.__post_init__()
        perturbation = case.build(kind, weight_step_size=weight_step_size)
        offsets = perturbation.attack(case.x, case.domain, wavy_loss(case.slopes), steps=2) - case.x
        for offset, each in zip(offsets, case.domain, strict=True):
            corners = perturbation.deltas.detach()[each].flatten(1).T
            weights = torch.linalg.lstsq(corners, offset.reshape(-1, 1)).solution
            torch.testing.assert_close(corners @ weights, offset.reshape(-1, 1))
            torch.testing.assert_close(weights.sum(), torch.ones_like(weights.sum()))
            assert weights.min() >= -1e-9


class TestBatches:
    @pytest.mark.parametrize("kind", WITHOUT_DRAWS)
    @given(case=cases(count=1), steps=st.integers(1, 2))
    @repeatable
    def test_mixed_domains_are_attacked_as_if_one_by_one(self, kind: str, case: Case, steps: int) -> None:
        together = case.build(kind)
        apart = copy.deepcopy(together)
        perturbed = together.attack(case.x, case.domain, wavy_loss(case.slopes), steps)
        expected = torch.full_like(perturbed, torch.nan)
        for each in case.present:
            rows = case.domain == each
            expected[rows] = apart.attack(case.x[rows], case.domain[rows], wavy_loss(case.slopes[rows]), steps)
        torch.testing.assert_close(perturbed, expected, **case.closeness)
        assert_same_state(together, apart, **case.closeness)

    @pytest.mark.parametrize("kind", ["multiple by domain, perturbation", "multiple by domain, stack"])
    @given(case=cases(count=3), steps=st.integers(1, 2))
    @repeatable
    def test_mixes_of_several_are_attacked_as_if_one_by_one(self, kind: str, case: Case, steps: int) -> None:
        together = case.build(kind, weight_step_size=0.5)
        apart = copy.deepcopy(together)
        together.attack(case.x, case.domain, wavy_loss(case.slopes), steps)
        for each in case.present:
            rows = case.domain == each
            apart.attack(case.x[rows], each, wavy_loss(case.slopes[rows]), steps)
        assert_same_state(together, apart, **case.closeness)

    @pytest.mark.parametrize("kind", WITHOUT_DRAWS)
    @given(case=cases(count=1), data=st.data())
    @repeatable
    def test_permuting_the_batch_permutes_the_result(self, kind: str, case: Case, data: st.DataObject) -> None:
        order = torch.tensor(data.draw(st.permutations(range(len(case.x)))))
        one = case.build(kind)
        other = copy.deepcopy(one)
        perturbed = one.attack(case.x, case.domain, wavy_loss(case.slopes), steps=2)
        permuted = other.attack(case.x[order], case.domain[order], wavy_loss(case.slopes[order]), steps=2)
        torch.testing.assert_close(permuted, perturbed[order], **case.closeness)
        assert_same_state(one, other, **case.closeness)

    @pytest.mark.parametrize(("kind", "use"), USES)
    @given(case=cases(epsilon=0.7), absent=st.integers(0, 4))
    @repeatable
    def test_an_absent_domain_does_not_move(self, kind: str, use: str, case: Case, absent: int) -> None:
        num_domains = case.settings["num_domains"] + 1
        absent = min(absent, num_domains - 1)
        domain = torch.where(case.domain >= absent, case.domain + 1, case.domain)
        perturbation = (
            case.build(kind, num_domains=num_domains, weight_step_size=0.5)
            if "multiple" in kind
            else (case.build(kind, num_domains=num_domains))
        )
        before = state_of(perturbation)
        if use == "attack":
            perturbation.attack(case.x, domain, wavy_loss(case.slopes), steps=2)
        else:
            pass_once(perturbation, case.x, domain, wavy_loss(case.slopes))
        moved = False
        for name, after in state_of(perturbation).items():
            assert torch.equal(after[absent], before[name][absent])
            moved |= not torch.equal(after[domain], before[name][domain])
        assert moved

    @pytest.mark.parametrize("kind", KINDS)
    def test_an_empty_batch_moves_nothing(self, kind: str) -> None:
        perturbation = build(kind, num_domains=2)
        before = state_of(perturbation)
        nothing = torch.zeros(0, *SHAPE)
        perturbed = perturbation.attack(nothing, torch.zeros(0, dtype=torch.int64), linear_loss(nothing))
        assert perturbed.shape == nothing.shape
        after = state_of(perturbation)
        assert all(torch.equal(after[name], before[name]) for name in before)


class CountsCalls(nn.Module):
    """Counts its calls in buffers, one changed in place and one replaced at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("in_place", torch.zeros(1))
        self.register_buffer("replaced", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.in_place.add_(1)
        self.replaced = self.replaced + 1
        return x


class CountsCallsInPlace(nn.Module):
    def __init__(self, calls: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1) if calls is None else calls)

    def forward(self, x: Tensor) -> Tensor:
        self.calls.add_(1)
        return x


class ChangesItsPart(nn.Module):
    """Writes to a part's buffer without calling the part, as a memory bank is written to."""

    def __init__(self) -> None:
        super().__init__()
        self.part = CountsCallsInPlace()

    def forward(self, x: Tensor) -> Tensor:
        self.part.calls.add_(1)
        return x


def network(counter: nn.Module | None = None) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1),
        nn.BatchNorm2d(3),
        nn.Sequential(nn.ReLU(), counter or CountsCallsInPlace()),
        nn.Conv2d(3, 2, 3),
        nn.BatchNorm2d(2),
        nn.Flatten(),
        nn.Linear(12, 3),
    )


def look_of(model: nn.Module) -> dict[str, Any]:
    """All of a network that an attack must leave alone, as plain values."""
    return {
        "parameters": {name: tensor.tolist() for name, tensor in model.named_parameters()},
        "identities": [id(tensor) for tensor in model.parameters()],
        "gradients": {n: None if p.grad is None else p.grad.tolist() for n, p in model.named_parameters()},
        "requires_grad": [tensor.requires_grad for tensor in model.parameters()],
        "buffers": {name: tensor.tolist() for name, tensor in model.named_buffers()},
        "modes": {name: part.training for name, part in model.named_modules()},
    }


class TestNetwork:
    x = torch.rand(6, *SHAPE, generator=torch.Generator().manual_seed(1))
    domain = torch.tensor([0, 1, 1, 0, 1, 1])
    labels = torch.tensor([0, 1, 2, 0, 1, 2])

    def loss(self, model: nn.Module, x: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(x), self.labels, reduction="none")

    @pytest.mark.parametrize("mode", ["train", "eval", "partly eval"])
    @pytest.mark.parametrize("gradients", ["none", "filled", "some filled"])
    @pytest.mark.parametrize("kind", KINDS)
    def test_attack_leaves_the_network_alone(self, kind: str, gradients: str, mode: str) -> None:
        model = network().train(mode != "eval")
        if mode == "partly eval":
            model[1].eval()
            model[2][0].eval()
        if gradients != "none":
            self.loss(model, self.x).mean().backward()
        if gradients == "some filled":
            model[0].weight.grad = None
        before = look_of(model)
        build(kind, num_domains=2).attack(self.x, self.domain, lambda x: self.loss(model, x), steps=2)
        assert look_of(model) == before

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_failing_loss_leaves_the_network_alone(self, kind: str) -> None:
        model = network().train()
        model[4].eval()
        before = look_of(model)
        calls: list[float] = []

        def failing_loss(x: Tensor) -> Tensor:
            losses = self.loss(model, x)
            calls.append(model[2][1].calls.item())
            if len(calls) == 2:
                raise ArithmeticError("the loss failed")
            return losses

        with pytest.raises(ArithmeticError, match="the loss failed"):
            build(kind, num_domains=2).attack(self.x, self.domain, failing_loss, steps=3)
        assert len(calls) == 2
        assert look_of(model) == before

    def test_the_network_is_in_its_own_mode_during_the_attack(self) -> None:
        model = network().train()
        model[1].eval()
        modes: list[dict[str, bool]] = []

        def loss(x: Tensor) -> Tensor:
            modes.append(look_of(model)["modes"])
            return self.loss(model, x)

        before = look_of(model)["modes"]
        build("universal", num_domains=2).attack(self.x, self.domain, loss, steps=2)
        assert modes == [before, before]

    def test_a_buffer_that_the_network_replaces_is_restored(self) -> None:
        model = network(CountsCalls()).train()
        model(self.x)
        build("universal", num_domains=2).attack(self.x, self.domain, lambda x: self.loss(model, x), steps=2)
        counter = model[2][1]
        assert counter.in_place.item() == 1
        assert counter.replaced.item() == 1

    def test_a_buffer_of_a_part_that_is_never_called_is_restored(self) -> None:
        model = ChangesItsPart()
        build("universal").attack(self.x, None, lambda x: model(x).flatten(1).sum(1))
        assert model.part.calls.item() == 0
        model(self.x)
        assert model.part.calls.item() == 1

    def test_a_buffer_that_two_modules_share_is_restored(self) -> None:
        calls = torch.zeros(1)
        first, second = CountsCallsInPlace(calls), CountsCallsInPlace(calls)
        perturbation = build("universal")
        perturbation.attack(self.x, None, lambda x: second(first(x)).flatten(1).sum(1))
        assert calls.item() == 0

    @pytest.mark.parametrize("mode", ["train", "eval"])
    def test_a_clean_loss_from_before_the_attack_still_has_its_gradient(self, mode: str) -> None:
        model = network().train(mode == "train")
        twin = copy.deepcopy(model)
        self.loss(twin, self.x).mean().backward()
        clean = self.loss(model, self.x).mean()
        build("universal", num_domains=2).attack(self.x, self.domain, lambda x: self.loss(model, x))
        clean.backward()
        for tensor, expected in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(tensor.grad, expected.grad)

    @pytest.mark.parametrize("kind", KINDS)
    def test_attack_leaves_its_inputs_and_the_perturbations_gradients_alone(self, kind: str) -> None:
        perturbation = build(kind, num_domains=2)
        x = self.x.clone().requires_grad_()
        perturbed = perturbation.attack(x, self.domain, wavy_loss(self.x))
        assert not perturbed.requires_grad
        assert x.grad is None
        assert torch.equal(x.detach(), self.x)
        assert all(tensor.grad is None for tensor in perturbation.parameters())

    @pytest.mark.parametrize("kind", KINDS)
    def test_attack_works_where_gradients_are_off(self, kind: str) -> None:
        perturbation = build(kind, num_domains=2)
        twin = copy.deepcopy(perturbation)
        with torch.no_grad():
            perturbed = perturbation.attack(self.x, self.domain, wavy_loss(self.x))
            assert not torch.is_grad_enabled()
        assert torch.equal(perturbed, twin.attack(self.x, self.domain, wavy_loss(self.x)))
        assert_same_state(perturbation, twin, rtol=0, atol=0)


class TestSavedState:
    @pytest.mark.parametrize("kind", KINDS)
    @given(case=cases(), radius=st.sampled_from([0.0, 0.05, 1 / 3, 2.0]))
    @settings(repeatable, max_examples=12)
    def test_a_loaded_perturbation_continues_to_the_bit(self, kind: str, case: Case, radius: float) -> None:
        first = case.build(kind)
        first.attack(case.x, case.domain, wavy_loss(case.slopes))
        first.epsilon = radius
        file = io.BytesIO()
        torch.save(first.state_dict(), file)
        file.seek(0)
        second = build(kind, double=case.double, **case.settings, seed=case.seed + 1)
        second.load_state_dict(torch.load(file, weights_only=True))
        assert second.epsilon == radius
        for steps in (1, 2):
            expected = first.attack(case.x, case.domain, wavy_loss(case.slopes), steps)
            assert torch.equal(second.attack(case.x, case.domain, wavy_loss(case.slopes), steps), expected)
        assert_same_state(first, second, rtol=0, atol=0)
        if first.is_kept:
            assert torch.equal(first.delta(), second.delta())

    @pytest.mark.parametrize("kind", ["sample-wise random over sample", *MIXED_BY_SAMPLE])
    def test_the_generators_state_is_what_makes_draws_the_same(self, kind: str) -> None:
        x = torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(2))
        first, other = build(kind, seed=1, bounds=None), build(kind, seed=2, bounds=None)
        other.load_state_dict({**first.state_dict(), "_extra_state": other.state_dict()["_extra_state"]})
        assert not torch.equal(first.attack(x, None, wavy_loss(x)), other.attack(x, None, wavy_loss(x)))

    @pytest.mark.parametrize("kind", KINDS)
    def test_draws_are_from_the_generator_given(self, kind: str) -> None:
        x = torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(2))
        results = []
        for global_seed in (1, 2):
            torch.manual_seed(global_seed)
            results.append(build(kind, bounds=None).attack(x, None, wavy_loss(x)))
        assert torch.equal(*results)


def unit(gradient: Tensor, ascent: str, norm: str, batch_dims: int) -> Tensor:
    """The direction of a step of size one, written out."""
    if ascent == "gradient":
        return gradient
    if ascent == "sign":
        return gradient.sign()
    sizes = length(gradient, norm, batch_dims).to(gradient.dtype)
    return gradient / sizes.reshape(*sizes.shape, *[1] * (gradient.ndim - batch_dims))


@st.composite
def free_cases(draw: st.DrawFn, **fixed: Any) -> Case:
    """Cases without bounds and with a ball that nothing reaches, so that a step is all that happens."""
    return draw(cases(bounds=None, epsilon=ENDLESS, **fixed))


class TestSteps:
    def mean_slopes(self, case: Case) -> dict[int, Tensor]:
        return {each: case.slopes[case.domain == each].mean(0) for each in case.present}

    @pytest.mark.parametrize("kind", [*FREE, "sample-wise random over sample"])
    @given(case=free_cases(step_size=1e-3))
    @repeatable
    def test_a_step_raises_a_linear_loss_of_each_domain(self, kind: str, case: Case) -> None:
        case.double = True
        case.__post_init__()
        perturbation = case.build(kind)
        still = copy.deepcopy(perturbation)
        loss = linear_loss(case.slopes)
        before = loss(still.attack(case.x, case.domain, loss, steps=0))
        after = loss(perturbation.attack(case.x, case.domain, loss))
        for each in case.present:
            rows = case.domain == each
            assert after[rows].mean() > before[rows].mean()

    @pytest.mark.parametrize("kind", [kind for kind in FREE if kind in ONE_PASS])
    @given(case=free_cases(step_size=1e-3))
    @repeatable
    def test_a_one_pass_step_raises_a_linear_loss(self, kind: str, case: Case) -> None:
        case.double = True
        case.__post_init__()
        perturbation = case.build(kind)
        loss = linear_loss(case.slopes)
        before = loss(perturbation(case.x, case.domain)).mean()
        pass_once(perturbation, case.x, case.domain, loss)
        assert loss(perturbation(case.x, case.domain)).mean() > before

    @given(case=free_cases(step_size=0.1))
    @repeatable
    def test_sample_wise_step_over_the_sample(self, case: Case) -> None:
        perturbation = case.build("sample-wise zero over sample")
        offset = perturbation.attack(case.x, case.domain, linear_loss(case.slopes)) - case.x
        count = (case.domain == case.domain[:, None]).sum(0).reshape(-1, 1, 1, 1)
        expected = 0.1 * unit(case.slopes / count, perturbation.ascent, perturbation.norm, 1)
        torch.testing.assert_close(offset, expected, **self.precision(case))

    @given(case=free_cases(step_size=0.1))
    @repeatable
    def test_sample_wise_step_over_the_domain(self, case: Case) -> None:
        perturbation = case.build("sample-wise zero over domain")
        offset = perturbation.attack(case.x, case.domain, linear_loss(case.slopes)) - case.x
        for each in case.present:
            rows = case.domain == each
            expected = 0.1 * unit(case.slopes[rows] / rows.sum(), perturbation.ascent, perturbation.norm, 0)
            torch.testing.assert_close(offset[rows], expected, **self.precision(case))

    @given(case=free_cases(step_size=0.1))
    @repeatable
    def test_universal_step(self, case: Case) -> None:
        perturbation = case.build("universal")
        before = state_of(perturbation)["deltas"]
        perturbation.attack(case.x, case.domain, linear_loss(case.slopes))
        for each, slopes in self.mean_slopes(case).items():
            expected = 0.1 * unit(slopes, perturbation.ascent, perturbation.norm, 0)
            step = perturbation.deltas.detach()[each] - before[each]
            torch.testing.assert_close(step, expected, **self.precision(case))

    @pytest.mark.parametrize("unit_of_length", ["perturbation", "stack"])
    @given(case=free_cases(step_size=0.1), weight_step_size=st.sampled_from([0.0, 1e-3, 0.5]))
    @repeatable
    def test_multiple_step_by_domain(self, unit_of_length: str, case: Case, weight_step_size: float) -> None:
        perturbation = case.build(f"multiple by domain, {unit_of_length}", weight_step_size=weight_step_size)
        before = state_of(perturbation)
        perturbation.attack(case.x, case.domain, linear_loss(case.slopes))
        after = state_of(perturbation)
        for each, slopes in self.mean_slopes(case).items():
            deltas, logits = before["deltas"][each], before["logits"][each]
            weights = logits.exp() / logits.exp().sum()
            gradient = weights.reshape(-1, 1, 1, 1) * slopes
            expected = 0.1 * unit(gradient, perturbation.ascent, perturbation.norm, int(unit_of_length != "stack"))
            torch.testing.assert_close(after["deltas"][each] - deltas, expected, **self.precision(case))
            gains = (deltas * slopes).flatten(1).sum(1)
            logit_gradient = weights * (gains - weights @ gains)
            step = after["logits"][each] - logits
            torch.testing.assert_close(step, weight_step_size * logit_gradient, **self.precision(case))

    @pytest.mark.parametrize("unit_of_length", ["perturbation", "stack"])
    @given(case=free_cases(step_size=0.1), weight_step_size=st.sampled_from([0.0, 1e-3, 0.5]))
    @repeatable
    def test_multiple_step_by_sample(self, unit_of_length: str, case: Case, weight_step_size: float) -> None:
        perturbation = case.build(f"multiple by sample, {unit_of_length}", weight_step_size=weight_step_size)
        twin = torch.Generator()
        twin.set_state(perturbation.generator.get_state())
        logits = torch.randn(len(case.x), perturbation.count, generator=twin, dtype=case.x.dtype)
        before = state_of(perturbation)["deltas"]
        perturbed = perturbation.attack(case.x, case.domain, linear_loss(case.slopes))
        after = state_of(perturbation)["deltas"]
        weights = logits.exp() / logits.exp().sum(1, keepdim=True)
        count = (case.domain == case.domain[:, None]).sum(0)
        for each in case.present:
            rows = case.domain == each
            gradient = torch.einsum("sk,schw->kchw", weights[rows], case.slopes[rows]) / rows.sum()
            expected = 0.1 * unit(gradient, perturbation.ascent, perturbation.norm, int(unit_of_length != "stack"))
            torch.testing.assert_close(after[each] - before[each], expected, **self.precision(case))
        gains = torch.einsum("skchw,schw->sk", before[case.domain], case.slopes) / count[:, None]
        logits = logits + weight_step_size * weights * (gains - (weights * gains).sum(1, keepdim=True))
        offset = torch.einsum("sk,skchw->schw", logits.softmax(1), after[case.domain])
        torch.testing.assert_close(perturbed, case.x + offset, **self.precision(case))

    @given(case=free_cases(step_size=0.1))
    @repeatable
    def test_low_rank_step(self, case: Case) -> None:
        perturbation = case.build("low-rank")
        before = state_of(perturbation)
        perturbation.attack(case.x, case.domain, linear_loss(case.slopes))
        after = state_of(perturbation)
        for each, slopes in self.mean_slopes(case).items():
            left, right = before["left"][each], before["right"][each]
            for name, gradient in {"left": slopes @ right.mT, "right": left.mT @ slopes}.items():
                expected = 0.1 * unit(gradient, perturbation.ascent, perturbation.norm, 0)
                torch.testing.assert_close(after[name][each] - before[name][each], expected, **self.precision(case))

    def precision(self, case: Case) -> dict[str, float]:
        return {"rtol": 0, "atol": 1e-6} if case.double else {"rtol": 1e-5, "atol": 5e-6}

    @pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e20])
    @pytest.mark.parametrize("kind", FREE)
    @given(case=free_cases(ascent="normalized"))
    @settings(repeatable, max_examples=10)
    def test_gradients_of_any_size_give_steps_of_full_length(self, kind: str, scale: float, case: Case) -> None:
        x, slopes = torch.zeros_like(case.x).float(), scale * case.slopes.float()
        perturbation = build(kind, seed=case.seed, **case.settings)
        before = state_of(perturbation)
        perturbed = perturbation.attack(x, case.domain, linear_loss(slopes))
        size = perturbation.step_size
        if kind in SAMPLE_WISE:
            steps = [perturbed - x] if perturbation.over == "sample" else []
            lengths = [length(step, perturbation.norm, 1) for step in steps]
            lengths += [
                length(perturbed[case.domain == each], perturbation.norm, 0) for each in case.present if not steps
            ]
        else:
            points = 2 if getattr(perturbation, "normalized_over", "") == "perturbation" else 1
            moves = {name: tensor - before[name] for name, tensor in state_of(perturbation).items() if name != "logits"}
            lengths = [length(move[case.present], perturbation.norm, points) for move in moves.values()]
        for found in lengths:
            torch.testing.assert_close(found, torch.full_like(found, size), rtol=1e-4, atol=5e-5)

    @pytest.mark.parametrize("kind", ["sample-wise zero over sample", "universal"])
    def test_a_domains_mean_is_as_precise_as_its_losses(self, kind: str) -> None:
        perturbation = build(kind, double=True, ascent="gradient", step_size=1.0, epsilon=ENDLESS, bounds=None)
        x = torch.zeros(3, *SHAPE, dtype=torch.float64)
        start = perturbation.delta().detach() if kind == "universal" else torch.zeros_like(x[:1])
        step = perturbation.attack(x, None, linear_loss(torch.ones_like(x)))[:1] - start
        expected = torch.full_like(step, 1.0 if kind == "universal" else 1 / 3)
        torch.testing.assert_close(step, expected, rtol=0, atol=1e-12)

    def test_sign_steps_reach_entries_of_any_size(self) -> None:
        perturbation = build("universal", ascent="sign", step_size=0.25, epsilon=ENDLESS, bounds=None)
        slopes = torch.tensor([1e10, -1e-36]).repeat(20).reshape(1, *SHAPE)
        before = state_of(perturbation)["deltas"]
        perturbation.attack(torch.zeros(1, *SHAPE), None, linear_loss(slopes))
        torch.testing.assert_close(perturbation.deltas.detach() - before, 0.25 * slopes.sign())


class TestUnusableGradients:
    """Domain 0 has a gradient that is zero or not finite in places; domain 1 has an ordinary one."""

    domain = torch.tensor([1, 0, 0, 1, 0])

    def slopes(self, bad: float, where: str, seed: int) -> Tensor:
        slopes = torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(seed))
        if where == "everywhere":
            slopes[self.domain == 0] = bad
        elif where == "one sample":
            slopes[1] = bad
        else:
            slopes[1, 0, 2, 3] = bad
        return slopes

    places = st.one_of(
        st.tuples(st.just(0.0), st.just("everywhere")),
        st.tuples(
            st.sampled_from([torch.nan, torch.inf, -torch.inf]),
            st.sampled_from(["everywhere", "one sample", "one entry"]),
        ),
    )

    @pytest.mark.parametrize(("kind", "use"), USES)
    @given(
        place=places, norm=NORMS, ascent=ASCENTS, bounds=st.sampled_from([None, (-9.0, 9.0)]), seed=st.integers(0, 99)
    )
    @repeatable
    def test_its_domain_stays_and_the_other_moves(
        self, kind: str, use: str, place: tuple[float, str], norm: Any, ascent: Any, bounds: Any, seed: int
    ) -> None:
        perturbation = build(kind, num_domains=2, norm=norm, ascent=ascent, bounds=bounds, seed=seed)
        before = state_of(perturbation)
        x = 0.25 + 0.5 * torch.rand(5, *SHAPE, generator=torch.Generator().manual_seed(seed))
        loss = linear_loss(self.slopes(*place, seed))
        if use == "attack":
            assert perturbation.attack(x, self.domain, loss, steps=2).isfinite().all()
        else:
            pass_once(perturbation, x, self.domain, loss)
        for name, after in state_of(perturbation).items():
            assert after.isfinite().all()
            assert torch.equal(after[0], before[name][0])
            # Weights drawn for each sample mix all domains in one product, so there what is not finite holds all.
            shares_its_product = kind.startswith("multiple by sample") and place[0] != 0
            if not shares_its_product and (name != "logits" or perturbation.count > 1):
                assert not torch.equal(after[1], before[name][1])

    @pytest.mark.parametrize("over", ["sample", "domain"])
    @given(place=places, norm=NORMS, ascent=ASCENTS, seed=st.integers(0, 99))
    @repeatable
    def test_its_samples_stay_and_the_others_move(
        self, over: str, place: tuple[float, str], norm: Any, ascent: Any, seed: int
    ) -> None:
        perturbation = build(f"sample-wise zero over {over}", num_domains=2, norm=norm, ascent=ascent)
        x = 0.25 + 0.5 * torch.rand(5, *SHAPE, generator=torch.Generator().manual_seed(seed))
        perturbed = perturbation.attack(x, self.domain, linear_loss(self.slopes(*place, seed)), steps=2)
        stays = self.domain == 0 if over == "domain" or place[1] == "everywhere" else torch.arange(5) == 1
        assert perturbed.isfinite().all()
        assert torch.equal((perturbed != x).flatten(1).any(1), ~stays)
        assert torch.equal(perturbed[stays], x[stays])
