"""Low rank: truncation against a full SVD, and projections and steps against brute force."""

from typing import Any

import pytest
import torch
from perturbation_kinds import linear_loss
from torch import Tensor

from domainwise.perturbations import LowRankPerturbation, SampleWisePerturbation, UniversalPerturbation
from domainwise.perturbations.base import scale_into_ball
from domainwise.perturbations.low_rank import leading_singular_vectors, truncate_rank

# (height, width, rank): tall, wide, square, one row, one column, and up to full rank.
SIZES = [
    (9, 4, 1),
    (9, 4, 3),
    (4, 9, 2),
    (6, 6, 1),
    (6, 6, 5),
    (6, 6, 6),
    (1, 7, 1),
    (7, 1, 1),
    (32, 32, 5),
    (40, 24, 10),
]
# (shape, rank) small enough for a search.
SMALL = [((1, 4, 3), 1), ((2, 3, 4), 1), ((2, 4, 4), 2)]


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def truncate_by_svd(images: Tensor, rank: int) -> Tensor:
    u, s, v = torch.linalg.svd(images.double(), full_matrices=False)
    return (u[..., :rank] * s[..., None, :rank]) @ v[..., :rank, :]


def search(shape: tuple[int, ...], rank: int, radius: float, cost: Any) -> Tensor:
    """Return the best of many points of low rank in the ball: random ones, refined along the gradient of the cost."""
    channels, height, width = shape
    count = 40
    factors = [random(count, channels, height, rank, seed=1), random(count, channels, rank, width, seed=2)]
    factors = [factor.requires_grad_() for factor in factors]
    sizes = torch.linspace(0.05, 1.5, count, dtype=torch.float64).reshape(-1, 1, 1, 1)
    with torch.no_grad():
        product = factors[0] @ factors[1]
        factors[0] *= radius * sizes / product.flatten(1).norm(dim=1).reshape(-1, 1, 1, 1)
    optimizer = torch.optim.Adam(factors, lr=0.04)
    best = torch.full((count,), torch.inf, dtype=torch.float64)
    points = torch.zeros(count, *shape, dtype=torch.float64)
    for _ in range(120):
        candidates = scale_into_ball(factors[0] @ factors[1], radius, "l2")
        costs = cost(candidates)
        is_better = costs.detach() < best
        best = torch.where(is_better, costs.detach(), best)
        points[is_better] = candidates.detach()[is_better]
        optimizer.zero_grad()
        costs.sum().backward()
        optimizer.step()
    assert points.flatten(1).norm(dim=1).max() <= radius * (1 + 1e-12)
    return points[best.argmin()]


class TestTruncation:
    @pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e30])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    @pytest.mark.parametrize(("height", "width", "rank"), SIZES)
    def test_it_equals_that_of_a_full_svd(
        self, height: int, width: int, rank: int, dtype: torch.dtype, scale: float
    ) -> None:
        images = scale * random(2, 3, height, width, dtype=dtype)
        truncated = truncate_rank(images, rank)
        assert truncated.dtype == dtype
        expected = truncate_by_svd(images, rank)
        error = (truncated.double() - expected).flatten(2).norm(dim=-1) / images.double().flatten(2).norm(dim=-1)
        assert error.max() <= 1e-5
        tail = torch.linalg.svdvals(truncated.double() / scale)[..., rank:]
        assert tail.numel() == 0 or tail.max() <= 1e-5

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_a_steep_spectrum_is_as_exact(self, dtype: torch.dtype) -> None:
        u, _ = torch.linalg.qr(random(20, 20, seed=1))
        v, _ = torch.linalg.qr(random(20, 20, seed=2))
        image = ((u * 10.0 ** -torch.arange(20.0, dtype=torch.float64)) @ v).to(dtype)[None]
        for rank in (1, 2, 4):
            error = truncate_rank(image, rank).double() - truncate_by_svd(image, rank)
            assert error.norm() <= (1e-6 if dtype == torch.float32 else 1e-10) * image.norm()

    @pytest.mark.parametrize("rank", [1, 2, 3, 4])
    def test_repeated_singular_values_leave_the_smallest_error(self, rank: int) -> None:
        u, _ = torch.linalg.qr(random(6, 6, seed=1))
        v, _ = torch.linalg.qr(random(6, 6, seed=2))
        values = torch.tensor([2.0, 2.0, 2.0, 1.0, 1.0, 0.0], dtype=torch.float64)
        truncated = truncate_rank((u * values @ v)[None], rank)[0]
        assert (truncated - u * values @ v).norm().item() == pytest.approx(values[rank:].norm().item(), rel=1e-9)
        assert torch.linalg.svdvals(truncated)[rank:].max() <= 1e-12

    def test_zero_stays_zero(self) -> None:
        assert not truncate_rank(torch.zeros(2, 5, 4), 2).any()

    def test_images_of_low_rank_stay(self) -> None:
        images = random(3, 6, 2) @ random(3, 2, 5, seed=1)
        torch.testing.assert_close(truncate_rank(images, 2), images)

    def test_leading_vectors_are_orthonormal_and_sorted(self) -> None:
        rows = random(8, 5)
        vectors = leading_singular_vectors(rows, 3)
        torch.testing.assert_close(vectors.T @ vectors, torch.eye(3, dtype=torch.float64))
        expected = torch.linalg.svd(rows, full_matrices=False)
        torch.testing.assert_close((vectors.T @ rows).norm(dim=1), expected.S[:3])


