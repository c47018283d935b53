"""MIRO: features that retain what the pretrained network knows (Cha et al. 2022)."""

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms.base import (
    Batches,
    LossAlgorithm,
    Objective,
    concatenate_batches,
    eval_mode,
    factory_kwargs,
)
from domainwise.hparams import Choice, Hparams, hparam
from domainwise.networks import Network
from domainwise.networks.stages import find_stages, record_outputs

_INITIAL_VARIANCE = 0.1
_MIN_VARIANCE = 1e-5


@dataclass(frozen=True)
class MIROHparams(Hparams):
    penalty_weight: float = hparam(
        0.1,
        help="Weight of the distance to the initial network's features (lambda).",
        search=Choice((1.0, 0.1, 0.01, 0.001)),
        key="ld",
        low=0,
    )
    variance_lr_factor: float = hparam(
        10.0, help="Learning rate of the variances, as a multiple of lr.", key="lr_mult", low=0
    )


class MIRO(LossAlgorithm):
    """Mutual information regularization with an oracle: layers stay close to those of the pretrained network."""

    group = "optimization"
    source = "Cha et al. 2022"
    needs_features = True
    Hparams = MIROHparams
    hparams: MIROHparams
    network: Network

    @property
    def is_exact_over_ranks(self) -> bool:
        return True

    def setup(self) -> None:
        if self.input_shape is None:
            raise ValueError("MIRO needs the shape of an image; pass input_shape=(channels, height, width)")
        kwargs = factory_kwargs(self.network)
        with eval_mode(self.network):
            shapes = find_stages(self.network.featurizer, torch.zeros(3, *self.input_shape, **kwargs))
        if not shapes:
            raise ValueError("MIRO compares layers of the featurizer, but none of its layers has weights")
        self.stages = list(shapes)
        # Part of the state, because the initial weights are not known after training.
        self.initial_featurizer = copy.deepcopy(self.network.featurizer).requires_grad_(False)
        start = math.log(math.expm1(_INITIAL_VARIANCE - _MIN_VARIANCE))
        self.raw_variances = nn.ParameterList(
            torch.full(_channel_shape(shape), start, **kwargs) for shape in shapes.values()
        )
        self.optimizer.add_param_group(
            {"params": list(self.raw_variances), "lr": self.hparams.variance_lr_factor * self.hparams.lr}
        )

    def compute_loss(self, batches: Batches) -> Objective:
        x, y, _ = concatenate_batches(batches, self.num_domains)
        with record_outputs(self.network.featurizer, self.stages) as outputs:
            features = self.network.featurizer(x)
        loss = F.cross_entropy(self.network.classifier(features), y)
        initial = self.initial_featurizer
        with torch.no_grad(), eval_mode(initial), record_outputs(initial, self.stages) as targets:
            initial(x)
        penalty = torch.stack(
            [
                _compute_negative_likelihood(outputs[name], targets[name], F.softplus(raw) + _MIN_VARIANCE)
                for name, raw in zip(self.stages, self.raw_variances, strict=True)
            ]
        ).sum()
        return loss + self.hparams.penalty_weight * penalty, {"loss": loss, "penalty": penalty}


def _compute_negative_likelihood(mean: Tensor, value: Tensor, variance: Tensor) -> Tensor:
    """Return the mean negative log-likelihood of the values under Gaussians, up to a constant."""
    # Half precision would overflow where the variance is small.
    dtype = torch.promote_types(mean.dtype, torch.float32)
    return ((mean.to(dtype) - value.to(dtype)).square() / variance + variance.log()).mean() / 2


def _channel_shape(shape: torch.Size) -> tuple[int, ...]:
    """Return the shape of one number per channel: dimension 1 of images, the last of tokens and vectors."""
    return (shape[1], *[1] * (len(shape) - 2)) if len(shape) > 3 else (shape[-1],)
