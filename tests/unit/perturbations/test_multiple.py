"""Several perturbations per domain, chosen by each sample's gradient: against plain loops and full SVDs."""

import math
from typing import Any

import pytest
import torch
from perturbation_kinds import BY_GRADIENT, SHAPE, build, linear_loss, state_of, wavy_loss
from torch import Tensor

from domainwise.perturbations import MultiplePerturbation, SampleWisePerturbation, UniversalPerturbation

DOMAIN = torch.tensor([0, 1, 1, 0, 1, 1, 0, 1, 1])
VALUES = math.prod(SHAPE)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def multiple(weights: Any, count: int = 3, **settings: Any) -> MultiplePerturbation:
    settings = {"epsilon": 0.5, "num_domains": 2, "bounds": None} | settings
    generator = torch.Generator().manual_seed(1)
    return MultiplePerturbation(SHAPE, weights=weights, count=count, generator=generator, **settings).double()


def attack_offsets(perturbation: Any, slopes: Tensor, domain: Tensor | None, **settings: Any) -> Tensor:
    """Return each sample's offset after an attack on a linear loss, flat."""
    offsets = perturbation.attack(torch.zeros_like(slopes), domain, linear_loss(slopes), **settings)
    return offsets.flatten(1)


class TestAssigned:
    def reference(self, deltas: Tensor, slopes: Tensor, domain: Tensor, step: float, radius: float) -> list[Tensor]:
        """Move `deltas` (num_domains, count, values) in place by plain loops; return the offset of each sample."""
        slopes = slopes.flatten(1)
        for index in range(len(deltas)):
            samples = [slope for slope, own in zip(slopes, domain.tolist(), strict=True) if own == index]
            groups: list[list[Tensor]] = [[] for _ in deltas[index]]
            for slope in samples:
                gains = [float(delta @ slope) for delta in deltas[index]]
                groups[gains.index(max(gains))].append(slope)
            for place, group in enumerate(groups):
                if group:
                    mean = torch.stack(group).mean(0)
                    moved = deltas[index, place] + step * mean / mean.norm()
                    deltas[index, place] = moved * min(1.0, radius / moved.norm().item())
        offsets = []
        for slope, own in zip(slopes, domain.tolist(), strict=True):
            gains = [float(delta @ slope) for delta in deltas[own]]
            offsets.append(deltas[own, gains.index(max(gains))])
        return offsets

    @pytest.mark.parametrize("step_size", [None, 0.1])
    @pytest.mark.parametrize("count", [1, 2, 3, 7])
    def test_each_sample_gets_its_best_and_each_moves_along_its_samples(
        self, count: int, step_size: float | None
    ) -> None:
        perturbation = multiple("assigned", count, step_size=step_size)
        deltas = state_of(perturbation)["deltas"].flatten(2)
        for seed in range(4):
            slopes = random(9, *SHAPE, seed=seed)
            offsets = attack_offsets(perturbation, slopes, DOMAIN)
            expected = self.reference(deltas, slopes, DOMAIN, 0.5 if step_size is None else step_size, 0.5)
            torch.testing.assert_close(perturbation.deltas.detach().flatten(2), deltas)
            torch.testing.assert_close(offsets, torch.stack(expected))

    def test_one_perturbation_is_universal(self) -> None:
        settings: dict[str, Any] = {"epsilon": 0.5, "step_size": 0.2, "num_domains": 2, "warmup_steps": 3}
        assigned = MultiplePerturbation(SHAPE, weights="assigned", count=1, **settings)
        universal = UniversalPerturbation(SHAPE, **settings)
        universal.deltas.data.copy_(assigned.deltas[:, 0])
        x = torch.rand(9, *SHAPE, generator=torch.Generator().manual_seed(0))
        for seed in range(5):
            loss = wavy_loss(random(9, *SHAPE, seed=seed).float())
            perturbed = [each.attack(x, DOMAIN, loss, steps=2) for each in (assigned, universal)]
            torch.testing.assert_close(*perturbed, rtol=0, atol=1e-6)
            torch.testing.assert_close(assigned.deltas[:, 0], universal.deltas, rtol=0, atol=1e-6)

    def test_opposite_groups_of_samples_get_opposite_perturbations(self) -> None:
        direction = random(1, *SHAPE)
        slopes = torch.cat([direction, -direction]).repeat(3, 1, 1, 1) + 0.05 * random(6, *SHAPE, seed=1)
        perturbation = multiple("assigned", 2, num_domains=1)
        for _ in range(3):
            offsets = attack_offsets(perturbation, slopes, None)
        first, second = perturbation.deltas.detach()[0].flatten(1)
        assert torch.cosine_similarity(first, second, dim=0) < -0.95
        assert (torch.cosine_similarity(offsets, slopes.flatten(1), dim=1) > 0.95).all()

    def test_components_of_absent_domains_do_not_move(self) -> None:
        perturbation = multiple("assigned", num_domains=3)
        attack_offsets(perturbation, random(9, *SHAPE), DOMAIN)
        before, idle = state_of(perturbation)["deltas"], perturbation.idle.clone()
        for seed in range(12):
            attack_offsets(perturbation, random(4, *SHAPE, seed=seed), torch.tensor([1, 1, 1, 1]))
        for absent in (0, 2):
            assert torch.equal(perturbation.deltas.detach()[absent], before[absent])
            assert torch.equal(perturbation.idle[absent], idle[absent])
        assert not torch.equal(perturbation.deltas.detach()[1], before[1])

    def test_an_idle_one_restarts_from_the_sample_explained_worst(self) -> None:
        """Of two perturbations, one points away from all samples; after `patience` updates it goes to the outlier."""
        common, outlier = torch.zeros(2, *SHAPE, dtype=torch.float64)
        common[0, 0, 0], outlier[1, 4, 3] = 1.0, 1.0
        outlier[0, 0, 0] = 0.1
        slopes = torch.stack([common, common, outlier, common])
        perturbation = multiple("assigned", 2, num_domains=2)
        with torch.no_grad():
            perturbation.deltas[1, 0].copy_(0.5 * common)
            perturbation.deltas[1, 1].copy_(-0.5 * common)
        domain = torch.ones(4, dtype=torch.int64)
        for update in range(1, perturbation.patience):
            attack_offsets(perturbation, slopes, domain)
            assert perturbation.idle.tolist() == [[0, 0], [0, update]]
            torch.testing.assert_close(perturbation.deltas.detach()[1, 1], -0.5 * common)
        offsets = attack_offsets(perturbation, slopes, domain)
        assert perturbation.idle.tolist() == [[0, 0], [0, 0]]
        expected = 0.5 * outlier / outlier.norm()
        torch.testing.assert_close(perturbation.deltas.detach()[1, 1], expected)
        # The outlier gets it at once.
        torch.testing.assert_close(offsets[2], expected.flatten())

    def test_only_the_longest_idle_one_of_a_domain_restarts(self) -> None:
        perturbation = multiple("assigned", 3, num_domains=1)
        common = random(*SHAPE)
        with torch.no_grad():
            perturbation.deltas[0, 0].copy_(0.5 * common / common.norm())
            perturbation.deltas[0, 1:] = -0.1 * common
            perturbation.idle.copy_(torch.tensor([[0, 10, 14]]))
        attack_offsets(perturbation, (common + 0.1 * random(5, *SHAPE, seed=1)), None)
        assert perturbation.idle.tolist() == [[0, 11, 0]]
        torch.testing.assert_close(perturbation.deltas.detach()[0, 1], -0.1 * common)
        assert perturbation.deltas[0, 2].norm().item() == pytest.approx(0.5)

    def test_no_restart_without_gradients(self) -> None:
        perturbation = multiple("assigned", 3)
        before = state_of(perturbation)["deltas"]
        for _ in range(perturbation.patience + 2):
            attack_offsets(perturbation, torch.zeros(9, *SHAPE, dtype=torch.float64), DOMAIN)
        assert torch.equal(perturbation.deltas.detach(), before)

    def test_a_restart_in_linf_is_the_best_corner_for_the_sample_that_could_gain_most(self) -> None:
        """The longer of two gradients in l2 is sparse: inside a linf ball, it could gain less than the flat one."""
        common, flat, sparse = torch.zeros(3, *SHAPE, dtype=torch.float64)
        common[0, 0, 0], sparse[1, 4, 3], flat[1] = 1.0, 3.0, 0.4
        perturbation = multiple("assigned", 2, num_domains=1, norm="linf", step_size=0.0)
        with torch.no_grad():
            perturbation.deltas[0, 0].copy_(0.5 * common)
            perturbation.deltas[0, 1].copy_(-0.5 * common)
        perturbation.idle[0, 1] = perturbation.patience
        slopes = torch.stack([sparse, flat, common]) + 0.1 * common
        attack_offsets(perturbation, slopes, None)
        assert perturbation.idle.tolist() == [[0, 0]]
        torch.testing.assert_close(perturbation.deltas.detach()[0, 1], 0.5 * (flat + 0.1 * common).sign())


