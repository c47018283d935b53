"""Resuming from a saved state changes nothing."""

import io
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from perturbation_cases import Case, assert_same_state, cases, repeatable
from perturbation_kinds import (
    KEPT,
    KINDS,
    MIXED_BY_SAMPLE,
    SHAPE,
    UNPROJECTED,
    build,
    length,
    wavy_loss,
)


class TestSavedState:
    @pytest.mark.parametrize("kind", KINDS)
    @given(case=cases(), radius=st.sampled_from([0.0, 0.05, 1 / 3, 2.0]), warmup_steps=st.sampled_from([0, 1, 3, 7]))
    @settings(repeatable, max_examples=5)
    def test_a_loaded_perturbation_continues_to_the_bit(
        self, kind: str, case: Case, radius: float, warmup_steps: int
    ) -> None:
        first = case.build(kind, warmup_steps=warmup_steps)
        for _ in range(2):
            first.attack(case.x, case.domain, wavy_loss(case.slopes))
        first.epsilon = radius
        file = io.BytesIO()
        torch.save(first.state_dict(), file)
        file.seek(0)
        second = build(kind, double=case.double, **case.settings, warmup_steps=warmup_steps, seed=case.seed + 1)
        second.load_state_dict(torch.load(file, weights_only=True))
        assert second.epsilon == radius
        for steps in (1, 2):
            expected = first.attack(case.x, case.domain, wavy_loss(case.slopes), steps)
            assert torch.equal(second.attack(case.x, case.domain, wavy_loss(case.slopes), steps), expected)
            assert second.radius == first.radius
        assert_same_state(first, second, rtol=0, atol=0)
        if hasattr(first, "idle"):
            assert torch.equal(first.idle, second.idle)
        if first.is_kept:
            assert torch.equal(first.delta(), second.delta())

    @pytest.mark.parametrize("norm", ["l2", "linf"])
    @pytest.mark.parametrize("kind", [kind for kind in KEPT if kind not in UNPROJECTED])
    def test_a_loaded_perturbation_is_inside_the_ball_of_its_state(self, kind: str, norm: Any) -> None:
        perturbation = build(kind, epsilon=2.0, norm=norm)
        state = perturbation.state_dict()
        state["_extra_state"]["epsilon"] = torch.tensor(0.25)
        perturbation.load_state_dict(state)
        parts = perturbation.delta()[:, None] if perturbation.is_kept else perturbation.components()
        assert length(parts, norm, 2).max() <= 0.25 + 1e-6
        if hasattr(perturbation, "deltas"):
            points = perturbation.deltas.detach()
            assert length(points, norm, points.ndim - 3).max() == pytest.approx(0.25)

    @pytest.mark.parametrize("kind", UNPROJECTED)
    def test_a_start_outside_the_ball_is_loaded_as_it_is(self, kind: str) -> None:
        first, second = build(kind), build(kind, seed=1)
        second.load_state_dict(first.state_dict())
        assert_same_state(first, second, rtol=0, atol=0)
        assert length(second.deltas, "l2", second.deltas.ndim - 3).min() > second.epsilon

    @pytest.mark.parametrize("kind", ["sample-wise random over sample", *MIXED_BY_SAMPLE])
    def test_draws_depend_on_the_saved_generator_state(self, kind: str) -> None:
        x = torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(2))
        first, other = build(kind, seed=1, bounds=None), build(kind, seed=2, bounds=None)
        other.load_state_dict({**first.state_dict(), "_extra_state": other.state_dict()["_extra_state"]})
        assert not torch.equal(first.attack(x, None, wavy_loss(x)), other.attack(x, None, wavy_loss(x)))

    @pytest.mark.parametrize("kind", KINDS)
    def test_draws_come_from_the_given_generator(self, kind: str) -> None:
        x = torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(2))
        results = []
        for global_seed in (1, 2):
            torch.manual_seed(global_seed)
            results.append(build(kind, bounds=None).attack(x, None, wavy_loss(x)))
        assert torch.equal(*results)
