"""RSC: train without the features that help most (Huang et al. 2020, Algorithm 1)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms.base import Batches, LossAlgorithm, Objective, concatenate_batches
from domainwise.hparams import Hparams, Uniform, hparam
from domainwise.networks import Network


@dataclass(frozen=True)
class RSCHparams(Hparams):
    feature_drop: float = hparam(
        1 / 3,
        help="Share of features muted per sample (f).",
        search=Uniform(0, 0.5),
        key="rsc_f_drop_factor",
        low=0,
        high=1,
    )
    sample_drop: float = hparam(
        1 / 3,
        help="Share of samples whose features are muted (b).",
        search=Uniform(0, 0.5),
        key="rsc_b_drop_factor",
        low=0,
        high=1,
    )


class RSC(LossAlgorithm):
    """Representation self-challenging: the features that contribute most to the prediction are muted."""

    group = "augmentation"
    source = "Huang et al. 2020"
    Hparams = RSCHparams
    hparams: RSCHparams
    network: Network
    needs_features = True

    def compute_loss(self, batches: Batches) -> Objective:
        x, y, _ = concatenate_batches(batches, self.num_domains)
        features = self.network.featurizer(x)
        mask = self._compute_mask(features.detach(), y)
        loss = F.cross_entropy(self.network.classifier(features * mask), y)
        return loss, {"loss": loss}

    def _compute_mask(self, features: Tensor, y: Tensor) -> Tensor:
        """Return 1 for features that stay and 0 for those that are muted, (b, d)."""
        features.requires_grad_()
        logits = self.network.classifier(features)
        (gradient,) = torch.autograd.grad(logits.gather(1, y[:, None]).sum(), features)
        with torch.no_grad():
            stays = gradient < compute_percentile(gradient, 1 - self.hparams.feature_drop)
            muted_logits = self.network.classifier(features * stays)
            drop = (logits.softmax(1) - muted_logits.softmax(1)).gather(1, y[:, None]).squeeze(1)
            is_spared = drop < compute_percentile(drop, 1 - self.hparams.sample_drop)
            mask: Tensor = stays | is_spared[:, None]
            return mask.to(features.dtype)


def compute_percentile(values: Tensor, share: float) -> Tensor:
    """Return the value below which `share` of the last dimension lies, (..., 1), interpolated as numpy does.

    `torch.quantile` rounds the rank to the precision of the values and so misses the exact value at integer ranks.
    """
    rank = share * (values.shape[-1] - 1)
    ordered = values.sort(dim=-1).values
    below, above = ordered[..., math.floor(rank)], ordered[..., math.ceil(rank)]
    return (below + (rank - math.floor(rank)) * (above - below))[..., None]