class TestSoft:
    def test_weights_are_a_softmax_of_cosines(self) -> None:
        perturbation = multiple("soft", temperature=0.3, step_size=0.2)
        deltas, slopes = state_of(perturbation)["deltas"].flatten(2), random(9, *SHAPE).mul(3)
        flat = slopes.flatten(1)
        offsets = attack_offsets(perturbation, slopes, DOMAIN)
        gradients = torch.zeros_like(deltas)
        for slope, own in zip(flat, DOMAIN.tolist(), strict=True):
            cosines = torch.stack([delta @ slope / (delta.norm() * slope.norm()) for delta in deltas[own]])
            gradients[own] += (cosines / 0.3).exp()[:, None] / (cosines / 0.3).exp().sum() * slope
        deltas = deltas + 0.2 * gradients / gradients.norm(dim=-1, keepdim=True)
        deltas = deltas * (0.5 / deltas.norm(dim=-1, keepdim=True)).clamp(max=1)
        torch.testing.assert_close(perturbation.deltas.detach().flatten(2), deltas)
        for offset, slope, own in zip(offsets, flat, DOMAIN.tolist(), strict=True):
            cosines = torch.stack([delta @ slope / (delta.norm() * slope.norm()) for delta in deltas[own]])
            weights = (cosines / 0.3).exp() / (cosines / 0.3).exp().sum()
            torch.testing.assert_close(offset, weights @ deltas[own])

    def test_a_low_temperature_is_assignment(self) -> None:
        # Of equally long perturbations, the largest inner product is the largest cosine.
        soft, assigned = multiple("soft", temperature=1e-5), multiple("assigned")
        for seed in range(3):
            slopes = random(9, *SHAPE, seed=seed)
            offsets = [attack_offsets(each, slopes, DOMAIN) for each in (soft, assigned)]
            torch.testing.assert_close(*offsets)
            torch.testing.assert_close(soft.deltas, assigned.deltas)

    def test_a_high_temperature_mixes_equally(self) -> None:
        perturbation = multiple("soft", temperature=1e6)
        offsets = attack_offsets(perturbation, random(9, *SHAPE), DOMAIN)
        means = perturbation.deltas.detach().mean(1).flatten(1)
        torch.testing.assert_close(offsets, means[DOMAIN], rtol=0, atol=1e-6)

    @pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e20])
    def test_weights_do_not_depend_on_the_size_of_gradients(self, scale: float) -> None:
        offsets = []
        for factor in (1.0, scale):
            perturbation = multiple("soft").float()
            offsets.append(attack_offsets(perturbation, factor * random(9, *SHAPE).float(), DOMAIN))
        torch.testing.assert_close(*offsets)


