"""Resuming from a saved state changes nothing."""

import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from perturbation_cases import Case, assert_same_state, cases, repeatable
from perturbation_kinds import (
    KINDS,
    MIXED_BY_SAMPLE,
    SHAPE,
    build,
    wavy_loss,
)


class TestSavedState:
    @pytest.mark.parametrize("kind", KINDS)
    @given(case=cases(), radius=st.sampled_from([0.0, 0.05, 1 / 3, 2.0]), warmup_steps=st.sampled_from([0, 1, 3, 7]))
    @settings(repeatable, max_examples=12)
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
