"""MTL: a classifier that also sees the mean feature of its domain (Blanchard et al. 2017)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms.base import (
    Batches,
    LossAlgorithm,
    Objective,
    build_head,
    concatenate_batches,
    factory_kwargs,
    mean_per_domain,
    nonempty_domains,
    require_features,
)
from domainwise.hparams import Choice, Hparams, hparam


@dataclass(frozen=True)
class MTLHparams(Hparams):
    ema: float = hparam(
        0.99,
        help="Weight of the batch's mean feature in its domain's embedding; the rest is the previous embedding.",
        search=Choice((0.5, 0.9, 0.99, 1.0)),
        key="mtl_ema",
        low=0,
        high=1,
    )


class EmbeddingNetwork(nn.Module):
    """A network whose classifier sees each feature vector together with the mean feature vector of its batch."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        parts = require_features(network, "MTL")
        self.featurizer = parts.featurizer
        self.num_features = parts.num_features
        self.input_shape = getattr(network, "input_shape", None)
        self.classifier = build_head(parts, "MTL", 2 * parts.num_features)

    def forward(self, x: Tensor) -> Tensor:
        features = self.featurizer(x)
        return self.classify(features, features.mean(0).expand_as(features))

    def classify(self, features: Tensor, embedding: Tensor) -> Tensor:
        logits: Tensor = self.classifier(torch.cat([features, embedding], dim=1))
        return logits


class MTL(LossAlgorithm):
    """Marginal transfer learning: the classifier also sees its domain's mean feature; at test time the batch's."""

    group = "alignment"
    source = "Blanchard et al. 2017"
    Hparams = MTLHparams
    hparams: MTLHparams
    network: EmbeddingNetwork
    embeddings: Tensor

    def setup(self) -> None:
        self.network = EmbeddingNetwork(self.network)
        self.optimizer = self.build_optimizer(self.network.parameters())
        embeddings = torch.zeros(self.num_domains, self.network.num_features, **factory_kwargs(self.network))
        self.register_buffer("embeddings", embeddings)

    def compute_loss(self, batches: Batches) -> Objective:
        x, y, domain = concatenate_batches(batches, self.num_domains)
        features = self.network.featurizer(x)
        domains = nonempty_domains(batches, x.device)
        ema = self.hparams.ema
        means = ema * mean_per_domain(features, batches) + (1 - ema) * self.embeddings[domains]
        embeddings = self.embeddings.index_copy(0, domains, means.to(self.embeddings.dtype))
        sample_losses = F.cross_entropy(self.network.classify(features, embeddings[domain]), y, reduction="none")
        self.embeddings.copy_(embeddings.detach())
        return mean_per_domain(sample_losses, batches).sum(), {"loss": sample_losses.mean()}