class TestSubspace:
    def leading(self, stack: Tensor, count: int) -> Tensor:
        """Return the projection on the leading right singular vectors, (values, values)."""
        vectors = torch.linalg.svd(stack, full_matrices=False).Vh[:count]
        return vectors.T @ vectors

    def unit(self, slopes: Tensor) -> Tensor:
        return slopes.flatten(1) / slopes.flatten(1).norm(dim=1, keepdim=True)

    @pytest.mark.parametrize("count", [1, 2, 3, 5])
    def test_offsets_are_the_gradients_in_the_best_subspace_of_the_batch(self, count: int) -> None:
        perturbation = multiple("subspace", count, memory=0.0)
        for seed in range(2):
            # Gradients of different sizes: each sample counts equally.
            slopes = random(9, *SHAPE, seed=seed) * torch.arange(1.0, 10).reshape(-1, 1, 1, 1)
            offsets = attack_offsets(perturbation, slopes, DOMAIN)
            for index in range(2):
                rows = DOMAIN.eq(index)
                unit = self.unit(slopes[rows])
                expected = slopes[rows].flatten(1) @ self.leading(unit, count)
                torch.testing.assert_close(offsets[rows], 0.5 * expected / expected.norm(dim=1, keepdim=True))
                rank = min(count, int(rows.sum()))
                assert torch.linalg.matrix_rank(offsets[rows], rtol=1e-9) == rank
                found = perturbation.directions[index].flatten(1)
                lengths = torch.linalg.svdvals(unit)[:count]
                torch.testing.assert_close(found.norm(dim=1)[:rank], lengths[:rank])
                assert not found[rank:].any()

    def test_offsets_in_linf_reach_the_surface_of_their_ball(self) -> None:
        perturbation = multiple("subspace", 2, memory=0.0, norm="linf")
        offsets = attack_offsets(perturbation, random(9, *SHAPE), DOMAIN)
        torch.testing.assert_close(offsets.abs().amax(1), torch.full((9,), 0.5, dtype=torch.float64))
        assert all(torch.linalg.matrix_rank(offsets[index == DOMAIN], rtol=1e-9) == 2 for index in range(2))
        components = perturbation.components().flatten(2)
        torch.testing.assert_close(components.abs().amax(2), torch.full((2, 2), 0.5, dtype=torch.float64))

    @pytest.mark.parametrize("memory", [0.5, 0.9, 1.0])
    def test_memory_keeps_the_weighted_stack_of_all_batches(self, memory: float) -> None:
        perturbation = multiple("subspace", 20, memory=memory, num_domains=1)
        batches = [random(4, *SHAPE, seed=seed) for seed in range(5)]
        for slopes in batches:
            attack_offsets(perturbation, slopes, None)
        weights = [math.sqrt(memory) ** (len(batches) - 1 - index) for index in range(len(batches))]
        stack = torch.cat([weight * self.unit(slopes) for weight, slopes in zip(weights, batches, strict=True)])
        found = perturbation.directions[0].flatten(1)
        torch.testing.assert_close(found.norm(dim=1), torch.linalg.svdvals(stack))
        torch.testing.assert_close(found.T @ found, stack.T @ stack)

    def test_memory_turns_the_subspace_towards_earlier_gradients(self) -> None:
        common, other = random(2, *SHAPE)
        with_memory, without = multiple("subspace", 1, num_domains=1), multiple("subspace", 1, num_domains=1, memory=0)
        for perturbation in (with_memory, without):
            attack_offsets(perturbation, common.expand(8, *SHAPE), None)
            attack_offsets(perturbation, other[None], None)
        cosine = [
            torch.cosine_similarity(each.directions.flatten(), other.flatten(), dim=0).abs().item()
            for each in (with_memory, without)
        ]
        assert cosine[0] < 0.6
        assert cosine[1] == pytest.approx(1)

    @pytest.mark.parametrize("count", [6, 10])
    def test_as_many_directions_as_samples_give_one_perturbation_per_sample(self, count: int) -> None:
        slopes = random(9, *SHAPE)
        x = 0.5 + 0.1 * random(9, *SHAPE, seed=1).clamp(-3, 3)
        settings: dict[str, Any] = {"epsilon": 0.5, "num_domains": 2, "bounds": None}
        subspace = multiple("subspace", count, memory=0.0)
        sample_wise = SampleWisePerturbation(SHAPE, start="zero", **settings)
        for steps in (1, 3):
            perturbed = [each.attack(x, DOMAIN, linear_loss(slopes), steps) for each in (subspace, sample_wise)]
            torch.testing.assert_close(*perturbed)

    def test_saturated_pixels_count_as_in_an_attack_per_sample(self) -> None:
        x = torch.rand(9, *SHAPE, generator=torch.Generator().manual_seed(3)).round().double()
        loss = wavy_loss(random(9, *SHAPE))
        subspace = multiple("subspace", 9, memory=0.0, bounds=(0.0, 1.0))
        sample_wise = SampleWisePerturbation(SHAPE, start="zero", epsilon=0.5, num_domains=2)
        perturbed = [each.attack(x, DOMAIN, loss) for each in (subspace, sample_wise)]
        torch.testing.assert_close(*perturbed)
        assert (perturbed[0] != x).any(0).all()

    def test_offsets_stay_in_the_subspace_over_several_steps(self) -> None:
        perturbation = multiple("subspace", 2, step_size=0.1)
        x = random(9, *SHAPE)
        offsets = (perturbation.attack(x, DOMAIN, wavy_loss(random(9, *SHAPE, seed=1)), steps=4) - x).flatten(1)
        for index in range(2):
            basis, own = self.leading(perturbation.directions[index].flatten(1), 2), offsets[DOMAIN.eq(index)]
            torch.testing.assert_close(own @ basis, own)

    def test_rounding_errors_are_no_directions(self) -> None:
        perturbation = multiple("subspace", 5, num_domains=1).float()
        slopes = random(1, *SHAPE).float() * torch.tensor([1.0, 2.0, -3.0]).reshape(-1, 1, 1, 1)
        for _ in range(20):
            attack_offsets(perturbation, slopes, None)
        lengths = perturbation.directions[0].flatten(1).norm(dim=1)
        assert lengths[0] > 1
        assert not lengths[1:].any()

    def test_components_are_as_long_as_the_radius(self) -> None:
        perturbation = multiple("subspace", 2)
        attack_offsets(perturbation, random(9, *SHAPE), DOMAIN)
        components = perturbation.components()
        assert components.shape == (2, 2, *SHAPE)
        torch.testing.assert_close(components.flatten(2).norm(dim=-1), torch.full((2, 2), 0.5, dtype=torch.float64))
        products = components[0].flatten(1) @ components[0].flatten(1).T
        torch.testing.assert_close(products, 0.25 * torch.eye(2, dtype=torch.float64))


