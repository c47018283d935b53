"""MTL: a classifier that is also told what the domain looks like on average (Blanchard et al. 2017)."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms.base import (
    Algorithm,
    Batches,
    domains_there,
    joined,
    like,
    mean_of_each,
    new_head,
    two_parts,
)
from domainwise.hparams import Choice, Hparams, searched


@dataclass(frozen=True)
class MTLHparams(Hparams):
    """ema: how much a batch's mean feature counts in its domain's embedding; the rest is what it was before."""

    ema: float = searched(0.99, Choice((0.5, 0.9, 0.99, 1.0)), key="mtl_ema", low=0, high=1)


class EmbeddingNetwork(nn.Module):
    """A network whose classifier sees each feature beside the mean feature of the batch that it came in."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        parts = two_parts(network, "MTL")
        self.featurizer = parts.featurizer
        self.num_features = parts.num_features
        self.input_shape = getattr(network, "input_shape", None)
        self.classifier = new_head(parts, "MTL", 2 * parts.num_features)

    def forward(self, x: Tensor) -> Tensor:
        features = self.featurizer(x)
        return self.classify(features, features.mean(0).expand_as(features))

    def classify(self, features: Tensor, embedding: Tensor) -> Tensor:
        logits: Tensor = self.classifier(torch.cat([features, embedding], dim=1))
        return logits


class MTL(Algorithm):
    """Marginal transfer learning: the classifier also gets its domain's mean feature; at test time the batch's."""

    source = "Blanchard et al. 2017"
    Hparams = MTLHparams
    hparams: MTLHparams
    network: EmbeddingNetwork
    embeddings: Tensor

    def __init__(self, network: nn.Module, *, num_domains: int, **settings: Any) -> None:
        super().__init__(EmbeddingNetwork(network), num_domains=num_domains, **settings)
        self.register_buffer("embeddings", torch.zeros(num_domains, self.network.num_features, **like(network)))

    def update(self, batches: Batches) -> dict[str, float]:
        x, y, domain = joined(batches, self.num_domains)
        features = self.network.featurizer(x)
        there = domains_there(batches, x.device)
        means = self.hparams.ema * mean_of_each(features, batches) + (1 - self.hparams.ema) * self.embeddings[there]
        embeddings = self.embeddings.index_copy(0, there, means.to(self.embeddings.dtype))
        each = F.cross_entropy(self.network.classify(features, embeddings[domain]), y, reduction="none")
        self.descend_(mean_of_each(each, batches).sum())
        self.embeddings.copy_(embeddings.detach())
        return {"loss": each.mean().item()}
