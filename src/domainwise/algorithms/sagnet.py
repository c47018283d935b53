"""SagNet: classify by content, not by style (Nam et al. 2019)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms.base import Algorithm, Batches, joined, new_head
from domainwise.hparams import Hparams, Power, searched
from domainwise.networks import Network

_EPS = 1e-5


@dataclass(frozen=True)
class SagNetHparams(Hparams):
    """adversarial_weight: of the step that makes the style head unsure (lambda_adv)."""

    adversarial_weight: float = searched(0.1, Power(10, -2, 1), key="sag_w_adv", low=0)


class SagNet(Algorithm):
    """Style-agnostic network: trained under the styles of other images, and against a head that sees only style."""

    source = "Nam et al. 2019"
    Hparams = SagNetHparams
    hparams: SagNetHparams
    network: Network
    needs_features = True

    def __init__(self, network: nn.Module, *, num_domains: int, **settings: Any) -> None:
        super().__init__(network, num_domains=num_domains, **settings)
        self.style_head = new_head(self.network, "SagNet", self.network.num_features)
        self.optimizer = self.adam(self.network.featurizer.parameters())
        self.content_optimizer = self.adam(self.network.classifier.parameters())
        self.style_optimizer = self.adam(self.style_head.parameters())

    def update(self, batches: Batches) -> dict[str, float]:
        x, y, _ = joined(batches, self.num_domains)
        network = self.network

        content_loss = F.cross_entropy(network.classifier(self._with_other_style(network.featurizer(x))), y)
        self.descend_(content_loss, self.optimizer, self.content_optimizer)

        with torch.no_grad():  # only the style head learns here
            features = network.featurizer(x)
        style_loss = F.cross_entropy(self.style_head(self._with_other_content(features)), y)
        self.descend_(style_loss, self.style_optimizer)

        style_logits = self.style_head(self._with_other_content(network.featurizer(x)))
        adversarial_loss = -style_logits.log_softmax(1).mean()
        self.descend_(self.hparams.adversarial_weight * adversarial_loss)
        return {
            "loss": content_loss.item(),
            "style_loss": style_loss.item(),
            "adversarial_loss": adversarial_loss.item(),
        }

    def _with_other_style(self, features: Tensor) -> Tensor:
        """Each feature vector with a mean and variance on the way to those of another sample."""
        content, mean, variance = _content_and_style(features)
        weight = torch.rand(len(features), 1, generator=self.generator).to(features)
        other = self._permutation(features)
        mean = weight * mean + (1 - weight) * mean[other]
        variance = weight * variance + (1 - weight) * variance[other]
        return content * (variance + _EPS).sqrt() + mean

    def _with_other_content(self, features: Tensor) -> Tensor:
        """Each sample's mean and variance on the normalized, detached features of another."""
        content, mean, variance = _content_and_style(features)
        return content[self._permutation(features)].detach() * (variance + _EPS).sqrt() + mean

    def _permutation(self, features: Tensor) -> Tensor:
        return torch.randperm(len(features), generator=self.generator).to(features.device)


def _content_and_style(features: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The normalized feature vectors (b, d), and the mean and variance (b, 1) that they had."""
    variance, mean = torch.var_mean(features, dim=1, keepdim=True)
    return (features - mean) / (variance + _EPS).sqrt(), mean, variance
