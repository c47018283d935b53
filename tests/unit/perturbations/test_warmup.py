"""The radius of every kind and method: given as text, followed by the step, and growing during the warm-up."""

import math
from typing import Any

import pytest
import torch
from perturbation_kinds import BY_GRADIENT, KINDS, ONE_PASS, SHAPE, build, length, linear_loss, pass_once, wavy_loss
from torch import Tensor, nn

from domainwise.algorithms import ALGORITHMS, AT, UAT
from domainwise.errors import DomainwiseError
from domainwise.perturbations import UniversalPerturbation

X = torch.rand(6, *SHAPE, generator=torch.Generator().manual_seed(0))
SLOPES = torch.randn(6, *SHAPE, generator=torch.Generator().manual_seed(1))
DOMAIN = torch.tensor([0, 1, 1, 0, 1, 0])


class TestUnits:
    @pytest.mark.parametrize("kind", KINDS)
    def test_every_kind_takes_a_string_and_a_new_one(self, kind: str) -> None:
        perturbation = build(kind, epsilon="0.1 rms")
        assert perturbation.epsilon == pytest.approx(0.1 * math.sqrt(40))
        perturbation.epsilon = "8/255"
        assert perturbation.epsilon == 8 / 255
        offset = perturbation.attack(X, None, linear_loss(SLOPES)) - X
        limit = 8 / 255 * (1 + 1e-5) + 2e-6
        assert length(offset, "l2", int(getattr(perturbation, "over", "sample") == "sample")).max() <= limit

    def test_hyperparameters_are_checked_when_they_are_built(self) -> None:
        assert AT.Hparams.build(epsilon="2/255 rms").epsilon == "2/255 rms"
        assert AT.Hparams.parse({"epsilon": "2/255 rms"}) == {"epsilon": "2/255 rms"}
        assert AT.Hparams.parse({"epsilon": "0.5"}) == {"epsilon": 0.5}
        for values in ({"epsilon": "2/255 px"}, {"epsilon": "2/255 rms", "norm": "linf"}, {"epsilon": -1.0}):
            with pytest.raises(DomainwiseError, match="hyperparameter epsilon must be"):
                AT.Hparams.build(**values)

    @pytest.mark.parametrize("name", ["at", "uat", "mat", "ldat"])
    def test_methods_take_a_string(self, name: str) -> None:
        network = nn.Sequential(nn.Flatten(), nn.Linear(48, 2))
        rank = {"rank": 2} if name == "ldat" else {}
        algorithm = ALGORITHMS[name](network, num_domains=1, input_shape=(3, 4, 4), epsilon="2/255 rms", **rank)
        assert algorithm.perturbation.epsilon == pytest.approx(2 / 255 * math.sqrt(48))


class TestStepSize:
    def test_none_is_the_radius(self) -> None:
        perturbation = UniversalPerturbation(SHAPE, epsilon=0.5)
        assert perturbation.step_size == 0.5
        perturbation.epsilon = 0.25
        assert perturbation.step_size == 0.25
        perturbation.step_size = 0.1
        assert perturbation.step_size == 0.1
        perturbation.step_size = None
        assert perturbation.step_size == 0.25

    def test_it_follows_the_warm_up(self) -> None:
        perturbation = UniversalPerturbation(SHAPE, epsilon=0.5, warmup_steps=4)
        sizes = []
        for _ in range(6):
            sizes.append(perturbation.step_size)
            perturbation.attack(X, None, linear_loss(SLOPES))
        assert sizes == [0.125, 0.25, 0.375, 0.5, 0.5, 0.5]


# Kinds whose start is inside the ball as well; a random start is inside that of each sample, not of the domain.
INSIDE = [kind for kind in KINDS if not any(word in kind for word in ("cube", "unprojected", "random over domain"))]


