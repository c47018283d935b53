"""CAD: features whose nearest neighbours come from other domains (Ruan et al. 2022, the contrastive bottleneck)."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms.base import Batches, LossAlgorithm, Objective, concatenate_batches, factory_kwargs
from domainwise.hparams import Choice, Hparams, hparam
from domainwise.networks import Network

_BASE_TEMPERATURE = 0.07
_PROJECTION_WIDTH = 128


@dataclass(frozen=True)
class CADHparams(Hparams):
    penalty_weight: float = hparam(
        0.1,
        help="Weight of the bottleneck (lambda).",
        search=Choice((1e-4, 1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2)),
        key="lmbda",
        low=0,
    )
    temperature: float = hparam(
        0.1, help="Temperature of the similarities between samples.", search=Choice((0.05, 0.1)), above=0
    )
    flipped: bool = hparam(
        True,
        help="Minimize -log(1 - p) instead of log p, where p is the probability of the sample's own domain.",
        key="is_flipped",
    )
    normalize: bool = hparam(False, help="Scale features to length 1 before comparing them.", key="is_normalized")
    project: bool = hparam(
        False, help="Compare the outputs of a small network on the features instead of the features.", key="is_project"
    )


class CAD(LossAlgorithm):
    """Contrastive adversarial domain bottleneck: a penalty if a sample's neighbours reveal its domain."""

    group = "alignment"
    source = "Ruan et al. 2022"
    min_domains = 2
    needs_features = True
    Hparams = CADHparams
    hparams: CADHparams
    network: Network
    # Whether a sample's neighbours are those of its class, or all other samples.
    within_class: ClassVar[bool] = False

    def setup(self) -> None:
        if self.hparams.project:
            width, kwargs = self.network.num_features, factory_kwargs(self.network)
            self.projection: nn.Module = nn.Sequential(
                nn.Linear(width, width, **kwargs), nn.ReLU(), nn.Linear(width, _PROJECTION_WIDTH, **kwargs)
            )
            self.optimizer.add_param_group({"params": list(self.projection.parameters())})
        else:
            self.projection = nn.Identity()

    def compute_loss(self, batches: Batches) -> Objective:
        x, y, domain = concatenate_batches(batches, self.num_domains)
        features = self.network.featurizer(x)
        loss = F.cross_entropy(self.network.classifier(features), y)
        # Half precision would round the similarities, which are large, before they are subtracted from one another.
        with torch.autocast(x.device.type, enabled=False):
            exact = features.to(torch.promote_types(features.dtype, torch.float32))
            penalty = self._compute_bottleneck(exact, y, domain)
        return loss + self.hparams.penalty_weight * penalty, {"loss": loss, "penalty": penalty}

    def _compute_bottleneck(self, features: Tensor, y: Tensor, domain: Tensor) -> Tensor:
        """Return the mean of -log(1 - p) or log p, where p is the probability that a neighbour is of the own domain.

        Neighbours are drawn with probability proportional to exp(similarity / temperature). Samples are left out if no
        neighbour is on the side whose probability is needed, or no other sample has their class.
        """
        hparams = self.hparams
        is_other = ~torch.eye(len(y), dtype=torch.bool, device=y.device)
        is_same_class = is_other & (y[:, None] == y)
        is_same_domain = domain[:, None] == domain
        is_neighbour = is_same_class if self.within_class else is_other
        is_target = is_neighbour & (is_same_domain ^ hparams.flipped)
        rows = (is_target.any(1) & is_same_class.any(1)).nonzero().squeeze(1)
        if len(rows) == 0:
            return features.new_zeros(())

        features = self.projection(features)
        if hparams.normalize:
            features = F.normalize(features, dim=1)
        logits = features[rows] @ features.T / hparams.temperature
        # Differences from the largest keep their digits when they are exponentiated.
        logits = logits - logits.detach().masked_fill(~is_neighbour[rows], -torch.inf).amax(1, keepdim=True)
        log_probability = _logsumexp(logits, is_target[rows]) - _logsumexp(logits, is_neighbour[rows])
        sign = -1 if hparams.flipped else 1
        return sign * hparams.temperature / _BASE_TEMPERATURE * log_probability.mean()


def _logsumexp(logits: Tensor, mask: Tensor) -> Tensor:
    """Return the log of the sum of exponentials over the columns in the mask, which has at least one per row."""
    return logits.masked_fill(~mask, -torch.inf).logsumexp(1)