class TestProjection:
    @pytest.mark.parametrize("radius", [0.3, 1.0, 30.0])
    @pytest.mark.parametrize(("shape", "rank"), SMALL)
    def test_a_step_ends_at_the_nearest_point_of_low_rank_in_the_ball(
        self, shape: tuple[int, ...], rank: int, radius: float
    ) -> None:
        perturbation = LowRankPerturbation(shape, epsilon=radius, step_size=0.7, rank=rank, bounds=None).double()
        before, slopes = perturbation.delta().detach()[0], random(*shape, seed=5)
        perturbation.attack(torch.zeros(1, *shape, dtype=torch.float64), None, linear_loss(slopes))
        target = before + 0.7 * slopes / slopes.norm()
        ours = (perturbation.delta().detach()[0] - target).norm().item()
        nearest = search(shape, rank, radius, lambda points: (points - target).flatten(1).norm(dim=1))
        theirs = (nearest - target).norm().item()
        assert ours <= theirs + 1e-9
        assert theirs == pytest.approx(ours, rel=0.02)  # the search comes close, so it would notice a nearer point

    def test_the_mean_gradient_of_each_domain_moves_its_own_image(self) -> None:
        domain, slopes = torch.tensor([1, 0, 1, 1]), random(4, 2, 5, 4)
        perturbation = LowRankPerturbation((2, 5, 4), epsilon=0.4, num_domains=3, rank=2, bounds=None).double()
        before = perturbation.delta().detach().clone()
        perturbation.attack(torch.zeros(4, 2, 5, 4, dtype=torch.float64), domain, linear_loss(slopes))
        after = perturbation.delta().detach()
        assert torch.equal(after[2], before[2])
        for index in range(2):
            mean = slopes[domain == index].mean(0)
            moved = truncate_by_svd(before[index] + 0.4 * mean / mean.norm(), 2)
            torch.testing.assert_close(after[index], moved * min(1.0, 0.4 / moved.norm().item()))

    def test_full_rank_is_the_universal_perturbation(self) -> None:
        settings: dict[str, Any] = {"epsilon": 0.4, "step_size": 0.3, "bounds": None}
        low_rank = LowRankPerturbation((2, 5, 4), rank=4, **settings)
        universal = UniversalPerturbation((2, 5, 4), **settings)
        universal.deltas.data.copy_(low_rank.deltas)
        for seed in range(4):
            slopes = random(3, 2, 5, 4, seed=seed, dtype=torch.float32)
            for each in (low_rank, universal):
                each.attack(torch.zeros(3, 2, 5, 4), None, linear_loss(slopes))
            torch.testing.assert_close(low_rank.delta(), universal.delta())

    def test_a_new_radius_keeps_the_rank(self) -> None:
        perturbation = LowRankPerturbation((2, 5, 4), epsilon=3.0, rank=2, norm="linf").double()
        perturbation.epsilon = 0.1
        assert perturbation.delta().abs().max().item() == pytest.approx(0.1)
        assert torch.linalg.svdvals(perturbation.delta())[..., 2:].max() <= 1e-6


