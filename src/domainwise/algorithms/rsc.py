"""RSC: learn without the features that help most (Huang et al. 2020, Algorithm 1)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms.base import Algorithm, Batches, joined
from domainwise.hparams import Hparams, Uniform, searched
from domainwise.networks import Network


@dataclass(frozen=True)
class RSCHparams(Hparams):
    """feature_drop: share of each sample's features that is muted (f); sample_drop: share of samples that are (b)."""

    feature_drop: float = searched(1 / 3, Uniform(0, 0.5), key="rsc_f_drop_factor", low=0, high=1)
    sample_drop: float = searched(1 / 3, Uniform(0, 0.5), key="rsc_b_drop_factor", low=0, high=1)


class RSC(Algorithm):
    """Representation self-challenging: the features that a prediction rests on most are muted."""

    source = "Huang et al. 2020"
    Hparams = RSCHparams
    hparams: RSCHparams
    network: Network
    needs_features = True

    def update(self, batches: Batches) -> dict[str, float]:
        x, y, _ = joined(batches, self.num_domains)
        features = self.network.featurizer(x)
        kept = self._kept(features.detach(), y)
        loss = F.cross_entropy(self.network.classifier(features * kept), y)
        self.descend_(loss)
        return {"loss": loss.item()}

    def _kept(self, features: Tensor, y: Tensor) -> Tensor:
        """1 for features that stay, 0 for those that are muted, (b, d)."""
        features.requires_grad_()
        logits = self.network.classifier(features)
        (gradient,) = torch.autograd.grad(logits.gather(1, y[:, None]).sum(), features)
        with torch.no_grad():
            kept = gradient < percentile(gradient, 1 - self.hparams.feature_drop)
            muted = self.network.classifier(features * kept)
            drop = (logits.softmax(1) - muted.softmax(1)).gather(1, y[:, None]).squeeze(1)
            is_spared = drop < percentile(drop, 1 - self.hparams.sample_drop)
            stays: Tensor = kept | is_spared[:, None]
            return stays.to(features.dtype)


def percentile(values: Tensor, share: float) -> Tensor:
    """The value below which `share` of the last dimension lies, (..., 1), interpolated linearly as numpy does.

    `torch.quantile` rounds the rank to the values' precision, and so misses the value that is there at a whole one.
    """
    rank = share * (values.shape[-1] - 1)
    ordered = values.sort(dim=-1).values
    below, above = ordered[..., math.floor(rank)], ordered[..., math.ceil(rank)]
    return (below + (rank - math.floor(rank)) * (above - below))[..., None]
