"""Adversarial training against a perturbation: the update shared by AT, UAT, MAT and LDAT."""

import itertools
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms.base import (
    Algorithm,
    Batches,
    Measurements,
    Number,
    Objective,
    concatenate_batches,
    eval_mode,
    factory_kwargs,
)
from domainwise.errors import DomainwiseError
from domainwise.hparams import Hparams, Power, hparam
from domainwise.hparams.fields import largest
from domainwise.networks.stages import find_stages
from domainwise.perturbations import (
    FeaturePrior,
    FilterPrior,
    Perturbation,
    PixelPrior,
    Prior,
    SpectrumPrior,
    TonePrior,
)
from domainwise.perturbations.base import Ascent, steepest_ascent
from domainwise.perturbations.device import send_to
from domainwise.perturbations.radius import parse_radius

Model = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class AdversarialHparams(Hparams):
    """The hyperparameters that AT, UAT, MAT and LDAT have in common."""

    variant: Literal["standard", "paper", "released"] = hparam(
        "standard", help="Preset: standard, the paper's algorithm to the letter, or the authors' released code."
    )
    epsilon: float | str = hparam(
        0.1,
        help='Radius of the ball over the whole image in [0, 1], or "2/255 rms" per pixel.',
        search=Power(10, -1, 2),
    )
    step_size: float | None = hparam(0.1, help="Length of one ascent step (gamma in the paper); none: the radius.")
    warmup: float = hparam(0.0, help="Share of the steps over which the radius grows from 0 to epsilon.", low=0, high=1)
    norm: Literal["l2", "linf"] = hparam("l2", help="Norm of the ball: l2 or linf.")
    ascent: Literal["normalized", "gradient", "sign"] | None = hparam(
        None, help="Ascent direction: the normalized gradient, the raw gradient or its sign (default for linf)."
    )
    loss_cap: float | None = hparam(None, help="Samples with a loss above this do not drive the ascent; none: no cap.")
    schedule: Literal["two_pass", "simultaneous"] = hparam(
        "two_pass", help="two_pass attacks, then trains; simultaneous uses one backward pass for both."
    )
    order: Literal["joint", "sequential"] = hparam(
        "joint", help="joint: one network step for all domains; sequential: one step per domain, in turn."
    )
    objective: Literal["mean", "sum"] = hparam(
        "mean", help="Training loss: mean over all samples, or sum over domains of each domain's mean."
    )
    clean_weight: float = hparam(
        0.0, help="Weight of the loss on unperturbed images; 1 weighs both equally, 0 leaves them out.", low=0
    )
    clean_share: float = hparam(
        0.0, help="Share of each domain's batch that is not attacked.", low=0, high=0.99, is_newer=True
    )
    attack_share: float = hparam(
        1.0,
        help="Share of each domain's perturbed images that its perturbation is chosen on (uat, ldat).",
        above=0,
        high=1,
        is_newer=True,
    )
    prior: Literal["pixels", "filter", "tone", "spectrum", "features"] = hparam(
        "pixels",
        help="What may change: pixels, filter, tone, spectrum or features. Sets the defaults of epsilon and "
        "clean_share.",
        is_newer=True,
    )
    kernel_size: int = hparam(5, help="Height and width of the kernel with prior=filter, odd.", low=1, is_newer=True)
    feature_stages: int = hparam(
        2, help="Number of early stages that change with prior=features.", low=1, is_newer=True
    )
    adversary: Literal["gradient", "worst_of", "random"] = hparam(
        "gradient", help="Who chooses: gradient, the worst of several random draws, or chance.", is_newer=True
    )
    draws: int = hparam(3, help="Number of draws with adversary=worst_of.", low=1, is_newer=True)

    @classmethod
    def imply(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        prior, adversary = (values.get(name, cls.fields()[name].default) for name in ("prior", "adversary"))
        radius = RADII.get((prior, adversary), RADII.get((prior, "gradient")))
        own = {} if radius is None else {"epsilon": radius, "clean_share": CLEAN_SHARE}
        return {**own, **super().imply(values)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ascent is None:
            # Resolved here, so that the config of a run names the ascent it had.
            object.__setattr__(self, "ascent", self.default_ascent())
        try:
            radius = parse_radius(self.epsilon, (1,), self.norm)
        except ValueError as error:
            raise DomainwiseError(f"hyperparameter {error}") from None
        if radius > largest(radius):
            raise DomainwiseError(f"hyperparameter epsilon must be at most {largest(radius):g}, got {self.epsilon!r}")

    def default_ascent(self) -> Ascent:
        return steepest_ascent(self.norm)


# Default radii of priors other than pixels. Random filters as large as those of RandConv need the last one.
RADII: Mapping[tuple[str, str], float] = {
    ("filter", "gradient"): 0.5,
    ("filter", "worst_of"): 1.5,
    ("filter", "random"): 1.5,
    ("tone", "gradient"): 0.5,
    ("spectrum", "gradient"): 0.2,
    ("features", "gradient"): 0.5,
}
# Default share of clean images with these priors. It costs less on the training domains than none, and gains as much on
# unseen ones (docs/results/priors_calibration.jsonl).
CLEAN_SHARE = 0.25
# The defaults of the fields are the paper's; these replace them.
STANDARD: Mapping[str, Any] = {"step_size": None, "warmup": 0.5}
PAPER: Mapping[str, Any] = {"ascent": "gradient", "order": "sequential"}
RELEASED: Mapping[str, Any] = {"objective": "sum", "loss_cap": 2.0}


class NormalizedSpace:
    """Images normalized with ImageNet's statistics, in which the released code's AT and UAT perturb.

    A radius has a different meaning here: 0.1 corresponds to about 0.023 in pixels. Three channels only, as in the
    released code.
    """

    mean = (0.485, 0.456, 0.406)
    std = (0.229, 0.224, 0.225)

    def __init__(self, input_shape: tuple[int, ...]) -> None:
        if len(input_shape) != 3 or input_shape[0] != 3:
            raise ValueError(f"space='normalized' needs images with three channels, got shape {input_shape}")

    def bounds(self) -> tuple[Tensor, Tensor]:
        return self.normalize(torch.zeros(3, 1, 1)), self.normalize(torch.ones(3, 1, 1))

    def normalize(self, x: Tensor) -> Tensor:
        mean, std = self._statistics(x)
        return (x - mean) / std

    def wrap(self, model: Model) -> Model:
        """Return the model as a function of normalized images."""

        def apply_to_normalized(x: Tensor) -> Tensor:
            mean, std = self._statistics(x)
            return model(x * std + mean)

        return apply_to_normalized

    def _statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = (torch.tensor(values, dtype=x.dtype, device=x.device) for values in (self.mean, self.std))
        return mean.reshape(-1, 1, 1), std.reshape(-1, 1, 1)


class AdversarialAlgorithm(Algorithm):
    """Trains the network on images perturbed against it. Subclasses build the perturbation."""

    group = "adversarial"
    supports_sharpness = True
    hparams: AdversarialHparams
    perturbation: Perturbation
    # Where perturbations are added, if not to the images themselves.
    space: NormalizedSpace | None

    def setup(self) -> None:
        if self.input_shape is None:
            name = type(self).__name__
            raise ValueError(f"{name} needs the shape of an image; pass input_shape=(channels, height, width)")
        is_normalized = getattr(self.hparams, "space", "pixels") == "normalized"
        self.space = NormalizedSpace(self.input_shape) if is_normalized else None
        if is_normalized and self.hparams.prior != "pixels":
            raise ValueError("space='normalized' is for prior='pixels'")
        self.perturbation = self.build_perturbation(self.input_shape).trust_inputs_()
        if self.hparams.attack_share < 1 and not self.perturbation.is_kept:
            raise ValueError("attack_share needs a perturbation that all images of a domain share: uat or ldat")
        if self.hparams.schedule == "simultaneous":
            if self.sharpness is not None:
                raise ValueError("SAM and SAGM need schedule='two_pass'")
            if not self.perturbation.is_kept:
                raise ValueError(
                    "schedule='simultaneous' needs a perturbation that is kept between updates: uat, ldat, or mat with "
                    "weights='domain'; use schedule='two_pass'"
                )
            if self.hparams.adversary != "gradient":
                raise ValueError("schedule='simultaneous' follows gradients; it needs adversary='gradient'")
            if self.hparams.attack_share < 1:
                raise ValueError("schedule='simultaneous' has no attack of its own that attack_share could shorten")
            if self.hparams.loss_cap is not None:
                raise ValueError(
                    "schedule='simultaneous' has no inner loss to cap; set loss_cap=None or schedule='two_pass'"
                )

    @property
    def is_exact_over_ranks(self) -> bool:
        # Statistics of features are those of a rank's own batch.
        return self.hparams.prior != "features"

    @property
    def attack_steps(self) -> int:
        """Number of ascent steps per attack."""
        return 1

    @abstractmethod
    def build_perturbation(self, shape: tuple[int, ...]) -> Perturbation:
        """Return the method's perturbation for images of this shape."""

    def perturbation_settings(self) -> dict[str, Any]:
        """Return the arguments that all perturbations take."""
        names = ("epsilon", "step_size", "norm", "ascent", "loss_cap", "adversary", "draws")
        settings = {name: getattr(self.hparams, name) for name in names}
        if self.num_steps is not None:
            attacks_per_step = self.num_domains if self.hparams.order == "sequential" else 1
            settings["warmup_steps"] = round(self.hparams.warmup * self.num_steps * attacks_per_step)
        if self.space is not None:
            settings["bounds"] = self.space.bounds()
        return {**settings, "prior": self._build_prior(), "num_domains": self.num_domains, "generator": self.generator}

    def _build_prior(self) -> Prior:
        if self.hparams.prior == "filter":
            return FilterPrior(self.hparams.kernel_size)
        if self.hparams.prior == "features":
            return self._build_feature_prior()
        if self.hparams.prior == "tone":
            return TonePrior()
        return SpectrumPrior() if self.hparams.prior == "spectrum" else PixelPrior()

    def _build_feature_prior(self) -> FeaturePrior:
        assert self.input_shape is not None
        featurizer = getattr(self.network, "featurizer", self.network)
        with eval_mode(self.network):
            shapes = find_stages(featurizer, torch.zeros(3, *self.input_shape, **factory_kwargs(self.network)))
        # Their channels need places over which to have a mean and a standard deviation.
        layers = [name for name, shape in shapes.items() if len(shape) > 2][: self.hparams.feature_stages]
        if not layers:
            raise ValueError("prior='features' needs a network whose early layers have maps of features, (b, C, H, W)")
        return FeaturePrior(featurizer, layers)

    def update(self, batches: Batches) -> Measurements:
        hparams = self.hparams
        total: Number = 0.0
        count = 0
        for index, group in enumerate(self._groups(batches)):
            model: Model = self.network
            if self.space is not None:
                group, model = replace(group, x=self.space.normalize(group.x)), self.space.wrap(model)
            x_adv = self._perturb(model, group)
            size, domain = len(group.y), group.domain
            counts = F.one_hot(domain, self.num_domains).sum(0).to(x_adv.dtype)
            # Gradients contain the scale of the loss (fp16), which the step may change.
            scale = 1.0 if self.scaler is None else self.scaler.scale(torch.ones((), device=x_adv.device))
            measurements = self.minimize_(partial(self._compute_loss, index, model, group, x_adv, counts[domain]))
            total, count = total + measurements.numbers["loss"] * size, count + size
            if hparams.schedule == "simultaneous":
                perturbed = domain if group.perturbed is None else domain[group.perturbed]
                shares = F.one_hot(perturbed, self.num_domains).sum(0).to(x_adv.dtype)
                shares = shares / (size if hparams.objective == "mean" else counts.clamp(min=1))
                # Each domain ascends its own mean, of which the loss contains only a share. (An absent domain has share
                # 0 and no gradient; 0 times infinity is not a usable direction, so it does not move.)
                self.perturbation.ascend_((1 + hparams.clean_weight) / shares / scale)
        return Measurements(loss=total / count)

    def _perturb(self, model: Model, group: "_Group") -> Tensor:
        """Return the images of the network step; those that are not to be perturbed as they are."""
        x, y, domain, index = group.x, group.y, group.domain, group.perturbed
        some = index if group.driving is None else group.driving
        inputs, domains = (x, domain) if index is None else (x[index], domain[index])
        if self.hparams.schedule == "simultaneous":
            x_adv = self.perturbation(inputs, domains)
        elif some is index:
            losses = partial(_sample_losses, model, y if index is None else y[index])
            x_adv = self.perturbation.attack(inputs, domains, losses, self.attack_steps)
        else:
            self.perturbation.attack(x[some], domain[some], partial(_sample_losses, model, y[some]), self.attack_steps)
            with torch.no_grad():
                x_adv = self.perturbation(inputs, domains)
        return x_adv if index is None else x.index_copy(0, index, x_adv)

    def _compute_loss(self, index: int, model: Model, group: "_Group", x_adv: Tensor, counts: Tensor) -> Objective:
        """Return the loss of the network step of this index within the update.

        Args:
            counts: Number of samples in each sample's domain, (b,).
        """
        if self.hparams.schedule == "two_pass":
            # After the attack, and before each pass of SAM.
            self.seed_dropout_(index)
        with self.perturbation.applied(group.perturbed):
            sample_losses = _add_clean_losses(model, x_adv, group.x, group.y, self.hparams.clean_weight)
        mean = sample_losses.mean()
        return mean if self.hparams.objective == "mean" else (sample_losses / counts).sum(), {"loss": mean}

    def describe(self) -> dict[str, Any]:
        """Return the norm and leading singular values (mean over channels) of each domain's perturbation."""
        if not self.perturbation.is_kept:
            return {"perturbation": {}}
        with torch.no_grad():
            delta = self.perturbation.delta().float().cpu()
        description: dict[str, Any] = {"norm": delta.flatten(1).norm(dim=1).tolist()}
        if self.perturbation.is_in_pixels and delta.ndim == 4:
            description["singular_values"] = torch.linalg.svdvals(delta).mean(dim=1)[:, :5].tolist()
        return {"perturbation": description}

    def _groups(self, batches: Batches) -> Iterator["_Group"]:
        """Yield the samples of each network step: all domains at once, or one domain after the other."""
        x, y, domain = concatenate_batches(batches, self.num_domains)
        sizes = [len(labels) for _, labels in batches]
        if self.hparams.order == "joint":
            yield self._make_group(x, y, domain, sizes)
            return
        for index, (x, y) in enumerate(batches):
            if len(y):
                yield self._make_group(x, y, torch.full((len(y),), index, device=x.device), [len(y)])

    def _make_group(self, x: Tensor, y: Tensor, domain: Tensor, sizes: Sequence[int]) -> "_Group":
        """Choose the samples that are perturbed, the first of each domain, and those that this is chosen on.

        Args:
            sizes: Number of samples of each domain, one after the other.
        """
        hparams = self.hparams
        counts = [size - int(hparams.clean_share * size) for size in sizes]
        perturbed = driving = None
        if sum(counts) < len(y):
            perturbed = send_to(x.device, _list_first(sizes, counts))
        if hparams.attack_share < 1:
            some = [math.ceil(hparams.attack_share * count) for count in counts]
            driving = send_to(x.device, _list_first(sizes, some))
        return _Group(x, y, domain, perturbed, driving)


@dataclass(frozen=True)
class _Group:
    """The samples of one network step.

    Args:
        perturbed: Indices of those that are perturbed; None: all.
        driving: Indices of those that the perturbation is chosen on; None: all that are perturbed.
    """

    x: Tensor
    y: Tensor
    domain: Tensor
    perturbed: Tensor | None
    driving: Tensor | None


def _list_first(sizes: Sequence[int], counts: Sequence[int]) -> Tensor:
    """Return the indices of the first `counts` samples of each of several domains that follow one another."""
    starts = itertools.accumulate(sizes, initial=0)
    return torch.cat([torch.arange(start, start + count) for start, count in zip(starts, counts, strict=False)])


def _sample_losses(model: Model, y: Tensor, x: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")


def _add_clean_losses(model: Model, x_adv: Tensor, x: Tensor, y: Tensor, clean_weight: float) -> Tensor:
    """Return the loss of each perturbed sample, averaged with that of the clean one if it has weight; one forward."""
    if clean_weight == 0:
        return _sample_losses(model, y, x_adv)
    perturbed, clean = _sample_losses(model, y.repeat(2), torch.cat([x_adv, x])).chunk(2)
    return (perturbed + clean_weight * clean) / (1 + clean_weight)