class TestSampleWise:
    @pytest.mark.parametrize(("shape", "rank"), SMALL)
    def test_one_step_from_zero_is_the_strongest_of_its_rank(self, shape: tuple[int, ...], rank: int) -> None:
        slopes = random(2, *shape, seed=3)
        for step_size in (None, 0.6, 5.0):
            perturbation = SampleWisePerturbation(
                shape, epsilon=0.6, step_size=step_size, rank=rank, start="zero", bounds=None
            )
            offsets = perturbation.attack(torch.zeros_like(slopes), None, linear_loss(slopes))
            for offset, slope in zip(offsets, slopes, strict=True):
                truncated = truncate_by_svd(slope, rank)
                torch.testing.assert_close(offset, 0.6 * truncated / truncated.norm())
        for offset, slope in zip(offsets, slopes, strict=True):
            found = search(shape, rank, 0.6, lambda points, slope=slope: -(points * slope).flatten(1).sum(1))
            ours, theirs = (offset * slope).sum().item(), (found * slope).sum().item()
            assert ours >= theirs - 1e-9
            assert theirs == pytest.approx(ours, rel=0.02)

    @pytest.mark.parametrize("over", ["sample", "domain"])
    def test_full_rank_is_the_ordinary_attack(self, over: Any) -> None:
        slopes, domain = random(5, 2, 5, 4), torch.tensor([0, 1, 1, 0, 1])
        offsets = [
            SampleWisePerturbation(
                (2, 5, 4), epsilon=0.6, step_size=0.4, num_domains=2, rank=rank, start="zero", over=over, bounds=None
            ).attack(torch.zeros_like(slopes), domain, linear_loss(slopes), steps=3)
            for rank in (None, 4)
        ]
        torch.testing.assert_close(*offsets)

    def test_a_step_is_as_long_as_its_size(self) -> None:
        slopes = random(4, 2, 5, 4)
        perturbation = SampleWisePerturbation((2, 5, 4), epsilon=9.0, step_size=0.25, rank=1, start="zero", bounds=None)
        offsets = perturbation.attack(torch.zeros_like(slopes), None, linear_loss(slopes))
        torch.testing.assert_close(offsets.flatten(1).norm(dim=1), torch.full((4,), 0.25, dtype=torch.float64))

    def test_saturated_pixels_have_a_gradient(self) -> None:
        x = torch.rand(4, 2, 5, 4, generator=torch.Generator().manual_seed(3)).round().double()
        slopes = random(4, 2, 5, 4)
        perturbation = SampleWisePerturbation((2, 5, 4), epsilon=0.5, rank=2, start="zero")
        perturbed = perturbation.attack(x, None, linear_loss(slopes))
        truncated = truncate_by_svd(slopes, 2)
        offset = 0.5 * truncated / truncated.flatten(1).norm(dim=1).reshape(-1, 1, 1, 1)
        torch.testing.assert_close(perturbed, (x + offset).clamp(0, 1))

    def test_gradients_are_taken_at_the_clipped_image(self) -> None:
        perturbation = SampleWisePerturbation((2, 5, 4), epsilon=9.0, step_size=4.0, rank=2)
        seen = []

        def loss(x: Tensor) -> Tensor:
            seen.append(x.detach())
            return linear_loss(x.detach() - 0.5)(x)

        seen.append(perturbation.attack(random(3, 2, 5, 4).clamp(0, 1), None, loss, steps=3))
        assert len(seen) == 4
        assert all(x.min() >= 0 and x.max() <= 1 for x in seen)

    def test_clipping_applies_to_the_image_and_not_to_the_offset(self) -> None:
        x, slopes = torch.full((1, 1, 4, 4), 0.9, dtype=torch.float64), random(1, 1, 4, 4)
        settings: dict[str, Any] = {"epsilon": 2.0, "rank": 1, "start": "zero"}
        free = SampleWisePerturbation((1, 4, 4), bounds=None, **settings).attack(x, None, linear_loss(slopes))
        clipped = SampleWisePerturbation((1, 4, 4), **settings).attack(x, None, linear_loss(slopes))
        torch.testing.assert_close(clipped, free.clamp(0, 1))


class TestHalfPrecision:
    """A user's autocast is meant for the network, not for the projections."""

    @pytest.mark.parametrize(
        "kind",
        [
            LowRankPerturbation((2, 16, 16), epsilon=0.5, rank=2, bounds=None),
            SampleWisePerturbation((2, 16, 16), epsilon=0.5, rank=2, start="zero", bounds=None),
        ],
        ids=["per domain", "per sample"],
    )
    def test_rank_and_radius_are_exact_under_autocast(self, kind: Any) -> None:
        slopes = random(3, 2, 16, 16, dtype=torch.float32)
        with torch.autocast("cpu", torch.bfloat16):
            offset = kind.attack(torch.zeros_like(slopes), None, linear_loss(slopes), steps=2)
        assert torch.linalg.svdvals(offset.double())[..., 2:].max() <= 1e-6
        assert offset.double().flatten(1).norm(dim=1).max() <= 0.5 * (1 + 1e-5)
        assert offset.flatten(1).norm(dim=1).min() >= 0.5 * (1 - 1e-3)
