"""DANN: features from which a second network cannot predict the domain (Ganin et al. 2016)."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms.base import Algorithm, Batches, Measurements, concatenate_batches, factory_kwargs
from domainwise.hparams import Choice, Hparams, Power, hparam
from domainwise.networks import Network


@dataclass(frozen=True)
class DANNHparams(Hparams):
    lr: float = hparam(5e-5, help="Learning rate of the network.", search=Power(10, -5, -3.5), key="lr_g")
    weight_decay: float = hparam(
        0.0, help="Weight decay of the network.", search=Power(10, -6, -2), key="weight_decay_g"
    )
    adversary_weight: float = hparam(
        1.0,
        help="Weight of the discriminator's loss in the network's loss (lambda).",
        search=Power(10, -2, 2),
        key="lambda",
        low=0,
    )
    discriminator_steps: int = hparam(
        1,
        help="Discriminator updates per network update.",
        search=Power(2, 0, 3, whole=True),
        key="d_steps_per_g_step",
        low=1,
    )
    gradient_penalty: float = hparam(
        0.0,
        help="Penalty on the discriminator's gradient with respect to the features.",
        search=Power(10, -2, 1),
        key="grad_penalty",
        low=0,
    )
    beta1: float = hparam(0.5, help="beta1 of both Adams; their beta2 is 0.9.", search=Choice((0.0, 0.5)), low=0)
    width: int = hparam(
        256, help="Hidden width of the discriminator.", search=Power(2, 6, 10, whole=True), key="mlp_width", low=1
    )
    depth: int = hparam(3, help="Linear layers of the discriminator.", search=Choice((3, 4, 5)), key="mlp_depth", low=2)
    discriminator_dropout: float = hparam(
        0.0, help="Dropout of the discriminator.", search=Choice((0.0, 0.1, 0.5)), key="mlp_dropout", low=0, high=1
    )
    discriminator_lr: float | None = hparam(
        None, help="Learning rate of the discriminator; none: lr.", search=Power(10, -5, -3.5), key="lr_d", low=0
    )
    discriminator_weight_decay: float = hparam(
        0.0, help="Weight decay of the discriminator.", search=Power(10, -6, -2), key="weight_decay_d", low=0
    )


class DANN(Algorithm):
    """Domain-adversarial training: the featurizer learns to hide the domain from a discriminator."""

    group = "alignment"
    source = "Ganin et al. 2016"
    min_domains = 2
    Hparams = DANNHparams
    hparams: DANNHparams
    network: Network
    needs_features = True

    @property
    def is_exact_over_ranks(self) -> bool:
        return True

    def setup(self) -> None:
        hparams = self.hparams
        sizes = [self.network.num_features, *[hparams.width] * (hparams.depth - 1), self.num_domains]
        self.discriminator = build_mlp(sizes, hparams.discriminator_dropout).to(**factory_kwargs(self.network))
        betas = (hparams.beta1, 0.9)
        self.optimizer = self.build_optimizer(self.network.parameters(), betas=betas)
        self.discriminator_optimizer = self.build_optimizer(
            self.discriminator.parameters(),
            lr=hparams.discriminator_lr,
            weight_decay=hparams.discriminator_weight_decay,
            betas=betas,
        )

    def update(self, batches: Batches) -> Measurements:
        x, y, domain = concatenate_batches(batches, self.num_domains)
        network, hparams = self.network, self.hparams
        self.updates += 1
        is_discriminator_turn = self.updates % (1 + hparams.discriminator_steps) < hparams.discriminator_steps
        with torch.set_grad_enabled(not is_discriminator_turn):
            features = network.featurizer(x)
            loss = F.cross_entropy(network.classifier(features), y)
        discriminator_loss = self.compute_discriminator_loss(features, y, domain)
        if is_discriminator_turn:
            self.descend_(discriminator_loss, self.discriminator_optimizer)
        else:
            self.descend_(loss - hparams.adversary_weight * discriminator_loss)
        return Measurements(loss=loss, discriminator_loss=discriminator_loss)

    def compute_discriminator_loss(self, features: Tensor, y: Tensor, domain: Tensor) -> Tensor:
        """Return the loss that the discriminator minimizes, and the network maximizes.

        Args:
            features: Features of all domains, (b, d).
            y: Labels, (b,).
            domain: Domain indices, (b,).
        """
        if not self.hparams.gradient_penalty:
            return F.cross_entropy(self.discriminator(features), domain)
        features.requires_grad_()
        sample_losses = F.cross_entropy(self.discriminator(features), domain, reduction="none")
        return sample_losses.mean() + self.compute_gradient_penalty(sample_losses, features)

    def compute_gradient_penalty(self, sample_losses: Tensor, features: Tensor) -> Tensor:
        """Return the weighted mean over samples of the squared gradient of each one's loss by its features."""
        (gradient,) = torch.autograd.grad(sample_losses.sum(), features, create_graph=True)
        return self.hparams.gradient_penalty * gradient.square().sum(1).mean()


def build_mlp(sizes: list[int], dropout: float = 0.0) -> nn.Sequential:
    """Return linear layers with the given sizes, and dropout and a ReLU between them."""
    layers: list[nn.Module] = [nn.Linear(sizes[0], sizes[1])]
    for inputs, outputs in pairwise(sizes[1:]):
        layers += [nn.Dropout(dropout), nn.ReLU(), nn.Linear(inputs, outputs)]
    return nn.Sequential(*layers)
