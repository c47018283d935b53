"""What priors make of an image, and that sharing, adversaries and balls work on their coordinates."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.perturbations import (
    FeaturePrior,
    FilterPrior,
    LowRankPerturbation,
    MultiplePerturbation,
    Perturbation,
    PixelPrior,
    Prior,
    SampleWisePerturbation,
    SpectrumPrior,
    TonePrior,
    UniversalPerturbation,
)
from domainwise.perturbations.base import compute_norm

SHAPE = (3, 9, 8)
IMAGE_PRIORS: dict[str, Callable[[], Prior]] = {
    "pixels": PixelPrior,
    "filter 1": lambda: FilterPrior(1),
    "filter 3": lambda: FilterPrior(3),
    "tone": TonePrior,
    "spectrum": SpectrumPrior,
}
PRIORS = {**IMAGE_PRIORS, "features": lambda: FeaturePrior(make_network(), ["0", "3"])}
SHARING: dict[str, tuple[type[Perturbation], dict[str, Any]]] = {
    "sample": (SampleWisePerturbation, {}),
    "domain": (UniversalPerturbation, {}),
    "assigned": (MultiplePerturbation, {"count": 2}),
    "low rank": (LowRankPerturbation, {"rank": 1}),
}
ADVERSARIES = ("gradient", "worst_of", "random")
LOW_RANK_PRIORS = ("pixels", "spectrum")
COMBINATIONS = [
    (prior, sharing, adversary)
    for prior, sharing, adversary in itertools.product(PRIORS, SHARING, ADVERSARIES)
    if sharing != "low rank" or prior in LOW_RANK_PRIORS
]
DOMAIN = torch.tensor([0, 1, 1, 0, 1, 0])


def make_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 5, 3), nn.Flatten(), nn.Linear(100, 2)
    )


def make_images(count: int = 6, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def make_points(prior: Prior, count: int = 6, seed: int = 1) -> Tensor:
    shape = (count, *prior.point_shape(SHAPE))
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def build(prior: Prior, sharing: str, adversary: str = "gradient", seed: int = 0, **settings: Any) -> Any:
    kind, options = SHARING[sharing]
    values: dict[str, Any] = {"num_domains": 2, "epsilon": 0.3, **options, **settings}
    generator = torch.Generator().manual_seed(seed)
    return kind(SHAPE, prior=prior, adversary=adversary, generator=generator, **values)  # type: ignore[arg-type]


def wavy_losses(x: Tensor) -> Tensor:
    slopes = make_images(len(x), x.dtype, seed=5) - 0.5
    return (slopes * x + torch.sin(3 * x) / 2).flatten(1).sum(1)


def losses_of(prior: Prior) -> Callable[[Tensor], Tensor]:
    """A loss that sees what the prior changes."""
    if not isinstance(prior, FeaturePrior):
        return wavy_losses
    y = torch.tensor([0, 1, 0, 1, 1, 0])
    return lambda x: F.cross_entropy(prior.model(x), y[: len(x)], reduction="none")


def apply_filter_naively(image: Tensor, points: Tensor, size: int) -> Tensor:
    result = image.clone()
    half = size // 2
    count, channels, height, width = image.shape
    for b, out, inner, i, j in itertools.product(*map(range, (count, channels, channels, size, size))):
        centred = image[b, inner] - image[b, inner].mean()
        weight = points[b, out, (inner * size + i) * size + j]
        for row, column in itertools.product(range(height), range(width)):
            y, x = row + i - half, column + j - half
            if 0 <= y < height and 0 <= x < width:
                result[b, out, row, column] += weight * centred[y, x]
    return result + 0.25 * points[:, :, -1, None, None]


def apply_tone_naively(image: Tensor, points: Tensor) -> Tensor:
    mean = image.flatten(2).mean(2)[..., None, None]
    limit = math.log(4)
    contrast = torch.exp(limit * torch.tanh(points[:, 0] / limit))[..., None, None]
    return mean + (image - mean) * contrast + 0.25 * points[:, 1, :, None, None]


def apply_spectrum_naively(image: Tensor, points: Tensor) -> Tensor:
    """Scale the waves of the discrete Fourier transform one by one."""
    height, width = image.shape[2:]
    top, right, limit = height // 4, width // 4, math.log(4)
    rows = torch.arange(height, dtype=torch.float64)
    columns = torch.arange(width, dtype=torch.float64)
    result = image.clone()
    for ky, kx in itertools.product(range(-top, top + 1), range(-right, right + 1)):
        if kx < 0:
            continue
        angle = 2 * math.pi * (ky * rows[:, None] / height + kx * columns / width)
        wave = torch.polar(torch.ones_like(angle), angle)
        centred = image - image.mean((2, 3), keepdim=True)
        amplitude = (centred * wave.conj()).sum((2, 3), keepdim=True) / (height * width)
        gain = torch.exp(limit * torch.tanh(points[:, :, ky % (2 * top + 1), kx] / limit))[..., None, None] - 1
        # Waves with kx = 0 come as a pair of ky and -ky, of which this is one; the others stand for both of a pair.
        result = result + (1 if kx == 0 else 2) * (gain * amplitude * wave).real
    return result


class TestImages:
    @pytest.mark.parametrize(
        ("prior", "naive"),
        [
            (FilterPrior(1), lambda x, points: apply_filter_naively(x, points, 1)),
            (FilterPrior(3), lambda x, points: apply_filter_naively(x, points, 3)),
            (TonePrior(), apply_tone_naively),
            (SpectrumPrior(), apply_spectrum_naively),
        ],
        ids=["filter 1", "filter 3", "tone", "spectrum"],
    )
    def test_images_and_gradients_are_those_of_a_naive_implementation(self, prior: Prior, naive: Any) -> None:
        image, points = make_images(2, torch.float64), make_points(prior, 2)
        weights = make_images(2, torch.float64, seed=3)
        fast, slow = points.clone().requires_grad_(), points.clone().requires_grad_()
        result, expected = prior.apply(image, fast), naive(image, slow)
        torch.testing.assert_close(result, expected)
        torch.testing.assert_close(
            torch.autograd.grad((result * weights).sum(), fast), torch.autograd.grad((expected * weights).sum(), slow)
        )
        assert (result - image).abs().amax() > 0.1

    @pytest.mark.parametrize("name", IMAGE_PRIORS)
    def test_the_zero_point_changes_nothing_to_the_bit(self, name: str) -> None:
        prior, image = IMAGE_PRIORS[name](), make_images()
        assert torch.equal(prior.apply(image, torch.zeros(6, *prior.point_shape(SHAPE))), image)

    @pytest.mark.parametrize("name", ["filter 3", "spectrum"])
    def test_brightness_stays_without_a_shift(self, name: str) -> None:
        prior, image = IMAGE_PRIORS[name](), make_images(dtype=torch.float64)
        points = make_points(prior)
        if name == "spectrum":
            means = prior.apply(image, points).mean((2, 3))
            torch.testing.assert_close(means, image.mean((2, 3)))
        else:
            points[:, :, -1] = 0
            constant = torch.full_like(image, 0.3)
            torch.testing.assert_close(prior.apply(constant, points), constant)

    def test_a_filter_of_radius_one_can_remove_all_contrast(self) -> None:
        prior = FilterPrior(3)
        identity = torch.zeros(1, 3, 3, 3, 3)
        identity[0, :, :, 1, 1] = torch.eye(3)
        points = torch.cat([-identity.flatten(3).flatten(2), torch.zeros(1, 3, 1)], dim=2)
        assert points.norm().item() == pytest.approx(prior.unit((3, 28), "l2"))
        flat = prior.apply(make_images(1), points)
        assert flat.std((2, 3)).amax() < 1e-6

    @pytest.mark.parametrize("channels", [1, 4])
    @pytest.mark.parametrize("name", IMAGE_PRIORS)
    def test_images_with_other_numbers_of_channels(self, name: str, channels: int) -> None:
        perturbation = UniversalPerturbation((channels, 9, 8), prior=IMAGE_PRIORS[name](), epsilon=0.3)
        x = torch.rand(3, channels, 9, 8)
        assert perturbation.attack(x, 0, lambda x: x.flatten(1).sum(1)).shape == x.shape

    def test_random_filters_are_those_of_randconv(self) -> None:
        prior = FilterPrior(5)
        source = torch.Generator().manual_seed(0)
        noise = torch.randn(3, *prior.point_shape(SHAPE), generator=source)
        uniform = torch.tensor([[0.1, 0.5], [0.5, 0.25], [0.9, 1.0]])
        points = prior.draw(noise, uniform)
        image = make_images(3)
        centred = image - image.mean((2, 3), keepdim=True)
        for index, (size, share) in enumerate([(1, 0.5), (3, 0.25), (5, 1.0)]):
            edge = (5 - size) // 2
            kernel = noise[index, :, :-1].reshape(3, 3, 5, 5)[:, :, edge : 5 - edge, edge : 5 - edge]
            filtered = F.conv2d(centred[index], kernel / (size * 3**0.5), padding=size // 2)
            mixed = (1 - share) * centred[index] + share * filtered + image[index].mean((1, 2), keepdim=True)
            torch.testing.assert_close(prior.apply(image, points)[index], mixed)


class TestAttacks:
    @pytest.mark.parametrize(("name", "sharing", "adversary"), COMBINATIONS)
    def test_points_stay_in_the_ball(self, name: str, sharing: str, adversary: str) -> None:
        prior = PRIORS[name]()
        perturbation = build(prior, sharing, adversary, warmup_steps=3)
        loss_fn, seen = losses_of(prior), []
        prior.apply, apply = lambda image, points: seen.append(points) or apply(image, points), prior.apply  # type: ignore[method-assign]
        for step, epsilon in enumerate((0.3, 0.3, 0.1, 0.5)):
            perturbation.epsilon = epsilon
            radius = perturbation.radius
            seen.clear()
            x_adv = perturbation.attack(make_images(seed=step), DOMAIN, loss_fn, steps=2)
            points = torch.cat(seen) / perturbation._unit
            assert compute_norm(points, "l2").amax() <= radius * (1 + 1e-5)
            assert points.abs().amax() > 0
            assert x_adv.amin() >= 0
            assert x_adv.amax() <= 1
            perturbation.load_state_dict(perturbation.state_dict())

    @pytest.mark.parametrize(("name", "sharing", "adversary"), COMBINATIONS)
    def test_radius_zero_changes_nothing_to_the_bit(self, name: str, sharing: str, adversary: str) -> None:
        prior = PRIORS[name]()
        perturbation = build(prior, sharing, adversary, epsilon=0.0)
        x, loss_fn = make_images(), losses_of(prior)
        x_adv = perturbation.attack(x, DOMAIN, loss_fn)
        assert torch.equal(x_adv, x)
        with torch.no_grad():
            clean = loss_fn(x)
            with perturbation.applied():
                assert torch.equal(loss_fn(x_adv), clean)

    @pytest.mark.parametrize(("name", "sharing", "adversary"), COMBINATIONS)
    def test_resuming_is_exact(self, name: str, sharing: str, adversary: str) -> None:
        prior = PRIORS[name]()
        loss_fn = losses_of(prior)
        first = build(prior, sharing, adversary, warmup_steps=3)
        for step in range(2):
            first.attack(make_images(seed=step), DOMAIN, loss_fn)
        second = build(prior, sharing, adversary, seed=9, warmup_steps=3)
        second.load_state_dict(first.state_dict())
        results = []
        for perturbation in (first, second):
            for step in range(2, 4):
                x_adv = perturbation.attack(make_images(seed=step), DOMAIN, loss_fn)
            with perturbation.applied():
                results.append((x_adv, loss_fn(x_adv)))
        torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)

    @pytest.mark.parametrize(("name", "sharing"), [each[:2] for each in COMBINATIONS if each[2] == "gradient"])
    def test_steps_raise_the_loss_more_than_random_points(self, name: str, sharing: str) -> None:
        gains = {}
        for adversary in ADVERSARIES:
            prior = PRIORS[name]()
            perturbation, loss_fn = build(prior, sharing, adversary, epsilon=0.1), losses_of(prior)
            x = make_images()
            for _ in range(5):
                x_adv = perturbation.attack(x, DOMAIN, loss_fn, steps=3)
            with torch.no_grad(), perturbation.applied():
                gains[adversary] = loss_fn(x_adv).mean().item()
        assert gains["gradient"] > gains["random"]
        assert gains["gradient"] > gains["worst_of"]

    @pytest.mark.parametrize("name", PRIORS)
    def test_the_worst_of_several_draws_has_the_largest_loss(self, name: str) -> None:
        prior = PRIORS[name]()
        loss_fn, losses = losses_of(prior), []

        def record(x: Tensor) -> Tensor:
            assert not torch.is_grad_enabled()
            losses.append(loss_fn(x))
            return losses[-1]

        if isinstance(prior, FeaturePrior):
            # The draws of other samples would change statistics over the batch: of batch norm, and of a second layer.
            prior = FeaturePrior(prior.model.eval(), ["0"])
            loss_fn = losses_of(prior)
        for sharing, draws in (("sample", 4), ("domain", 4), ("assigned", 2)):
            perturbation = build(prior, sharing, "worst_of", draws=4)
            losses.clear()
            x_adv = perturbation.attack(make_images(), DOMAIN, record)
            assert len(losses) == draws
            with torch.no_grad(), perturbation.applied():
                chosen = loss_fn(x_adv)
            drawn = torch.stack(losses)
            if sharing == "domain":
                chosen = torch.stack([chosen[index == DOMAIN].mean() for index in range(2)])
                drawn = torch.stack([drawn[:, index == DOMAIN].mean(1) for index in range(2)], dim=1)
            torch.testing.assert_close(chosen, drawn.amax(0))
            assert drawn.std(0).amin() > 0

    @pytest.mark.parametrize("name", PRIORS)
    def test_random_points_see_no_loss(self, name: str) -> None:
        prior = PRIORS[name]()

        def refuse(x: Tensor) -> Tensor:
            raise AssertionError

        for sharing in ("sample", "domain", "assigned"):
            build(prior, sharing, "random").attack(make_images(), DOMAIN, refuse)

    def test_random_points_of_a_domain_stay_and_those_of_samples_change(self) -> None:
        x = make_images()
        domain, sample = build(TonePrior(), "domain", "random"), build(TonePrior(), "sample", "random")
        assert torch.equal(domain.attack(x, DOMAIN, wavy_losses), domain.attack(x, DOMAIN, wavy_losses))
        assert not torch.equal(sample.attack(x, DOMAIN, wavy_losses), sample.attack(x, DOMAIN, wavy_losses))

    def test_random_points_of_a_domain_grow_during_the_warm_up(self) -> None:
        perturbation = build(TonePrior(), "domain", "random", warmup_steps=4)
        end = build(TonePrior(), "domain", "random")
        for step in range(6):
            perturbation.attack(make_images(), DOMAIN, wavy_losses)
            torch.testing.assert_close(perturbation.delta(), end.delta() * min(1, (step + 1) / 4))

    def test_a_domains_draw_is_low_rank_if_its_perturbation_is(self) -> None:
        perturbation = build(SpectrumPrior(), "low rank", "worst_of")
        perturbation.attack(make_images(), DOMAIN, wavy_losses)
        assert torch.linalg.matrix_rank(perturbation.delta()).tolist() == [[1] * 3] * 2

    @pytest.mark.parametrize("sharing", ["domain", "assigned"])
    def test_one_pass_of_a_filter(self, sharing: str) -> None:
        weights = {"weights": "domain"} if sharing == "assigned" else {}
        perturbation = build(FilterPrior(3), sharing, **weights)
        x = make_images()
        before = wavy_losses(perturbation(x, DOMAIN)).mean()
        before.backward()
        perturbation.ascend_()
        assert wavy_losses(perturbation(x, DOMAIN)).mean() > before

    @pytest.mark.parametrize("name", IMAGE_PRIORS)
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
    def test_images_keep_their_type(self, name: str, dtype: torch.dtype) -> None:
        for sharing in ("sample", "domain"):
            for adversary in ADVERSARIES:
                perturbation = build(IMAGE_PRIORS[name](), sharing, adversary)
                assert perturbation.attack(make_images().to(dtype), DOMAIN, wavy_losses).dtype == dtype

    def test_normalized_inputs_are_perturbed_as_images(self) -> None:
        mean, std = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.3, 0.4])
        plain = build(FilterPrior(3), "domain")
        normalized = build(FilterPrior(3), "domain", mean=mean.tolist(), std=std.tolist())
        mean, std = mean.reshape(3, 1, 1), std.reshape(3, 1, 1)
        x = make_images()
        expected = plain.attack(x, DOMAIN, wavy_losses)
        result = normalized.attack((x - mean) / std, DOMAIN, lambda x: wavy_losses(x * std + mean))
        torch.testing.assert_close(result * std + mean, expected)


class TestFeatures:
    def test_statistics_change_by_the_standard_deviation_over_the_batch(self) -> None:
        network = make_network()
        prior = FeaturePrior(network, ["3"])
        perturbation = build(prior, "domain")
        x = make_images()
        outputs = {}
        network[3].register_forward_hook(lambda module, inputs, output: outputs.update(clean=output))
        network(x)
        before = outputs["clean"].flatten(2)
        perturbation.attack(x, DOMAIN, losses_of(prior))
        network[4].register_forward_pre_hook(lambda module, inputs: outputs.update(changed=inputs[0]))
        with perturbation.applied():
            network(x)
        after = outputs["changed"].flatten(2)
        points = perturbation._unit * perturbation.delta()[DOMAIN]
        mean, std = before.mean(2), before.var(2, correction=0).add(1e-6).sqrt()
        torch.testing.assert_close(after.mean(2), mean + points[:, 0] * mean.std(0, correction=0))
        scaled = (std + points[:, 1] * std.std(0, correction=0)).abs()
        torch.testing.assert_close(after.std(2, correction=0), scaled, rtol=1e-3, atol=1e-4)

    @pytest.mark.parametrize("adversary", ADVERSARIES)
    def test_no_hook_is_left(self, adversary: str) -> None:
        prior = FeaturePrior(make_network(), ["0", "3"])
        perturbation = build(prior, "domain", adversary)
        perturbation.attack(make_images(), DOMAIN, losses_of(prior))
        with perturbation.applied():
            prior.model(make_images())
        with pytest.raises(ZeroDivisionError), perturbation.applied():
            raise ZeroDivisionError
        if adversary != "random":
            with pytest.raises(ZeroDivisionError):
                perturbation.attack(make_images(), DOMAIN, lambda x: 1 / 0)  # type: ignore[arg-type,return-value]
        assert not any(module._forward_hooks for module in prior.model.modules())

    def test_the_network_keeps_its_mode_and_its_buffers(self) -> None:
        network = make_network()
        network[1].eval()
        buffers = {name: value.clone() for name, value in network.named_buffers()}
        perturbation = build(FeaturePrior(network, ["1"]), "sample")
        perturbation.attack(make_images(), DOMAIN, lambda x: network(x)[:, 0])
        assert network.training
        assert not network[1].training
        assert all(torch.equal(value, buffers[name]) for name, value in network.named_buffers())

    def test_samples_after_those_of_the_attack_stay_as_they_are(self) -> None:
        prior = FeaturePrior(make_network().eval(), ["0"])
        perturbation = build(prior, "domain")
        x = make_images()
        perturbation.attack(x, DOMAIN, losses_of(prior))
        with torch.no_grad():
            clean = prior.model(x)
            with perturbation.applied():
                both = prior.model(torch.cat([x, x]))
        torch.testing.assert_close(both[6:], clean)
        assert not torch.allclose(both[:6], clean)

    def test_samples_of_the_attack_may_be_anywhere_in_the_batch(self) -> None:
        prior = FeaturePrior(make_network().eval(), ["0"])
        perturbation = build(prior, "domain")
        x, index = make_images(), torch.tensor([4, 0, 2])
        perturbation.attack(x[index], DOMAIN[index], losses_of(prior))
        with torch.no_grad():
            clean = prior.model(x)
            with perturbation.applied():
                alone = prior.model(x[index])
            with perturbation.applied(index):
                outputs = prior.model(x)
        torch.testing.assert_close(outputs[index], alone)
        torch.testing.assert_close(outputs[[1, 3, 5]], clean[[1, 3, 5]])
        assert not torch.allclose(outputs[index], clean[index])

    def test_a_compiled_network_is_perturbed(self) -> None:
        network = make_network()
        compiled = torch.compile(network, backend="eager")
        prior = FeaturePrior(network, ["0"])
        plain, fast = build(prior, "domain"), build(FeaturePrior(network, ["0"]), "domain")
        x, y = make_images(), torch.tensor([0, 1, 0, 1, 1, 0])
        compiled(x)
        plain.attack(x, DOMAIN, lambda x: F.cross_entropy(network(x), y, reduction="none"))
        fast.attack(x, DOMAIN, lambda x: F.cross_entropy(compiled(x), y, reduction="none"))
        assert torch.equal(plain.delta(), fast.delta())
        with torch.no_grad(), fast.applied():
            assert torch.equal(compiled(x), network(x))
        assert not torch.equal(compiled(x), self.call_applied(fast, compiled, x))

    def call_applied(self, perturbation: Perturbation, model: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        with perturbation.applied():
            return model(x)

    def test_tokens(self) -> None:
        network = nn.Sequential(nn.Flatten(2), nn.Linear(72, 5), nn.LayerNorm(5), nn.Flatten(), nn.Linear(15, 2))
        prior = FeaturePrior(network, ["1"])
        assert prior.point_shape(SHAPE) == (2, 5)
        build(prior, "sample").attack(make_images(), DOMAIN, losses_of(prior))


class TestErrors:
    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: FilterPrior(4), "size must be odd"),
            (lambda: FilterPrior(0), "size must be at least 1"),
            (lambda: FilterPrior(3.5), "size must be an integer"),  # type: ignore[arg-type]
            (lambda: FeaturePrior(make_network(), ["layer9"]), "layer 'layer9' is not a module of the model"),
            (lambda: FeaturePrior(make_network(), []), "layers must be names"),
            (lambda: FeaturePrior(make_network(), "0"), "layers must be names"),
            (lambda: FeaturePrior(make_network, ["0"]), "model must be an nn.Module"),  # type: ignore[arg-type]
            (lambda: build(FeaturePrior(make_network(), ["5"]), "domain"), "layer '5' must have outputs"),
            (lambda: build(TonePrior(), "domain", epsilon="2/255 rms"), "epsilon must be a number without unit"),
            (lambda: build(TonePrior(), "low rank"), "a rank needs a prior that changes an image"),
            (lambda: build(TonePrior(), "sample", rank=2), "a rank needs a prior that changes an image"),
            (lambda: build(TonePrior(), "assigned", "random", weights="soft"), "use weights='assigned'"),
            (lambda: build(PixelPrior(), "low rank", "worst_of", solver="factors"), "use solver='projected'"),
            (lambda: build("filter", "domain"), "prior must be an object such as FilterPrior"),  # type: ignore[arg-type]
            (lambda: build(TonePrior(), "domain", "best"), "adversary must be one of"),
            (lambda: build(TonePrior(), "domain", draws=0), "draws must be at least 1"),
            (lambda: UniversalPerturbation((5, 4), prior=FilterPrior(3), epsilon=1), "needs images of shape"),
            (lambda: UniversalPerturbation((3, 3, 3), prior=SpectrumPrior(), epsilon=1), "at least 4 x 4"),
        ],
    )
    def test_what_is_wrong_is_said(self, make: Callable[[], object], message: str) -> None:
        with pytest.raises((ValueError, TypeError), match=message):
            make()

    def test_a_layer_that_is_not_called(self) -> None:
        network = make_network()
        network[4].spare = nn.Conv2d(1, 1, 1)
        with pytest.raises(ValueError, match=r"layer '4\.spare' is not called"):
            build(FeaturePrior(network, ["4.spare"]), "domain")

    def test_a_smaller_batch_than_that_of_the_attack(self) -> None:
        prior = FeaturePrior(make_network(), ["0"])
        perturbation = build(prior, "domain")
        with pytest.raises(RuntimeError, match="follows attack"), perturbation.applied():
            pass
        perturbation.attack(make_images(), DOMAIN, losses_of(prior))
        with pytest.raises(ValueError, match="got a batch of 2 samples"), perturbation.applied():
            prior.model(make_images(2))

    def test_one_pass_needs_gradients(self) -> None:
        perturbation = build(TonePrior(), "domain", "worst_of")
        with pytest.raises(RuntimeError, match="needs attack"):
            perturbation.ascend_()