class TestAllByGradient:
    @pytest.mark.parametrize("bad", [torch.nan, torch.inf, 0.0])
    @pytest.mark.parametrize("kind", BY_GRADIENT)
    def test_a_sample_without_a_usable_gradient_moves_nothing(self, kind: str, bad: float) -> None:
        slopes = random(9, *SHAPE)
        slopes[1] = 0.0
        with_zero, with_bad = (build(kind, count=3, num_domains=2, double=True, bounds=None) for _ in range(2))
        expected = attack_offsets(with_zero, slopes, DOMAIN)
        slopes[1, 0, 2, 3] = bad
        offsets = attack_offsets(with_bad, slopes, DOMAIN)
        assert offsets.isfinite().all()
        torch.testing.assert_close(offsets, expected)
        for name, tensor in state_of(with_bad).items():
            torch.testing.assert_close(tensor, state_of(with_zero)[name])
            assert not torch.equal(tensor, state_of(build(kind, count=3, num_domains=2, double=True))[name])

    @pytest.mark.parametrize("steps", [1, 3])
    @pytest.mark.parametrize("kind", BY_GRADIENT)
    def test_a_frozen_attack_changes_nothing_that_is_kept(self, kind: str, steps: int) -> None:
        perturbation = build(kind, count=3, num_domains=2, double=True, bounds=None)
        attack_offsets(perturbation, random(9, *SHAPE), DOMAIN)
        before = {name: value.clone() for name, value in perturbation.state_dict().items() if name != "_extra_state"}
        perturbation.is_frozen = True
        offsets = attack_offsets(perturbation, random(9, *SHAPE, seed=1), DOMAIN, steps=steps)
        assert offsets.any()
        after = perturbation.state_dict()
        assert all(torch.equal(after[name], before[name]) for name in before)

    @pytest.mark.parametrize("kind", BY_GRADIENT)
    def test_products_are_exact_under_autocast(self, kind: str) -> None:
        offsets = []
        for enabled in (False, True):
            perturbation = build(kind, count=3, num_domains=2, bounds=None)
            with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
                offsets.append(attack_offsets(perturbation, random(9, *SHAPE).float(), DOMAIN))
        torch.testing.assert_close(*offsets)

    @pytest.mark.parametrize("kind", BY_GRADIENT)
    def test_the_backward_pass_runs_once_per_step(self, kind: str) -> None:
        calls = []

        def loss(x: Tensor) -> Tensor:
            calls.append(len(x))
            return linear_loss(x.detach())(x)

        build(kind, num_domains=2).attack(torch.rand(9, *SHAPE), DOMAIN, loss, steps=2)
        assert calls == [9, 9]
