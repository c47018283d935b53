"""ADRMX: features that are the sum of an invariant part and a part of the domain (Demirel et al. 2023)."""

import copy
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms.base import (
    Algorithm,
    Batches,
    Measurements,
    concatenate_batches,
    count_classes,
    factory_kwargs,
    repeat_indices,
)
from domainwise.algorithms.dann import build_mlp
from domainwise.hparams import MNIST_DATASETS, PHOTO_DATASETS, Choice, DatasetSetting, Hparams, hparam
from domainwise.networks import Network
from domainwise.perturbations.device import send_to

_TEMPERATURE = 0.07
_EPS = 1e-5


@dataclass(frozen=True)
class ADRMXHparams(Hparams):
    BY_DATASET = (
        DatasetSetting("lr", 3e-5, Choice((2e-5, 3e-5, 4e-5, 5e-5)), PHOTO_DATASETS),
        DatasetSetting("lr", 3e-3, Choice((5e-4, 1e-3, 2e-3, 3e-3)), MNIST_DATASETS),
    )

    lr: float = hparam(3e-5, help="Learning rate of both Adams.", search=Choice((2e-5, 3e-5, 4e-5, 5e-5)))
    weight_decay: float = hparam(0.0, help="Weight decay of the network's Adam.", search=Choice((0.0,)))
    adversary_weight: float = hparam(0.75, help="Weight of the discriminator's loss in the network's loss.", low=0)
    domain_weight: float = hparam(1.0, help="Weight of the domain classifier's loss.", low=0)
    contrastive_weight: float = hparam(1.0, help="Weight of the two contrastive losses.", low=0)
    remix_weight: float = hparam(1.0, help="Weight of the loss of remixed features.", low=0)
    discriminator_steps: int = hparam(2, help="Discriminator updates per network update.", low=1)
    beta1: float = hparam(0.5, help="beta1 of both Adams; their beta2 is 0.9.", low=0)
    width: int = hparam(256, help="Hidden width of the discriminator.", low=1)
    depth: int = hparam(
        9, help="Linear layers of the discriminator.", search=Choice((8, 9, 10)), key="mlp_depth", low=2
    )
    variant: Literal["paper", "domainbed"] = hparam(
        "paper",
        help="Remixed samples: of one class and two domains (paper), or any of the first in the batch (domainbed).",
    )


class ADRMX(Algorithm):
    """Additive disentanglement: an invariant part of the features plus a domain part, remixed between samples."""

    group = "augmentation"
    source = "Demirel et al. 2023"
    min_domains = 2
    needs_features = True
    Hparams = ADRMXHparams
    hparams: ADRMXHparams
    network: Network

    def setup(self) -> None:
        hparams, given = self.hparams, self.network
        size, self.num_classes, kwargs = given.num_features, count_classes(given), factory_kwargs(given)
        sizes = [size, *[hparams.width] * (hparams.depth - 1), self.num_domains]
        self.domain_featurizer = copy.deepcopy(given.featurizer)
        self.discriminator = build_mlp(sizes).to(**kwargs)
        head, self.invariant_classifier, self.domain_classifier = (
            build_mlp([size, max(size // 2, 1), max(size // 4, 1), outputs]).to(**kwargs)
            for outputs in (self.num_classes, self.num_classes, self.num_domains)
        )
        self.network = Network(given.featurizer, head, input_shape=self.input_shape or (), num_features=size)
        betas = (hparams.beta1, 0.9)
        parts = (self.network, self.domain_featurizer, self.invariant_classifier, self.domain_classifier)
        self.optimizer = self.build_optimizer((each for part in parts for each in part.parameters()), betas=betas)
        self.discriminator_optimizer = self.build_optimizer(
            self.discriminator.parameters(), weight_decay=0.0, betas=betas
        )

    def update(self, batches: Batches) -> Measurements:
        x, y, domain = concatenate_batches(batches, self.num_domains)
        hparams = self.hparams
        domains = repeat_indices([len(labels) for _, labels in batches]).tolist()
        self.updates += 1
        is_discriminator_turn = self.updates % (1 + hparams.discriminator_steps) < hparams.discriminator_steps
        with torch.set_grad_enabled(not is_discriminator_turn):
            features, domain_features = self.network.featurizer(x), self.domain_featurizer(x)
            loss = F.cross_entropy(self.network.classifier(features), y)
        invariant_features = features - domain_features
        discriminator_loss = F.cross_entropy(self.discriminator(invariant_features), domain)
        if is_discriminator_turn:
            self.descend_(discriminator_loss, self.discriminator_optimizer)
        else:
            contrastive_loss = compute_contrastive_loss(features, y) + compute_contrastive_loss(invariant_features, y)
            self.descend_(
                loss
                + F.cross_entropy(self.invariant_classifier(invariant_features), y)
                + hparams.domain_weight * F.cross_entropy(self.domain_classifier(domain_features), domain)
                + hparams.remix_weight * self._compute_remix_loss(invariant_features, domain_features, y, domains)
                + hparams.contrastive_weight * contrastive_loss
                - hparams.adversary_weight * discriminator_loss
            )
        return Measurements(loss=loss, discriminator_loss=discriminator_loss)

    def _compute_remix_loss(self, invariant: Tensor, specific: Tensor, y: Tensor, domains: list[int]) -> Tensor:
        """Return the loss of one sample's invariant features with another's domain features, over all classes."""
        pairs = self._draw_pairs(y.tolist(), domains)
        if not pairs:
            return invariant.new_zeros(())
        first, second = send_to(y.device, torch.tensor(pairs)).T
        logits = self.network.classifier(invariant[first] + specific[second])
        return F.cross_entropy(logits, y[first], reduction="sum") / self.num_classes

    def _draw_pairs(self, labels: list[int], domains: list[int]) -> list[tuple[int, int]]:
        """Return the indices of at most one pair per class."""
        if self.hparams.variant == "domainbed":
            sizes = [labels.count(label) for label in sorted(set(labels))]
            draws = [torch.randperm(size, generator=self.generator).tolist() for size in sizes if size > 1]
            return [(first, second) for first, second, *_ in draws]
        first_of_class: dict[int, int] = {}
        pairs: dict[int, tuple[int, int]] = {}
        for index in torch.randperm(len(labels), generator=self.generator).tolist():
            first = first_of_class.setdefault(labels[index], index)
            if domains[index] != domains[first]:
                pairs.setdefault(labels[index], (first, index))
        return list(pairs.values())


def compute_contrastive_loss(features: Tensor, y: Tensor) -> Tensor:
    """Return how unlike the features (b, d) of a class are, relative to those of all others.

    Samples without another of their class are left out. The mean is over one more than there are.
    """
    # The exponentials would overflow in half precision.
    with torch.autocast(features.device.type, enabled=False):
        units = F.normalize(features.to(torch.promote_types(features.dtype, torch.float32)))
        is_other = ~torch.eye(len(y), dtype=torch.bool, device=y.device)
        is_positive = (y[:, None] == y) & is_other
        # The weight 0.5, the same within and across domains, matters only relative to the small constants.
        closeness = 0.5 * (units @ units.T / _TEMPERATURE).exp() * is_other
        shares = closeness / (closeness.sum(1, keepdim=True) + _EPS)
        counts = is_positive.sum(1)
        sample_losses = -((shares + _EPS).log() * is_positive).sum(1) / counts.clamp(min=1)
        return sample_losses.sum() / (1 + (counts > 0).sum())
