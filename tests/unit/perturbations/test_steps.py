"""Steps increase the loss, have the right length, and ignore unusable gradients."""

import copy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from perturbation_cases import ASCENTS, ENDLESS, FREE, NORMS, USES, Case, cases, repeatable
from perturbation_kinds import (
    BY_GRADIENT,
    LOW_RANK_SAMPLE_WISE,
    ONE_PASS,
    SAMPLE_WISE,
    SHAPE,
    build,
    length,
    linear_loss,
    pass_once,
    state_of,
)
from torch import Tensor


def unit(gradient: Tensor, ascent: str, norm: str, batch_dims: int) -> Tensor:
    """The direction of a step of size 1, written out."""
    if ascent == "gradient":
        return gradient
    if ascent == "sign":
        return gradient.sign()
    sizes = length(gradient, norm, batch_dims).to(gradient.dtype)
    return gradient / sizes.reshape(*sizes.shape, *[1] * (gradient.ndim - batch_dims))


@st.composite
def free_cases(draw: st.DrawFn, **fixed: Any) -> Case:
    """Cases without bounds and with a huge ball, so that nothing but the step happens."""
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
    def test_low_rank_step_of_the_factors(self, case: Case) -> None:
        perturbation = case.build("low-rank factors")
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
    @pytest.mark.parametrize(
        "kind",
        [kind for kind in FREE if kind not in (*BY_GRADIENT, *LOW_RANK_SAMPLE_WISE, "low-rank projected")],
    )
    @given(case=free_cases(ascent="normalized"))
    @settings(repeatable, max_examples=5)
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

    @pytest.mark.parametrize("norm", ["l2", "linf"])
    @pytest.mark.parametrize("kind", ["sample-wise zero over sample", "universal", "multiple assigned"])
    def test_a_step_of_the_radius_reaches_the_strongest_point_of_the_ball(self, kind: str, norm: Any) -> None:
        """The dual norm of the gradient: what no point of the ball exceeds."""
        slopes = torch.randn(1, *SHAPE, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
        perturbation = build(kind, count=1, double=True, norm=norm, step_size=None, bounds=None)
        if kind != "sample-wise zero over sample":
            torch.nn.init.zeros_(perturbation.deltas)
        gain = (perturbation.attack(torch.zeros_like(slopes), None, linear_loss(slopes)) * slopes).sum()
        torch.testing.assert_close(gain, 0.5 * (slopes.abs().sum() if norm == "linf" else slopes.norm()))

    def test_sign_steps_reach_entries_of_any_size(self) -> None:
        perturbation = build("universal", ascent="sign", step_size=0.25, epsilon=ENDLESS, bounds=None)
        slopes = torch.tensor([1e10, -1e-36]).repeat(20).reshape(1, *SHAPE)
        before = state_of(perturbation)["deltas"]
        perturbation.attack(torch.zeros(1, *SHAPE), None, linear_loss(slopes))
        torch.testing.assert_close(perturbation.deltas.detach() - before, 0.25 * slopes.sign())


class TestUnusableGradients:
    """Domain 0 has a gradient that is zero or partly non-finite; domain 1 has an ordinary one."""

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

    @pytest.mark.parametrize(("kind", "use"), [(kind, use) for kind, use in USES if kind not in BY_GRADIENT])
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
            # Per-sample weights mix all domains in one product, so a non-finite gradient stops all domains.
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
