"""SagNet: classify by content, not by style (Nam et al. 2019)."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms.base import Algorithm, Batches, Measurements, build_head, concatenate_batches
from domainwise.hparams import Hparams, Power, hparam
from domainwise.networks import Network
from domainwise.perturbations.device import send_to

_EPS = 1e-5


@dataclass(frozen=True)
class SagNetHparams(Hparams):
    adversarial_weight: float = hparam(
        0.1,
        help="Weight of the step that makes the style head uncertain (lambda_adv).",
        search=Power(10, -2, 1),
        key="sag_w_adv",
        low=0,
    )


class SagNet(Algorithm):
    """Style-agnostic network: trained with the styles of other images and against a head that sees only style."""

    group = "augmentation"
    source = "Nam et al. 2019"
    Hparams = SagNetHparams
    hparams: SagNetHparams
    network: Network
    needs_features = True

    def setup(self) -> None:
        self.style_head = build_head(self.network, "SagNet", self.network.num_features)
        self.optimizer = self.build_optimizer(self.network.featurizer.parameters())
        self.content_optimizer = self.build_optimizer(self.network.classifier.parameters())
        self.style_optimizer = self.build_optimizer(self.style_head.parameters())

    def update(self, batches: Batches) -> Measurements:
        x, y, _ = concatenate_batches(batches, self.num_domains)
        network = self.network

        content_loss = F.cross_entropy(network.classifier(self._randomize_style(network.featurizer(x))), y)
        self.descend_(content_loss, self.optimizer, self.content_optimizer)

        with torch.no_grad():  # only the style head is trained here
            features = network.featurizer(x)
        style_loss = F.cross_entropy(self.style_head(self._randomize_content(features)), y)
        self.descend_(style_loss, self.style_optimizer)

        style_logits = self.style_head(self._randomize_content(network.featurizer(x)))
        adversarial_loss = -style_logits.log_softmax(1).mean()
        self.descend_(self.hparams.adversarial_weight * adversarial_loss)
        return Measurements(loss=content_loss, style_loss=style_loss, adversarial_loss=adversarial_loss)

    def _randomize_style(self, features: Tensor) -> Tensor:
        """Interpolate the mean and variance of each feature vector towards those of another sample."""
        content, mean, variance = _split_content_and_style(features)
        weight = send_to(features.device, torch.rand(len(features), 1, generator=self.generator), features.dtype)
        other = self._draw_permutation(features)
        mean = weight * mean + (1 - weight) * mean[other]
        variance = weight * variance + (1 - weight) * variance[other]
        return content * (variance + _EPS).sqrt() + mean

    def _randomize_content(self, features: Tensor) -> Tensor:
        """Apply the mean and variance of each sample to the normalized, detached features of another."""
        content, mean, variance = _split_content_and_style(features)
        return content[self._draw_permutation(features)].detach() * (variance + _EPS).sqrt() + mean

    def _draw_permutation(self, features: Tensor) -> Tensor:
        return send_to(features.device, torch.randperm(len(features), generator=self.generator))


def _split_content_and_style(features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normalized feature vectors (b, d), and their original mean and variance (b, 1)."""
    variance, mean = torch.var_mean(features, dim=1, keepdim=True)
    return (features - mean) / (variance + _EPS).sqrt(), mean, variance
