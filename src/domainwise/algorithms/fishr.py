"""Fishr: gradients that vary as much in one domain as in another (Rame et al. 2021)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms.base import (
    Batches,
    Objective,
    concatenate_batches,
    factory_kwargs,
    nonempty_domains,
    split_by_domain,
)
from domainwise.algorithms.penalties import AnnealedHparams, AnnealedPenalty
from domainwise.hparams import Power, Uniform, hparam
from domainwise.networks import Network


@dataclass(frozen=True)
class FishrHparams(AnnealedHparams):
    penalty_weight: float = hparam(
        1000.0,
        help="Weight of the penalty after anneal_steps updates; before that it is 0.",
        search=Power(10, 1, 4),
        key="lambda",
        low=0,
    )
    anneal_steps: int = hparam(
        1500,
        help="Updates before penalty_weight applies.",
        search=Uniform(0, 5000, whole=True),
        key="penalty_anneal_iters",
        low=0,
    )
    ema: float = hparam(
        0.95,
        help="Factor on the sum of past gradient variances in every update.",
        search=Uniform(0.9, 0.99),
        low=0,
        high=1,
    )


class Fishr(AnnealedPenalty):
    """Fishr: a penalty on differences between the domains' variances of the classifier's gradients."""

    group = "invariance"
    source = "Rame et al. 2021"
    min_domains = 2
    Hparams = FishrHparams
    hparams: FishrHparams
    initial_weight = 0.0
    needs_features = True
    network: Network
    variance_sums: Tensor

    def setup(self) -> None:
        classifier = self.network.classifier
        if not isinstance(classifier, nn.Linear):
            raise ValueError(
                "Fishr uses the closed form of a linear classifier's gradients and needs a network whose own is "
                f"linear, got {type(classifier).__name__}"
            )
        columns = classifier.in_features + (classifier.bias is not None)
        shape = (self.num_domains, classifier.out_features, columns)
        self.register_buffer("variance_sums", torch.zeros(shape, **factory_kwargs(self.network)))

    def compute_loss(self, batches: Batches) -> Objective:
        x, y, _ = concatenate_batches(batches, self.num_domains)
        features = self.network.featurizer(x)
        logits = self.network.classifier(features)
        loss = F.cross_entropy(logits, y)
        # Variances are small differences of large numbers, which half precision would lose.
        with torch.autocast(x.device.type, enabled=False):
            variances = self._compute_gradient_variances(features, logits, y, batches)
        domains = nonempty_domains(batches, x.device)
        sums = self.hparams.ema * self.variance_sums[domains] + variances
        self.variance_sums[domains] = sums.detach().to(self.variance_sums.dtype)
        penalty = (sums - sums.mean(0)).square().mean()
        return loss + self.penalty_weight * penalty, {"loss": loss, "penalty": penalty}

    def _compute_gradient_variances(self, features: Tensor, logits: Tensor, y: Tensor, batches: Batches) -> Tensor:
        """Return the variance over each domain's samples of the gradient of their cross-entropy by the classifier.

        The gradient of one sample is the outer product of its error, softmax minus one-hot label, and its input. The
        mean of such products, or of their squares, is a product of matrices, so none is created per sample. The bias
        is the weight of an input that is always 1: (domains that have samples, classes, features + 1).
        """
        dtype = torch.promote_types(features.dtype, torch.float32)
        inputs, errors = features.to(dtype), logits.to(dtype).softmax(1) - F.one_hot(y, logits.shape[1])
        if self.network.classifier.bias is not None:
            inputs = F.pad(inputs, (0, 1), value=1.0)
        variances = []
        for z, error in zip(split_by_domain(inputs, batches), split_by_domain(errors, batches), strict=True):
            mean, mean_square = error.T @ z / len(z), error.square().T @ z.square() / len(z)
            variances.append(mean_square - mean.square())
        return torch.stack(variances)
