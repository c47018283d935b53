"""SelfReg: images of one class should have similar features and logits (Kim et al. 2021)."""

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms.base import Batches, LossAlgorithm, Objective, concatenate_batches, factory_kwargs
from domainwise.algorithms.mixup import draw_beta_weights
from domainwise.hparams import Hparams, hparam
from domainwise.networks import Network
from domainwise.perturbations.device import send_to

_BETA = 0.5
_MAX_SCALE = 1.0


@dataclass(frozen=True)
class SelfRegHparams(Hparams):
    feature_weight: float = hparam(
        0.3, help="Weight of the distances between features; that between logits is 1.", low=0
    )
    train_projection: bool = hparam(
        True, help="Train the projection of the features; false: it keeps its initial weights, as in DomainBed."
    )


class SelfReg(LossAlgorithm):
    """Self-supervised contrastive regularization: pulls an image towards others of its class and their mixtures."""

    group = "augmentation"
    source = "Kim et al. 2021"
    needs_features = True
    Hparams = SelfRegHparams
    hparams: SelfRegHparams
    network: Network

    def setup(self) -> None:
        self.projection = build_projection(self.network.num_features).to(**factory_kwargs(self.network))
        self.projection.requires_grad_(self.hparams.train_projection)
        trained = [*self.network.parameters(), *(self.projection.parameters() if self.hparams.train_projection else ())]
        self.optimizer = self.build_optimizer(trained)

    def compute_loss(self, batches: Batches) -> Objective:
        x, y, _ = concatenate_batches(batches, self.num_domains)
        features = self.network.featurizer(x)
        logits = self.network.classifier(features)
        loss = F.cross_entropy(logits, y)
        penalty = self._compute_penalty(features, logits, y)
        # The penalty fades as the classifier gets good, and never outgrows its weight.
        return loss + loss.detach().clamp(max=_MAX_SCALE) * penalty, {"loss": loss, "penalty": penalty}

    def _compute_penalty(self, features: Tensor, logits: Tensor, y: Tensor) -> Tensor:
        """Return the distance to another image of the class, and to a mixture of two, in logits and features."""
        (share,) = draw_beta_weights(_BETA, 1, self.generator)
        partner, second = self._draw_partners(y), self._draw_partners(y)
        if len(y) == 1:
            return logits.new_zeros(())  # an image alone is its own partner, and batch norm needs two
        projected = self.projection(features)
        distances = []
        for values, targets in ((logits, logits), (features, projected)):
            mixture = share * targets[partner] + (1 - share) * targets[second]
            apart, from_mixture = F.mse_loss(values, targets[partner]), F.mse_loss(values, mixture)
            distances.append(share * apart + (1 - share) * from_mixture)
        return distances[0] + self.hparams.feature_weight * distances[1]

    def _draw_partners(self, y: Tensor) -> Tensor:
        """Return a random permutation within each class: the index of each image's partner, (b,)."""
        shuffled = send_to(y.device, torch.randperm(len(y), generator=self.generator))
        by_class = y.argsort(stable=True)
        shuffled_by_class = shuffled[y[shuffled].argsort(stable=True)]
        return torch.empty_like(by_class).index_copy_(0, by_class, shuffled_by_class)


def build_projection(num_features: int) -> nn.Sequential:
    """Return three linear layers with batch norm, twice as wide as the features except for ResNet-50's 2048."""
    width = num_features if num_features == 2048 else 2 * num_features
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise((num_features, width, width, num_features)):
        # Batch norm cancels a bias, which Adam would then move by rounding errors alone.
        layers += [nn.Linear(inputs, outputs, bias=False), nn.BatchNorm1d(outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])
