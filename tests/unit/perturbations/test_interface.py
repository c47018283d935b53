"""The interface of perturbations: signatures, arguments, errors, both uses, and memory."""

import ast
import copy
import inspect
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from perturbation_cases import assert_same_state
from perturbation_kinds import (
    BY_GRADIENT,
    KEPT,
    KINDS,
    LOW_RANK,
    LOW_RANK_SAMPLE_WISE,
    MIXED_BY_SAMPLE,
    ONE_PASS,
    SAMPLE_WISE,
    SHAPE,
    WITHOUT_DRAWS,
    build,
    length,
    linear_loss,
    pass_once,
    state_of,
    wavy_loss,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import domainwise.perturbations
from domainwise.perturbations import (
    LowRankPerturbation,
    MultiplePerturbation,
    Perturbation,
    SampleWisePerturbation,
    SpectrumPrior,
    TonePrior,
    UniversalPerturbation,
)
from domainwise.perturbations.base import draw_in_ball, project

ONE_PER_CLASS = ["sample-wise zero over sample", "universal", "multiple assigned", "low-rank projected"]
NOT_ONE_PASS = [*SAMPLE_WISE, *LOW_RANK_SAMPLE_WISE, *MIXED_BY_SAMPLE, *BY_GRADIENT]


def images(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(seed))


def noise(count: int, seed: int = 1) -> Tensor:
    return torch.randn(count, *SHAPE, generator=torch.Generator().manual_seed(seed))


def moves(perturbation: Any, before: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: after - before[name] for name, after in state_of(perturbation).items()}


class TestSignatures:
    @pytest.mark.parametrize(
        "kind", [LowRankPerturbation, MultiplePerturbation, SampleWisePerturbation, UniversalPerturbation]
    )
    def test_all_arguments_are_listed_with_the_defaults_of_the_base(self, kind: type[Perturbation]) -> None:
        parameters = inspect.signature(kind).parameters
        assert not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        base = inspect.signature(Perturbation).parameters
        assert {name: parameters.get(name) for name in base} == dict(base)
        assert list(parameters)[:3] == ["shape", "epsilon", "step_size"]

    def test_all_arguments_reach_the_base(self) -> None:
        generator = torch.Generator()
        settings: dict[str, Any] = {
            "epsilon": 0.3,
            "step_size": 0.2,
            "num_domains": 2,
            "warmup_steps": 4,
            "norm": "linf",
            "ascent": "sign",
            "loss_cap": 3.0,
            "reduction": "sum",
            "prior": TonePrior(),
            "adversary": "worst_of",
            "draws": 4,
            "generator": generator,
        }
        assert settings.keys() | {"shape", "bounds", "mean", "std"} == inspect.signature(Perturbation).parameters.keys()
        for kind in (LowRankPerturbation, MultiplePerturbation, SampleWisePerturbation, UniversalPerturbation):
            with warnings.catch_warnings(action="ignore"):
                if kind is LowRankPerturbation:
                    settings["prior"] = SpectrumPrior()
                perturbation = kind(SHAPE, bounds=(0.25, 0.75), mean=(0.1, 0.2), std=(0.3, 0.4), **settings)
            assert {name: getattr(perturbation, name) for name in settings} == settings
            assert (perturbation.space.low, perturbation.space.high) == (0.25, 0.75)
            assert perturbation.space.mean.flatten().tolist() == pytest.approx([0.1, 0.2])
            assert perturbation.space.std.flatten().tolist() == pytest.approx([0.3, 0.4])


@pytest.mark.filterwarnings("ignore:x has values from")
class TestBounds:
    @pytest.mark.parametrize("kind", KINDS)
    def test_none_disables_clipping(self, kind: str) -> None:
        perturbation = build(kind, epsilon=9.0, step_size=9.0, bounds=None)
        perturbed = perturbation.attack(images(4), None, linear_loss(noise(4)))
        assert perturbed.min() < 0
        assert perturbed.max() > 1

    @pytest.mark.parametrize("kind", KINDS)
    def test_images_are_clipped_to_0_and_1_by_default(self, kind: str) -> None:
        perturbation = build(kind, epsilon=9.0, step_size=9.0)
        perturbed = perturbation.attack(images(4), None, linear_loss(noise(4)))
        assert perturbed.min() == 0
        assert perturbed.max() == 1

    @pytest.mark.parametrize("kind", ONE_PASS)
    def test_forward_clips_the_sum(self, kind: str) -> None:
        x = images(4)
        perturbation = build(kind, epsilon=9.0, bounds=(0.25, 0.75))
        assert torch.equal(perturbation(x), (x + perturbation.delta()).clamp(0.25, 0.75))

    @pytest.mark.parametrize("kind", WITHOUT_DRAWS)
    def test_constant_tensors_are_equivalent_to_numbers(self, kind: str) -> None:
        of_numbers = build(kind, epsilon=3.0, bounds=(0.1, 0.9), count=1)
        of_tensors = build(kind, epsilon=3.0, bounds=(torch.tensor(0.1), torch.full(SHAPE, 0.9)), count=1)
        perturbed = [each.attack(images(3), None, wavy_loss(noise(3)), steps=2) for each in (of_numbers, of_tensors)]
        torch.testing.assert_close(*perturbed)

    def test_tensors_clip_per_channel(self) -> None:
        low, high = torch.tensor([0.0, -1.0]).reshape(2, 1, 1), torch.tensor([1.0, 0.5]).reshape(2, 1, 1)
        x = images(3)
        perturbation = build("universal", epsilon=30.0, bounds=(low, high))
        expected = torch.minimum(torch.maximum(x + perturbation.delta(), low), high)
        assert torch.equal(perturbation(x), expected)

    @pytest.mark.parametrize("bounds", [(0.0, torch.ones(2, 1, 1)), (torch.zeros(2, 1, 1), 1.0)])
    def test_a_number_and_a_tensor_can_be_combined(self, bounds: Any) -> None:
        x = images(3)
        perturbation = build("universal", epsilon=30.0, bounds=bounds)
        torch.testing.assert_close(perturbation(x), (x + perturbation.delta()).clamp(0.0, 1.0))


class TestNormalizedInputs:
    mean, std = [0.4, 0.6], [0.2, 0.5]

    def normalized(self, image: Tensor) -> Tensor:
        return (image - torch.tensor(self.mean).reshape(2, 1, 1)) / torch.tensor(self.std).reshape(2, 1, 1)

    @pytest.mark.parametrize("norm", ["l2", "linf"])
    @pytest.mark.parametrize("kind", WITHOUT_DRAWS)
    def test_the_attack_equals_the_one_on_the_image(self, kind: str, norm: str) -> None:
        settings = {"num_domains": 2, "count": 1, "norm": norm, "epsilon": 0.6, "ascent": "gradient"}
        of_inputs = build(kind, mean=self.mean, std=self.std, **settings)
        of_images = build(kind, **settings)
        image, domain, loss = images(4), torch.tensor([0, 1, 1, 0]), wavy_loss(noise(4))
        inputs = of_inputs.attack(self.normalized(image), domain, loss, steps=2)
        by_hand = of_images.attack(image, domain, lambda image: loss(self.normalized(image)), steps=2)
        torch.testing.assert_close(inputs, self.normalized(by_hand), rtol=1e-4, atol=1e-5)
        assert_same_state(of_inputs, of_images, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("kind", ONE_PASS)
    def test_forward_adds_and_clips_in_the_image(self, kind: str) -> None:
        image = images(3)
        perturbation = build(kind, mean=self.mean, std=self.std, epsilon=3.0)
        expected = self.normalized((image + perturbation.delta()).clamp(0, 1))
        torch.testing.assert_close(perturbation(self.normalized(image)), expected, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("kind", KINDS)
    def test_radius_and_bounds_refer_to_the_image(self, kind: str) -> None:
        perturbation = build(kind, mean=self.mean, std=self.std, epsilon=0.6, step_size=5.0)
        image = images(1)
        perturbed = perturbation.attack(self.normalized(image), None, wavy_loss(noise(1)), steps=2)
        offset = (perturbed - self.normalized(image)) * torch.tensor(self.std).reshape(2, 1, 1)
        assert length(offset, "l2", 1).item() <= 0.6 + 1e-5
        perturbed_image = image + offset
        assert perturbed_image.min() >= -1e-5
        assert perturbed_image.max() <= 1 + 1e-5

    @pytest.mark.parametrize("given", [{"mean": [0.5, 0.5]}, {"std": [0.5, 0.5]}])
    def test_error_for_mean_without_std(self, given: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="pass mean and std together"):
            build("universal", **given)


class TestInputsOutsideTheBounds:
    normalized = {"mean": [0.4, 0.4], "std": [0.2, 0.2]}

    @pytest.mark.parametrize("use", ["attack", "forward"])
    @pytest.mark.parametrize(
        ("x", "span"),
        [(255 * images(4), r"0\.3\d* to 254"), (4 * images(4) - 2, r"-1\.9\d* to 1\.9")],
        ids=["255", "std"],
    )
    def test_they_warn_once(self, x: Tensor, span: str, use: str) -> None:
        perturbation = build("universal")

        def call() -> None:
            perturbation.attack(x, None, linear_loss(x)) if use == "attack" else perturbation(x)

        with pytest.warns(
            UserWarning, match=rf"x has values from {span}.*outside \[0, 1\] are clipped.*x / 255.*mean="
        ):
            call()
        call()

    def test_only_the_first_calls_are_checked(self) -> None:
        perturbation = build("universal")
        for _ in range(3):
            perturbation(images(2))
        perturbation(255 * images(2))

    @pytest.mark.parametrize("kind", KINDS)
    def test_every_kind_warns(self, kind: str) -> None:
        with pytest.warns(UserWarning, match="x has values from"):
            build(kind).attack(255 * images(2), None, linear_loss(images(2)))

    @pytest.mark.parametrize(
        ("given", "x"),
        [
            ({}, images(2)),
            ({}, images(2) * 1.002),
            ({"bounds": None}, 255 * images(2)),
            ({"bounds": (0, 255)}, 255 * images(2)),
            ({"bounds": (0.0, float("inf"))}, 255 * images(2)),
            (normalized, (images(2) - 0.4) / 0.2),
            (normalized, ((images(2) - 0.4) / 0.2).bfloat16()),
            ({}, torch.zeros(0, *SHAPE)),
        ],
        ids=["images", "rounding", "none", "255", "half open", "normalized", "half precision", "empty"],
    )
    def test_others_do_not(self, given: dict[str, Any], x: Tensor) -> None:
        build("universal", **given)(x)

    def test_bounds_per_channel(self) -> None:
        bounds = (torch.zeros(2, 1, 1), torch.tensor([1.0, 2.0]).reshape(2, 1, 1))
        x = images(2) * torch.tensor([1.0, 2.0]).reshape(2, 1, 1)
        build("universal", bounds=bounds)(x)
        with pytest.warns(UserWarning, match="outside its bounds are clipped"):
            build("universal", bounds=bounds)(x.flip(1))

    def test_error_for_another_device(self) -> None:
        with pytest.raises(ValueError, match=r"x must be on the device of the perturbation, cpu, got meta; move it"):
            build("universal")(images(2).to("meta"))


class TestInnerLoss:
    settings = {"ascent": "gradient", "step_size": 0.5, "epsilon": 1e4, "bounds": None}

    def step(self, x: Tensor, slopes: Tensor, **given: Any) -> Tensor:
        perturbation = build("universal", **self.settings, **given)
        perturbation.deltas.data.zero_()
        perturbation.attack(x, None, linear_loss(slopes))
        return perturbation.deltas.detach()[0]

    def test_the_loss_is_averaged_over_the_domain(self) -> None:
        slopes = noise(4)
        torch.testing.assert_close(self.step(images(4), slopes), 0.5 * slopes.mean(0))

    def test_the_loss_can_be_summed(self) -> None:
        slopes = noise(4)
        torch.testing.assert_close(self.step(images(4), slopes, reduction="sum"), 0.5 * slopes.sum(0))

    def test_the_sum_is_per_domain(self) -> None:
        perturbation = build("universal", num_domains=2, reduction="sum", **self.settings)
        before, slopes = state_of(perturbation), noise(3)
        perturbation.attack(images(3), torch.tensor([1, 0, 1]), linear_loss(slopes))
        expected = 0.5 * torch.stack([slopes[1], slopes[0] + slopes[2]])
        torch.testing.assert_close(moves(perturbation, before)["deltas"], expected)

    def test_samples_above_the_cap_do_not_contribute(self) -> None:
        x, slopes = torch.ones(2, *SHAPE), torch.ones(2, *SHAPE)
        slopes[0] /= 100
        torch.testing.assert_close(self.step(x, slopes, loss_cap=2.0), 0.5 * slopes[0] / 2)

    def test_samples_below_the_cap_contribute_fully(self) -> None:
        x, slopes = torch.ones(2, *SHAPE), torch.ones(2, *SHAPE)
        torch.testing.assert_close(self.step(x, slopes, loss_cap=41.0), 0.5 * slopes[0])

    @pytest.mark.parametrize("kind", KEPT)
    def test_nothing_moves_if_all_samples_are_above_the_cap(self, kind: str) -> None:
        perturbation = build(kind, num_domains=2, loss_cap=1.0)
        before = state_of(perturbation)
        loss = linear_loss(noise(4))
        perturbation.attack(images(4), torch.tensor([0, 1, 0, 1]), lambda x: loss(x) + 1000)
        assert all(not move.any() for move in moves(perturbation, before).values())

    def test_a_capped_sample_stays_and_the_other_moves(self) -> None:
        x = images(2)
        slopes = noise(2)
        perturbation = build("sample-wise zero over sample", loss_cap=1.0)
        high = torch.tensor([1000.0, -1000.0])
        perturbed = perturbation.attack(x, None, lambda x: linear_loss(slopes)(x) + high)
        assert torch.equal(perturbed[0], x[0])
        assert not torch.equal(perturbed[1], x[1])


class TestDomains:
    @pytest.mark.parametrize("kind", KINDS)
    def test_none_means_the_only_domain(self, kind: str) -> None:
        one, other = build(kind), build(kind)
        x, loss = images(3), wavy_loss(noise(3))
        assert torch.equal(one.attack(x, None, loss), other.attack(x, torch.zeros(3, dtype=torch.int64), loss))

    @pytest.mark.parametrize("kind", KINDS)
    def test_error_for_none_with_several_domains(self, kind: str) -> None:
        with pytest.raises(ValueError, match="domain=None is ambiguous with 3 domains"):
            build(kind, num_domains=3).attack(images(2), None, linear_loss(noise(2)))

    @pytest.mark.parametrize("kind", ONE_PASS)
    def test_error_in_forward_for_none_with_several_domains(self, kind: str) -> None:
        with pytest.raises(ValueError, match="domain=None is ambiguous with 3 domains"):
            build(kind, num_domains=3)(images(2))

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_number_is_the_domain_of_all_samples(self, kind: str) -> None:
        one, other = build(kind, num_domains=3), build(kind, num_domains=3)
        x, loss = images(3), wavy_loss(noise(3))
        assert torch.equal(one.attack(x, 2, loss), other.attack(x, torch.tensor([2, 2, 2]), loss))

    @pytest.mark.parametrize("kind", ONE_PASS)
    def test_forward_adds_the_perturbation_of_the_samples_domain(self, kind: str) -> None:
        perturbation = build(kind, num_domains=3, bounds=None)
        x, domain = images(4), torch.tensor([2, 0, 2, 1], dtype=torch.int32)
        delta = perturbation.delta()
        assert delta.shape == (3, *SHAPE)
        assert not torch.equal(delta[0], delta[2])
        expected = torch.stack([x[0] + delta[2], x[1] + delta[0], x[2] + delta[2], x[3] + delta[1]])
        torch.testing.assert_close(perturbation(x, domain), expected)

    @pytest.mark.parametrize(
        "domain",
        [
            torch.zeros(3, dtype=torch.int64),
            torch.zeros(2, 1, dtype=torch.int64),
            torch.tensor(0),
            torch.zeros(2),
            torch.zeros(2, dtype=torch.bool),
        ],
        ids=["too many", "two dimensions", "none", "float", "bool"],
    )
    def test_error_for_a_wrong_domain_tensor(self, domain: Tensor) -> None:
        with pytest.raises(ValueError, match=r"domain must have one integer per sample, shape \(2,\), got"):
            build("universal").attack(images(2), domain, linear_loss(noise(2)))

    @pytest.mark.parametrize(
        ("domain", "span"),
        [(torch.tensor([0, 3]), "0 to 3"), (torch.tensor([-1, 2]), "-1 to 2"), (3, "3 to 3"), (-1, "-1 to -1")],
    )
    @pytest.mark.parametrize("kind", ONE_PER_CLASS)
    def test_error_for_a_domain_out_of_range(self, kind: str, domain: Any, span: str) -> None:
        with pytest.raises(ValueError, match=f"domain must be between 0 and 2, got {span}"):
            build(kind, num_domains=3).attack(images(2), domain, linear_loss(noise(2)))


class TestErrors:
    @pytest.mark.parametrize("kind", KINDS)
    def test_inputs_of_another_shape(self, kind: str) -> None:
        with pytest.raises(ValueError, match=r"x must be a float tensor of shape \(b, 2, 5, 4\), got \(2, 5, 4\)"):
            build(kind).attack(images(2)[:, 0], None, lambda x: x.flatten(1).sum(1))

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_loss_of_the_whole_batch(self, kind: str) -> None:
        with pytest.raises(ValueError, match=r'one loss per sample, shape \(2,\), got \(\); use reduction="none"'):
            build(kind).attack(images(2), None, lambda x: x.mean())

    def test_a_loss_with_a_dimension_too_many(self) -> None:
        with pytest.raises(ValueError, match=r"one loss per sample, shape \(2,\), got \(2, 1\)"):
            build("universal").attack(images(2), None, lambda x: x.flatten(1).sum(1, keepdim=True))

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"epsilon": -0.1}, "epsilon must be a number of at least 0, such as 0.5 or '2/255 rms', got -0.1"),
            ({"epsilon": float("nan")}, "epsilon must be a number of at least 0, such as 0.5 or '2/255 rms', got nan"),
            ({"epsilon": float("inf")}, "epsilon must be a number of at least 0, such as 0.5 or '2/255 rms', got inf"),
            ({"step_size": -1.0}, "step_size must be a finite number of at least 0, got -1.0"),
            ({"step_size": float("nan")}, "step_size must be a finite number of at least 0, got nan"),
            ({"num_domains": 0}, "num_domains must be at least 1, got 0"),
            ({"warmup_steps": -1}, "warmup_steps must be at least 0, got -1"),
            ({"loss_cap": 0.0}, "loss_cap must be positive, got 0.0"),
            ({"norm": "l1"}, "norm must be one of 'l2', 'linf', got 'l1'"),
            ({"ascent": "adam"}, "ascent must be one of 'normalized', 'gradient', 'sign', got 'adam'"),
            ({"reduction": "none"}, "reduction must be one of 'mean', 'sum', got 'none'"),
        ],
        ids=str,
    )
    @pytest.mark.parametrize("kind", ONE_PER_CLASS)
    def test_settings_of_all(self, kind: str, given: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            build(kind, **given)

    @pytest.mark.parametrize(
        ("of_kind", "given", "message"),
        [
            (SampleWisePerturbation, {"start": "projected"}, "start must be one of 'random', 'zero', 'cube', got"),
            (SampleWisePerturbation, {"over": "batch"}, "over must be one of 'sample', 'domain', got 'batch'"),
            (UniversalPerturbation, {"start": "zero"}, "start must be one of 'projected', 'unprojected', got 'zero'"),
            (MultiplePerturbation, {"start": "zero"}, "start must be one of 'projected', 'unprojected', got 'zero'"),
            (MultiplePerturbation, {"count": 0}, "count must be at least 1, got 0"),
            (
                MultiplePerturbation,
                {"weights": "batch"},
                "weights must be one of 'assigned', 'soft', 'subspace', 'domain', 'sample', got 'batch'",
            ),
            (MultiplePerturbation, {"temperature": 0.0}, "temperature must be positive, got 0.0"),
            (MultiplePerturbation, {"temperature": float("nan")}, "temperature must be positive, got nan"),
            (MultiplePerturbation, {"memory": -0.1}, "memory must be between 0 and 1, got -0.1"),
            (MultiplePerturbation, {"memory": 1.1}, "memory must be between 0 and 1, got 1.1"),
            (MultiplePerturbation, {"weights": "subspace", "ascent": "sign"}, "does not support ascent='sign'"),
            (
                MultiplePerturbation,
                {"normalized_over": "all"},
                "normalized_over must be one of 'perturbation', 'stack'",
            ),
            (
                MultiplePerturbation,
                {"weight_step_size": -1.0},
                "weight_step_size must be a finite number of at least 0",
            ),
            (LowRankPerturbation, {"rank": 0}, "rank must be at least 1, got 0"),
            (LowRankPerturbation, {"solver": "svd"}, "solver must be one of 'projected', 'factors', got 'svd'"),
            (SampleWisePerturbation, {"rank": 0}, "rank must be at least 1, got 0"),
            (
                SampleWisePerturbation,
                {"shape": (5, 4), "rank": 2},
                r"shape must be \(channels, height, width\) for .*, got \(5, 4\)",
            ),
            (LowRankPerturbation, {"shape": (5, 4)}, r"shape must be \(channels, height, width\) for .*, got \(5, 4\)"),
        ],
        ids=str,
    )
    def test_settings_of_one_kind(self, of_kind: Any, given: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            of_kind(**({"shape": SHAPE, "epsilon": 1.0, "step_size": 1.0} | given))

    @pytest.mark.parametrize("kind", KINDS)
    def test_more_domains_than_there_is_memory(self, kind: str) -> None:
        with pytest.raises(ValueError, match=r"^num_domains.* is too large: 1000000000000 .*numbers need [\d,]+ GB"):
            build(kind, num_domains=10**12)

    @pytest.mark.parametrize("kind", ["low-rank factors", "low-rank projected"])
    def test_a_higher_rank_than_there_is_memory(self, kind: str) -> None:
        with pytest.raises(ValueError, match=r"^num_domains x rank x shape is too large: 1 x 1000000000 x .* numbers"):
            build(kind, rank=10**9)

    @pytest.mark.parametrize("kind", ["universal", "multiple soft", "low-rank factors", "low-rank projected"])
    def test_larger_images_than_there_is_memory(self, kind: str) -> None:
        with pytest.raises(ValueError, match=r"shape is too large: 1 x .*1000000 x 1000000 numbers need"):
            build(kind, shape=(1, 10**6, 10**6))

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_wrong_new_radius_changes_nothing(self, kind: str) -> None:
        perturbation = build(kind, epsilon=0.3)
        before = state_of(perturbation)
        with pytest.raises(ValueError, match="epsilon must be a number of at least 0"):
            perturbation.epsilon = -1.0
        assert perturbation.epsilon == 0.3
        assert all(not move.any() for move in moves(perturbation, before).values())

    @pytest.mark.parametrize("kind", NOT_ONE_PASS)
    def test_error_for_one_pass_use_of_what_is_not_kept(self, kind: str) -> None:
        perturbation = build(kind)
        uses = {
            "delta()": perturbation.delta,
            "ascend_()": perturbation.ascend_,
            "perturbation(x)": lambda: perturbation(images(2)),
        }
        if kind in MIXED_BY_SAMPLE | BY_GRADIENT:
            uses["mixing_weights()"] = perturbation.mixing_weights
        for name, use in uses.items():
            with pytest.raises(RuntimeError) as error:
                use()
            assert str(error.value).startswith(f"{name} needs a perturbation that is kept")
            assert "use attack(x, domain, loss_fn)" in str(error.value)

    @pytest.mark.parametrize("kind", ONE_PASS)
    def test_ascend_needs_a_backward_pass_each_time(self, kind: str) -> None:
        perturbation = build(kind)
        with pytest.raises(RuntimeError, match=r"call backward\(\) on a loss of perturbation\(x, domain\) first"):
            perturbation.ascend_()
        pass_once(perturbation, images(2), torch.tensor([0, 0]), wavy_loss(noise(2)))
        with pytest.raises(RuntimeError, match="found no gradients"):
            perturbation.ascend_()

    @pytest.mark.parametrize("solver", ["factors", "projected"])
    def test_warning_for_a_rank_above_the_image_size(self, solver: str) -> None:
        with pytest.warns(UserWarning, match="rank 5 exceeds the image size 5 x 4 and has no effect"):
            perturbation = build(f"low-rank {solver}", rank=5)
        perturbed = perturbation.attack(images(2), None, wavy_loss(noise(2)))
        assert perturbed.shape == (2, *SHAPE)
        assert torch.linalg.matrix_rank(perturbation.delta().detach()).tolist() == [[4, 4]]

    def test_a_rank_of_the_image_size_does_not_warn(self) -> None:
        assert build("low-rank factors", rank=4).rank == 4
        assert build("low-rank projected", rank=4).rank == 4


class TestOnePass:
    @pytest.mark.parametrize("kind", ONE_PASS)
    def test_one_backward_moves_the_model_down_and_the_perturbation_up(self, kind: str) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Flatten(), nn.Linear(40, 8), nn.Tanh(), nn.Linear(8, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        perturbation = build(kind, num_domains=2, epsilon=1.0, step_size=0.05, bounds=None)
        x, domain, labels = images(6), torch.tensor([0, 1, 1, 0, 1, 0]), torch.tensor([0, 1, 2, 0, 1, 2])
        for _ in range(3):
            model_before, perturbation_before = state_of(model), copy.deepcopy(perturbation)
            loss = F.cross_entropy(model(perturbation(x, domain)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            perturbation.ascend_()
            assert all(move.any() for move in moves(model, model_before).values())
            assert all(move.any() for move in moves(perturbation, state_of(perturbation_before)).values())
            assert all(tensor.grad is None for tensor in perturbation.parameters())
            with torch.no_grad():
                new_model = F.cross_entropy(model(perturbation_before(x, domain)), labels)
                assert new_model < loss

    @pytest.mark.parametrize("bounds", [None, (0.0, 1.0)])
    @pytest.mark.parametrize("ascent", ["normalized", "gradient", "sign"])
    @pytest.mark.parametrize("kind", ONE_PASS)
    def test_it_equals_two_passes_for_the_mean_loss_of_one_domain(self, kind: str, ascent: str, bounds: Any) -> None:
        one_pass, two_passes = (build(kind, ascent=ascent, bounds=bounds, double=True) for _ in range(2))
        x, loss = images(5).double(), wavy_loss(noise(5).double())
        for _ in range(3):
            pass_once(one_pass, x, torch.zeros(5, dtype=torch.int64), loss)
            two_passes.attack(x, None, loss)
            for name, tensor in state_of(one_pass).items():
                torch.testing.assert_close(tensor, state_of(two_passes)[name], rtol=0, atol=1e-6)

    @pytest.mark.parametrize("kind", ONE_PASS)
    def test_inverse_shares_undo_the_batch_mean(self, kind: str) -> None:
        one_pass, two_passes = (build(kind, num_domains=2, ascent="gradient", bounds=None) for _ in range(2))
        x, domain, loss = images(5), torch.tensor([1, 0, 1, 1, 1]), wavy_loss(noise(5))
        loss(one_pass(x, domain)).mean().backward()
        one_pass.ascend_(gradient_scale=torch.tensor([5.0, 5 / 4]))
        two_passes.attack(x, domain, loss)
        for name, tensor in state_of(one_pass).items():
            torch.testing.assert_close(tensor, state_of(two_passes)[name])

    def test_without_scale_domains_move_by_their_share_of_the_batch(self) -> None:
        perturbation = build("universal", num_domains=2, ascent="gradient", step_size=1.0, epsilon=1e4, bounds=None)
        before, slopes = state_of(perturbation), noise(3)
        pass_once(perturbation, images(3), torch.tensor([0, 1, 1]), linear_loss(slopes))
        expected = torch.stack([slopes[0] / 3, (slopes[1] + slopes[2]) / 3])
        torch.testing.assert_close(moves(perturbation, before)["deltas"], expected)


class TestTypesAndShapes:
    @pytest.mark.parametrize("of_input", [torch.float32, torch.float64])
    @pytest.mark.parametrize("double", [False, True])
    @pytest.mark.parametrize("kind", KINDS)
    def test_the_perturbed_batch_has_the_inputs_type(self, kind: str, double: bool, of_input: torch.dtype) -> None:
        perturbation = build(kind, double=double)
        perturbed = perturbation.attack(images(2).to(of_input), None, lambda x: x.flatten(1).sum(1), steps=2)
        assert perturbed.dtype == of_input
        assert perturbed.isfinite().all()

    @pytest.mark.parametrize("shape", [(7,), (3, 6), (2, 3, 2, 3)])
    @pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in LOW_RANK])
    def test_inputs_need_not_be_images(self, kind: str, shape: tuple[int, ...]) -> None:
        perturbation = build(kind, shape=shape, num_domains=2, epsilon=0.4, bounds=None)
        x = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
        perturbed = perturbation.attack(x, torch.tensor([0, 1, 1]), lambda x: x.square().flatten(1).sum(1))
        assert perturbed.shape == x.shape
        assert 0 < length(perturbed - x, "l2", 1).max() <= 0.4 + 1e-5

    @pytest.mark.parametrize("kind", KINDS)
    def test_zero_steps_apply_the_current_perturbation(self, kind: str) -> None:
        perturbation = build(kind, num_domains=2)
        before = state_of(perturbation)
        x, domain = images(2), torch.tensor([1, 0])
        perturbed = perturbation.attack(x, domain, linear_loss(x), steps=0)
        assert all(not move.any() for move in moves(perturbation, before).values())
        if kind in ONE_PASS:
            assert torch.equal(perturbed, perturbation(x, domain))
        elif "zero" in kind or "subspace" in kind:
            assert torch.equal(perturbed, x)
        else:
            assert not torch.equal(perturbed, x)

    @pytest.mark.parametrize("kind", KINDS)
    def test_repr_shows_the_settings(self, kind: str) -> None:
        shown = repr(build(kind, num_domains=3, epsilon=0.25, norm="linf"))
        assert shown.startswith(KINDS[kind][0].__name__)
        for setting in ("(2, 5, 4)", "num_domains=3", "epsilon=0.25", "step_size=0.1", "norm='linf'"):
            assert setting in shown


class TestStarts:
    @pytest.mark.parametrize("norm", ["l2", "linf"])
    def test_random_points_are_in_the_ball(self, norm: Any) -> None:
        source = torch.Generator().manual_seed(0)
        points = draw_in_ball((2000, 3, 2), 0.3, norm, like=torch.empty(0, dtype=torch.float64), generator=source)
        assert points.dtype == torch.float64
        assert length(points, norm, 1).max() <= 0.3

    @pytest.mark.parametrize("dimensions", [1, 2, 6, 40])
    def test_their_volume_is_uniform_in_an_l2_ball(self, dimensions: int) -> None:
        source = torch.Generator().manual_seed(0)
        points = draw_in_ball((4000, dimensions), 0.3, "l2", like=torch.empty(0), generator=source)
        volume = (length(points, "l2", 1) / 0.3) ** dimensions
        quantiles = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
        torch.testing.assert_close(volume.quantile(quantiles), quantiles, rtol=0, atol=0.03)
        assert volume.mean().item() == pytest.approx(0.5, abs=0.02)
        assert points.mean(0).abs().max() < 0.02

    def test_their_entries_are_uniform_in_a_linf_ball(self) -> None:
        source = torch.Generator().manual_seed(0)
        points = draw_in_ball((4000, 3), 0.3, "linf", like=torch.empty(0), generator=source)
        quantiles = torch.tensor([0.1, 0.5, 0.9])
        for entries in points.T:
            torch.testing.assert_close(entries.quantile(quantiles), 0.6 * quantiles - 0.3, rtol=0, atol=0.02)

    def test_the_projected_start_is_projected_gaussian_noise(self) -> None:
        drawn = torch.randn(2, *SHAPE, generator=torch.Generator().manual_seed(5))
        perturbation = build("universal", seed=5, num_domains=2, epsilon=0.5)
        torch.testing.assert_close(
            perturbation.delta().detach(), 0.5 * drawn / length(drawn, "l2", 1).float().reshape(-1, 1, 1, 1)
        )

    def test_the_unprojected_start_is_scaled_noise(self) -> None:
        drawn = torch.randn(2, *SHAPE, generator=torch.Generator().manual_seed(5))
        perturbation = build("universal unprojected", seed=5, num_domains=2, epsilon=0.5)
        torch.testing.assert_close(perturbation.delta().detach(), drawn - 0.5)

    @pytest.mark.parametrize("over", ["sample", "domain"])
    def test_the_cube_start_fills_the_cube(self, over: str) -> None:
        x = torch.full((200, *SHAPE), 0.5)
        perturbation = build(f"sample-wise cube over {over}", epsilon=0.3)
        offset = perturbation.attack(x, None, linear_loss(x), steps=0) - x
        assert offset.abs().max() <= 0.3 + 1e-6
        quantiles = torch.tensor([0.1, 0.5, 0.9])
        torch.testing.assert_close(offset.flatten().quantile(quantiles), 0.6 * quantiles - 0.3, rtol=0, atol=0.02)

    def test_projection_finds_the_nearest_point(self) -> None:
        points = torch.tensor([[3.0, 4.0], [0.3, -0.4], [-2.0, 0.1]])
        near = torch.tensor([[0.6, 0.8], [0.3, -0.4], [-2.0 / 4.01**0.5, 0.1 / 4.01**0.5]])
        torch.testing.assert_close(project(points, 1.0, "l2"), near)
        expected = torch.tensor([[1.0, 1.0], [0.3, -0.4], [-1.0, 0.1]])
        torch.testing.assert_close(project(points, 1.0, "linf"), expected)


class LargestOutput(TorchDispatchMode):
    """Records the size of the largest tensor created inside, and the operators that ran."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0
        self.operators: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(made) if isinstance(leaf, Tensor)]
        self.entries = max(self.entries, *sizes, 0) if sizes else self.entries
        self.operators.add(str(func))
        return made


class TestMemory:
    batch, count, num_domains = 16, 8, 2

    @pytest.mark.parametrize("kind", [kind for kind in KEPT if "multiple" in kind])
    def test_no_tensor_contains_every_perturbation_for_every_sample(self, kind: str) -> None:
        perturbation = build(kind, count=self.count, num_domains=self.num_domains)
        domain = torch.arange(self.batch) % self.num_domains
        x, loss = images(self.batch), linear_loss(noise(self.batch))
        with LargestOutput() as watched:
            perturbation.attack(x, domain, loss, steps=2)
            if kind in ONE_PASS:
                pass_once(perturbation, x, domain, loss)
        if kind not in BY_GRADIENT:
            assert "aten._softmax_backward_data.default" in watched.operators
        assert watched.entries == max(self.batch, self.count * self.num_domains) * x[0].numel()

    def test_such_a_tensor_would_be_detected(self) -> None:
        deltas = torch.zeros(self.count, *SHAPE, requires_grad=True)
        with LargestOutput() as watched:
            (deltas * images(self.batch).unsqueeze(1)).sum().backward()
        assert watched.entries == self.batch * self.count * deltas[0].numel()


class TestPackage:
    def test_it_imports_only_torch_and_itself(self) -> None:
        package = Path(domainwise.perturbations.__file__).parent
        # The helper for lazy exports is all that it shares with the rest.
        files = [*sorted(package.glob("**/*.py")), package.parent / "lazy.py"]
        assert len(files) > 4
        found = set()
        for file in files:
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Import):
                    found |= {alias.name for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    found.add("." * node.level + (node.module or ""))
        allowed = {*sys.stdlib_module_names, "torch"}
        others = {name for name in found if name.split(".")[0] not in allowed}
        assert {name for name in others if not name.startswith("domainwise.perturbations.")} == {"domainwise.lazy"}

    def test_it_exports_its_kinds(self) -> None:
        kinds = {of_kind.__name__ for of_kind, _ in KINDS.values()}
        priors = {"Prior", "PixelPrior", "FilterPrior", "TonePrior", "SpectrumPrior", "FeaturePrior"}
        assert set(domainwise.perturbations.__all__) == kinds | {"Perturbation"} | priors