class TestWarmup:
    @pytest.mark.parametrize("norm", ["l2", "linf"])
    @pytest.mark.parametrize("kind", INSIDE)
    def test_the_radius_grows_linearly_and_holds_in_every_attack(self, kind: str, norm: str) -> None:
        perturbation = build(kind, num_domains=2, epsilon=0.8, step_size=5.0, warmup_steps=4, norm=norm, bounds=None)
        batch_dims = int(getattr(perturbation, "over", "sample") == "sample")
        for number, expected in enumerate([0.2, 0.4, 0.6, 0.8, 0.8]):
            assert perturbation.updates == number
            assert perturbation.radius == pytest.approx(expected)
            seen: list[Tensor] = []

            def loss(x: Tensor, seen: list[Tensor] = seen) -> Tensor:
                seen.append(x.detach() - X)
                return wavy_loss(SLOPES)(x)

            seen.append(perturbation.attack(X, DOMAIN, loss, steps=2) - X)
            for offset in seen:
                rows = [offset] if batch_dims else [offset[DOMAIN == 0], offset[DOMAIN == 1]]
                assert max(length(each, norm, batch_dims).max() for each in rows) <= expected * (1 + 1e-5) + 1e-6
            # A long step reaches the surface; only mixtures are inside it.
            if "multiple" not in kind or "subspace" in kind:
                rows = [seen[-1]] if batch_dims else [seen[-1][DOMAIN == 0]]
                assert max(length(each, norm, batch_dims).max() for each in rows) >= expected * (1 - 1e-3)

    @pytest.mark.parametrize("kind", ONE_PASS)
    def test_one_pass_steps_count(self, kind: str) -> None:
        perturbation = build(kind, epsilon=0.8, warmup_steps=4)
        for expected in [0.2, 0.4, 0.6, 0.8, 0.8]:
            assert perturbation.radius == pytest.approx(expected)
            if "unprojected" not in kind:
                assert length(perturbation.delta(), "l2", 1).max() <= expected * (1 + 1e-5)
            pass_once(perturbation, X, torch.zeros(6, dtype=torch.int64), wavy_loss(SLOPES))

    @pytest.mark.parametrize("kind", KINDS)
    def test_none_is_the_same_as_before(self, kind: str) -> None:
        plain, without, done = build(kind), build(kind, warmup_steps=0), build(kind, warmup_steps=1)
        for _ in range(3):
            perturbed = [each.attack(X, None, wavy_loss(SLOPES)) for each in (plain, without, done)]
            assert torch.equal(perturbed[0], perturbed[1])
            assert torch.equal(perturbed[0], perturbed[2])

    @pytest.mark.parametrize("kind", ["universal", "sample-wise zero over sample", *BY_GRADIENT])
    def test_an_attack_without_steps_does_not_count(self, kind: str) -> None:
        perturbation = build(kind, warmup_steps=4)
        perturbation.attack(X, None, linear_loss(SLOPES), steps=0)
        assert perturbation.updates == 0
        perturbation.attack(X, None, linear_loss(SLOPES), steps=3)
        assert perturbation.updates == 1

    def test_a_failed_attack_does_not_count(self) -> None:
        perturbation = build("universal", warmup_steps=4)
        with pytest.raises(ValueError, match="one loss per sample"):
            perturbation.attack(X, None, lambda x: x.mean())
        assert perturbation.updates == 0

    def test_a_state_from_before_the_warm_up_existed_can_be_loaded(self) -> None:
        old = build("universal").state_dict()
        del old["_extra_state"]["updates"]
        perturbation = build("universal", warmup_steps=4)
        perturbation.load_state_dict(old)
        assert perturbation.updates == 0

    def algorithm(self, **settings: Any) -> UAT:
        network = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(SHAPE), 2))
        return UAT(network, num_domains=2, input_shape=SHAPE, epsilon=0.8, **settings)

    def test_training_without_a_number_of_steps_has_none(self) -> None:
        assert self.algorithm(warmup=0.5).perturbation.warmup_steps == 0

    @pytest.mark.parametrize(("warmup", "expected"), [(0.0, 0), (0.25, 3), (0.5, 5), (1.0, 10)])
    def test_it_is_a_share_of_all_steps(self, warmup: float, expected: int) -> None:
        # 0.25 * 10 is rounded to the nearest even number of steps by `round`.
        steps = 12 if warmup == 0.25 else 10
        assert self.algorithm(num_steps=steps, warmup=warmup).perturbation.warmup_steps == expected

    def test_sequential_order_attacks_once_per_domain(self) -> None:
        algorithm = self.algorithm(num_steps=10, warmup=0.5, order="sequential")
        assert algorithm.perturbation.warmup_steps == 10
        batch = (X[:3], torch.tensor([0, 1, 0]))
        radii = []
        for _ in range(6):
            radii.append(algorithm.perturbation.radius)
            algorithm.update([batch, batch])
        # The same share of the way after the same number of updates as with joint order, where it is 1/5, 2/5, ...
        assert radii == pytest.approx([0.08, 0.24, 0.4, 0.56, 0.72, 0.8])
        assert algorithm.perturbation.updates == 12
