"""DANN: features from which a second network cannot tell the domain (Ganin et al. 2016)."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms.base import Algorithm, Batches, joined, like
from domainwise.hparams import Choice, Hparams, Power, searched
from domainwise.networks import Network


@dataclass(frozen=True)
class DANNHparams(Hparams):
    """lr, weight_decay: of the network.

    discriminator_lr, discriminator_weight_decay: of the other one; None for the former means as `lr`.

    adversary_weight: of the discriminator's loss in the network's (lambda).
    discriminator_steps: updates of the discriminator to one of the network.
    gradient_penalty: on the discriminator's gradient by the features.
    beta1: of both Adams; their beta2 is .9.
    width, depth, discriminator_dropout: of the discriminator; `depth` counts linear layers.
    """

    lr: float = searched(5e-5, Power(10, -5, -3.5), key="lr_g")
    weight_decay: float = searched(0.0, Power(10, -6, -2), key="weight_decay_g")
    adversary_weight: float = searched(1.0, Power(10, -2, 2), key="lambda", low=0)
    discriminator_steps: int = searched(1, Power(2, 0, 3, whole=True), key="d_steps_per_g_step", low=1)
    gradient_penalty: float = searched(0.0, Power(10, -2, 1), key="grad_penalty", low=0)
    beta1: float = searched(0.5, Choice((0.0, 0.5)), low=0)
    width: int = searched(256, Power(2, 6, 10, whole=True), key="mlp_width", low=1)
    depth: int = searched(3, Choice((3, 4, 5)), key="mlp_depth", low=2)
    discriminator_dropout: float = searched(0.0, Choice((0.0, 0.1, 0.5)), key="mlp_dropout", low=0, high=1)
    discriminator_lr: float | None = searched(None, Power(10, -5, -3.5), key="lr_d", low=0)
    discriminator_weight_decay: float = searched(0.0, Power(10, -6, -2), key="weight_decay_d", low=0)


class DANN(Algorithm):
    """Domain-adversarial training: the featurizer learns to hide the domain from a discriminator."""

    source = "Ganin et al. 2016"
    min_domains = 2
    is_exact_in_shares = True
    Hparams = DANNHparams
    hparams: DANNHparams
    network: Network
    needs_features = True

    def __init__(self, network: nn.Module, *, num_domains: int, **settings: Any) -> None:
        super().__init__(network, num_domains=num_domains, **settings)
        hparams = self.hparams
        sizes = [self.network.num_features, *[hparams.width] * (hparams.depth - 1), num_domains]
        self.discriminator = _mlp(sizes, hparams.discriminator_dropout).to(**like(network))
        betas = (hparams.beta1, 0.9)
        self.optimizer = self.adam(network.parameters(), betas=betas)
        self.discriminator_optimizer = self.adam(
            self.discriminator.parameters(),
            lr=hparams.lr if hparams.discriminator_lr is None else hparams.discriminator_lr,
            weight_decay=hparams.discriminator_weight_decay,
            betas=betas,
        )

    def update(self, batches: Batches) -> dict[str, float]:
        x, y, domain = joined(batches, self.num_domains)
        network, hparams = self.network, self.hparams
        self.updates += 1
        is_discriminators_turn = self.updates % (1 + hparams.discriminator_steps) < hparams.discriminator_steps
        with torch.set_grad_enabled(not is_discriminators_turn):
            features = network.featurizer(x)
            loss = F.cross_entropy(network.classifier(features), y)
        discriminator_loss = self._discriminator_loss(features, domain)
        if is_discriminators_turn:
            self.descend_(discriminator_loss, self.discriminator_optimizer)
        else:
            self.descend_(loss - hparams.adversary_weight * discriminator_loss)
        return {"loss": loss.item(), "discriminator_loss": discriminator_loss.item()}

    def _discriminator_loss(self, features: Tensor, domain: Tensor) -> Tensor:
        if not self.hparams.gradient_penalty:
            return F.cross_entropy(self.discriminator(features), domain)
        features.requires_grad_()
        each = F.cross_entropy(self.discriminator(features), domain, reduction="none")
        (gradient,) = torch.autograd.grad(each.sum(), features, create_graph=True)
        return each.mean() + self.hparams.gradient_penalty * gradient.square().sum(1).mean()


def _mlp(sizes: list[int], dropout: float) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(sizes[0], sizes[1])]
    for inside, outside in pairwise(sizes[1:]):
        layers += [nn.Dropout(dropout), nn.ReLU(), nn.Linear(inside, outside)]
    return nn.Sequential(*layers)
