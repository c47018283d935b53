"""TRM: the best predictor of one domain should also be good in the others (Xu and Jaakkola 2021)."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms.base import (
    Batches,
    LossAlgorithm,
    Objective,
    build_head,
    concatenate_batches,
    factory_kwargs,
    mean_per_domain,
    split_by_domain,
)
from domainwise.hparams import Hparams, Power, hparam
from domainwise.networks import Network
from domainwise.perturbations.device import send_to

_PREDICTOR_STEPS = 30
_PREDICTOR_LR = 0.1
_NEUMANN_TERMS = 10
_NEUMANN_LIMIT = 10.0


@dataclass(frozen=True)
class TRMHparams(Hparams):
    variant: Literal["standard", "domainbed"] = hparam(
        "standard", help="domainbed: its series for the inverse Hessian and its update of the domain weights."
    )
    implicit_weight: float = hparam(
        1e-4,
        help="Weight of the gradient through the predictors, which depend on the features.",
        search=Power(10, -5, 0),
        key="cos_lambda",
        low=0,
    )
    anneal_steps: int = hparam(
        200,
        help="Updates before the transfer risk is added to the loss.",
        search=Power(10, 0, 4, whole=True),
        key="iters",
        low=0,
    )
    group_step_size: float = hparam(
        0.01,
        help="How fast the weights of the other domains follow their losses.",
        search=Power(10, -3, -1),
        key="groupdro_eta",
        low=0,
    )


class TRM(LossAlgorithm):
    """Transfer risk minimization: adds the loss, in every other domain, of a predictor fitted to one domain."""

    group = "invariance"
    source = "Xu and Jaakkola 2021"
    min_domains = 2
    needs_features = True
    Hparams = TRMHparams
    hparams: TRMHparams
    network: Network
    predictor_weights: Tensor
    predictor_biases: Tensor
    domain_weights: Tensor

    def setup(self) -> None:
        heads = [build_head(self.network, "TRM", self.network.num_features) for _ in range(self.num_domains)]
        self.register_buffer("predictor_weights", torch.stack([head.weight.detach() for head in heads]))
        self.register_buffer("predictor_biases", torch.stack([head.bias.detach() for head in heads]))
        # Row Q has the weights of the domains that the predictor of domain Q is tried on.
        ones = torch.ones(self.num_domains, self.num_domains, **factory_kwargs(self.network))
        self.register_buffer("domain_weights", ones.fill_diagonal_(0))

    def compute_loss(self, batches: Batches) -> Objective:
        x, y, _ = concatenate_batches(batches, self.num_domains)
        features = self.network.featurizer(x)
        loss = F.cross_entropy(self.network.classifier(features), y)
        transfer_risk = loss.new_zeros(())
        if self.updates >= self.hparams.anneal_steps:
            # The predictors are fitted in many small steps, which half precision would lose.
            with torch.autocast(x.device.type, enabled=False):
                transfer_risk = self._compute_transfer_risk(features.to(self.predictor_weights.dtype), y, batches)
        return loss + transfer_risk, {"loss": loss, "transfer_risk": transfer_risk}

    def describe(self) -> dict[str, Any]:
        return {"domain_weights": self.domain_weights.tolist()}

    def _compute_transfer_risk(self, features: Tensor, y: Tensor, batches: Batches) -> Tensor:
        """Return the mean over domains Q of the loss of Q's predictor in the others, and fit the predictors."""
        self.domain_weights /= self.domain_weights.sum(1, keepdim=True)
        domains = [index for index, (_, labels) in enumerate(batches) if len(labels)]
        features_by_domain, labels_by_domain = split_by_domain(features, batches), split_by_domain(y, batches)
        risks = [features.new_zeros(())]
        for place, domain in enumerate(domains):
            self._fit_predictor(domain, features_by_domain[place].detach(), labels_by_domain[place])
            places = [each for each in range(len(domains)) if each != place]
            if not places:
                continue
            others = send_to(y.device, torch.tensor([domains[each] for each in places]))
            weight, bias = self.predictor_weights[domain].clone(), self.predictor_biases[domain].clone()
            logits = F.linear(features, weight, bias)
            losses = mean_per_domain(F.cross_entropy(logits, y, reduction="none"), batches)
            losses = torch.stack([losses[each] for each in places])
            shares = self.domain_weights[domain, others] / self.domain_weights[domain, others].sum()
            residuals = _compute_residuals(logits, y)
            gradients = [
                part.T @ inputs / len(inputs)
                for part, inputs in zip(split_by_domain(residuals, batches), features_by_domain, strict=True)
            ]
            with torch.no_grad():
                elsewhere = torch.stack([gradients[each] for each in places])
                target = torch.einsum("p,pkd->kd", shares, elsewhere)
                direction = self._apply_inverse_hessian(target, features_by_domain[place], weight, bias)
            implicit = (direction * gradients[place]).sum()
            risks.append((shares * losses).sum() - self.hparams.implicit_weight * implicit)
            exponent = shares * losses if self.hparams.variant == "domainbed" else losses
            self.domain_weights[domain, others] *= (self.hparams.group_step_size * exponent.detach()).exp()
        return torch.stack(risks).sum() / len(domains)

    @torch.no_grad()
    def _fit_predictor(self, domain: int, features: Tensor, y: Tensor) -> None:
        """Take gradient steps on the cross-entropy of the domain's own predictor."""
        weight, bias = self.predictor_weights[domain], self.predictor_biases[domain]
        for _ in range(_PREDICTOR_STEPS):
            residuals = _compute_residuals(F.linear(features, weight, bias), y) / len(y)
            weight -= _PREDICTOR_LR * residuals.T @ features
            bias -= _PREDICTOR_LR * residuals.sum(0)

    def _apply_inverse_hessian(self, target: Tensor, features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Return the Neumann series sum_j (I - H)^j of the target, with H the Hessian by the predictor's weights."""
        probabilities = F.linear(features, weight, bias).softmax(1)
        term, total = target, target
        is_diverging = torch.zeros((), dtype=torch.bool, device=target.device)
        for index in range(_NEUMANN_TERMS):
            slopes = features @ term.T
            curvature = probabilities * (slopes - (probabilities * slopes).sum(1, keepdim=True))
            term = term - curvature.T @ features / len(features)
            # DomainBed's first term is overwritten in place by the second, which so counts twice.
            longer = 2 * term if index == 0 and self.hparams.variant == "domainbed" else total + term
            # The series diverges if H has eigenvalues above 2. It ends on the device, which a branch would wait for.
            total = torch.where(is_diverging, total, longer)
            is_diverging = is_diverging | (total.abs().max() > _NEUMANN_LIMIT)
        return total


def _compute_residuals(logits: Tensor, y: Tensor) -> Tensor:
    """Return the derivative of each sample's cross-entropy with respect to its logits."""
    return logits.softmax(1) - F.one_hot(y, logits.shape[1])
