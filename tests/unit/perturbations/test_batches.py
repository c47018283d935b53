"""Domains mix freely in a batch, and absent domains do not move."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from perturbation_cases import USES, Case, assert_same_state, cases, repeatable
from perturbation_kinds import (
    BY_GRADIENT,
    KINDS,
    SHAPE,
    WITHOUT_DRAWS,
    build,
    linear_loss,
    pass_once,
    state_of,
    wavy_loss,
)
from torch import Tensor


def inverse_order(order: Tensor, rows: Tensor) -> Tensor:
    """Return where the selected samples of a shuffled batch are in the batch that has only them, in order."""
    return (rows.cumsum(0) - 1)[order[rows[order]]]


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

    @pytest.mark.parametrize("kind", BY_GRADIENT)
    @given(case=cases(count=3), data=st.data())
    @repeatable
    def test_shuffled_domains_are_attacked_as_one_batch_per_domain(
        self, kind: str, case: Case, data: st.DataObject
    ) -> None:
        order = torch.tensor(data.draw(st.permutations(range(len(case.x)))))
        together, apart = case.build(kind), case.build(kind)
        for _ in range(2):
            shuffled = together.attack(case.x[order], case.domain[order], wavy_loss(case.slopes[order]))
            for each in case.present:
                rows = case.domain == each
                expected = apart.attack(case.x[rows], each, wavy_loss(case.slopes[rows]))
                torch.testing.assert_close(
                    shuffled[rows[order]], expected[inverse_order(order, rows)], **case.closeness
                )
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
