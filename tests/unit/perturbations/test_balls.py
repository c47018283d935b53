"""All constraints hold after any sequence of steps."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from perturbation_cases import RADII, Case, cases, repeatable
from perturbation_kinds import (
    KINDS,
    LOW_RANK_SAMPLE_WISE,
    MIXED_BY_SAMPLE,
    ONE_PASS,
    SHAPE,
    UNPROJECTED,
    build,
    length,
    linear_loss,
    pass_once,
    state_of,
    wavy_loss,
)
from torch import Tensor

from domainwise.perturbations import MultiplePerturbation


def assert_offset_in_ball(perturbed: Tensor, case: Case, perturbation: Any) -> None:
    """Check that perturbed samples lie in their balls, per sample or per domain."""
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
    @settings(repeatable, max_examples=5)
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

    @pytest.mark.parametrize("solver", ["factors", "projected"])
    @given(case=cases(), double=st.booleans())
    @repeatable
    def test_the_rank_of_each_channel_is_limited(self, solver: str, case: Case, double: bool) -> None:
        perturbation = build(f"low-rank {solver}", seed=case.seed, double=double, **case.settings)
        perturbation_rank = case.settings["rank"]
        dtype = perturbation.delta().dtype
        x, slopes = case.x.to(dtype), case.slopes.to(dtype)
        # The projected start is drawn in float32, and its rank is limited exactly from the first step on.
        tolerance = 1e-10 if double and solver == "factors" else 1e-5
        start = torch.linalg.matrix_rank(perturbation.delta().double(), rtol=tolerance)
        assert start.tolist() == [[perturbation_rank] * SHAPE[0]] * perturbation.num_domains
        for _ in range(2):
            perturbation.attack(x, case.domain, wavy_loss(slopes), steps=2)
            pass_once(perturbation, x, case.domain, wavy_loss(slopes))
            ranks = torch.linalg.matrix_rank(perturbation.delta().double(), rtol=tolerance)
            assert_kept_in_ball(perturbation)
            assert ranks.shape == (perturbation.num_domains, SHAPE[0])
            assert ranks.max() <= perturbation_rank

    @pytest.mark.parametrize("kind", LOW_RANK_SAMPLE_WISE)
    @given(case=cases(bounds=None), rank=st.integers(1, 3), steps=st.integers(0, 3))
    @repeatable
    def test_the_rank_of_each_samples_channels_is_limited(self, kind: str, case: Case, rank: int, steps: int) -> None:
        perturbation = case.build(kind) if rank == 2 else self.of_rank(case, kind, rank)
        seen: list[Tensor] = []

        def loss(x: Tensor) -> Tensor:
            seen.append(x.detach() - case.x)
            return wavy_loss(case.slopes)(x)

        seen.append(perturbation.attack(case.x, case.domain, loss, steps) - case.x)
        # Rounding to the image's precision adds full rank at its own size.
        noise = 1e-13 if case.double else 1e-5
        for offset in seen:
            assert torch.linalg.svdvals(offset.double())[..., rank:].amax() <= noise
            assert_offset_in_ball(case.x + offset, case, perturbation)

    def of_rank(self, case: Case, kind: str, rank: int) -> Any:
        perturbation = case.build(kind)
        perturbation.rank = rank
        return perturbation

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

    @pytest.mark.parametrize(
        "kind", [*MIXED_BY_SAMPLE, "multiple by domain, perturbation", "multiple assigned", "multiple soft"]
    )
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
