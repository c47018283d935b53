"""URM: features that a second network cannot tell from uniform noise (Krishnamachari et al. 2024)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms.base import (
    Algorithm,
    Batches,
    Measurements,
    concatenate_batches,
    factory_kwargs,
    require_features,
)
from domainwise.hparams import MNIST_DATASETS, Choice, DatasetSetting, Hparams, Power, Uniform, hparam
from domainwise.perturbations.device import send_to

_WIDTH = 100


@dataclass(frozen=True)
class URMHparams(Hparams):
    BY_DATASET = (DatasetSetting("discriminator_lr", None, Power(10, -5.5, -3.5), MNIST_DATASETS),)

    adversary_weight: float = hparam(
        0.1,
        help="Weight of the features' part of the network's and of the discriminator's loss (lambda).",
        search=Uniform(0, 0.2),
        key="urm_adv_lambda",
        low=0,
    )
    activation: Literal["tanh", "relu"] = hparam(
        "tanh",
        help="Last layer of the featurizer; the noise is uniform on [-1, 1] for tanh, and on [0, 1] for relu.",
        search=Choice(("tanh", "relu")),
        key="urm_generator_output",
    )
    hidden_layers: int = hparam(
        1,
        help="Layers of the discriminator between its first and last.",
        search=Choice((1, 2, 3)),
        key="urm_discriminator_hidden_layers",
        low=0,
    )
    discriminator_lr: float | None = hparam(
        None,
        help="Learning rate of the discriminator; none: lr.",
        search=Power(10, -6, -4.5),
        key="urm_discriminator_lr",
        low=0,
    )


class BoundedNetwork(nn.Module):
    """A network with an activation between its featurizer and its classifier."""

    def __init__(self, network: nn.Module, activation: nn.Module) -> None:
        super().__init__()
        parts = require_features(network, "URM")
        self.featurizer = parts.featurizer
        self.activation = activation
        self.classifier = parts.classifier
        self.num_features = parts.num_features
        self.input_shape = getattr(network, "input_shape", None)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.compute_features(x))
        return logits

    def compute_features(self, x: Tensor) -> Tensor:
        features: Tensor = self.activation(self.featurizer(x))
        return features


class URM(Algorithm):
    """Uniform risk minimization: the featurizer learns to make its features look uniformly distributed."""

    group = "alignment"
    source = "Krishnamachari et al. 2024"
    Hparams = URMHparams
    hparams: URMHparams
    network: BoundedNetwork

    @property
    def is_exact_over_ranks(self) -> bool:
        return True

    def setup(self) -> None:
        hparams = self.hparams
        activation = nn.Tanh() if hparams.activation == "tanh" else nn.ReLU()
        self.network = BoundedNetwork(self.network, activation)
        layers: list[nn.Module] = [nn.Linear(self.network.num_features, _WIDTH), nn.LeakyReLU()]
        for _ in range(hparams.hidden_layers):
            layers += [nn.Linear(_WIDTH, _WIDTH), nn.LeakyReLU()]
        self.discriminator = nn.Sequential(*layers, nn.Linear(_WIDTH, 1)).to(**factory_kwargs(self.network))
        self.discriminator_optimizer = self.build_optimizer(
            self.discriminator.parameters(), lr=hparams.discriminator_lr
        )

    def update(self, batches: Batches) -> Measurements:
        x, y, _ = concatenate_batches(batches, self.num_domains)
        weight = self.hparams.adversary_weight
        features = self.network.compute_features(x)
        loss = F.cross_entropy(self.network.classifier(features), y)
        self.descend_(loss + weight * self._compare(features, is_noise=True))

        features = features.detach()
        noise_loss = self._compare(self._draw_noise(features), is_noise=True)
        discriminator_loss = noise_loss + weight * self._compare(features, is_noise=False)
        self.descend_(discriminator_loss, self.discriminator_optimizer)
        return Measurements(loss=loss, discriminator_loss=discriminator_loss)

    def _compare(self, features: Tensor, *, is_noise: bool) -> Tensor:
        """Return the mean cross-entropy of the discriminator if all features, (b, d), were noise, or all were not."""
        logits = self.discriminator(features)
        return F.binary_cross_entropy_with_logits(logits, torch.full_like(logits, float(is_noise)))

    def _draw_noise(self, features: Tensor) -> Tensor:
        noise = send_to(features.device, torch.rand(features.shape, generator=self.generator), features.dtype)
        return 2 * noise - 1 if self.hparams.activation == "tanh" else noise
