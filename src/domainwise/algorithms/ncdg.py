"""NCDG: use many neurons, and use them alike on two views of an image (Tian et al. 2022)."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms.base import Algorithm, Batches, joined
from domainwise.data.augmentation import augment_batch
from domainwise.hparams import Hparams, bounded

_EPS = 1e-8


@dataclass(frozen=True)
class NCDGHparams(Hparams):
    """threshold, temperature: a neuron counts as sigmoid((activation - threshold) / temperature).

    coverage_weight: of the share of neurons that count, which is to grow.
    similarity_weight: of 1 - cosine between the two views' gradients of it by the pixels.
    """

    threshold: float = 0.005
    temperature: float = bounded(0.1, above=0)
    coverage_weight: float = bounded(0.1, low=0)
    similarity_weight: float = bounded(0.1, low=0)


class NCDG(Algorithm):
    """Neuron coverage: more neurons active, from the same pixels in an image and in an augmented copy of it."""

    source = "Tian et al. 2022"
    Hparams = NCDGHparams
    hparams: NCDGHparams

    def __init__(self, network: nn.Module, *, num_domains: int, **settings: Any) -> None:
        super().__init__(network, num_domains=num_domains, **settings)
        if not _relus(network):
            raise ValueError("NCDG counts active neurons: its network needs torch.nn.ReLU layers, and has none")
        if self.augment is None:
            self.augment = partial(augment_batch, generator=self.generator)

    def update(self, batches: Batches) -> dict[str, float]:
        x, y, _ = joined(batches, self.num_domains)
        assert self.augment is not None
        views = torch.cat([x, self.augment(x).to(x)]).requires_grad_()
        with _recorded(_relus(self.network)) as activations:
            loss = F.cross_entropy(self.network(views), y.repeat(2))
        coverage = self._coverage(activations)
        hparams = self.hparams
        needs_second_derivative = hparams.similarity_weight > 0
        (gradient,) = torch.autograd.grad(
            coverage.sum(), views, retain_graph=True, create_graph=needs_second_derivative
        )
        of_image, of_copy = gradient.flatten(1).chunk(2)
        similarity = F.cosine_similarity(of_image, of_copy, eps=_EPS).mean()
        bonus = hparams.coverage_weight * coverage.mean() - hparams.similarity_weight * (1 - similarity)
        self.descend_(loss - bonus)
        return {"loss": loss.item(), "coverage": coverage.mean().item(), "similarity": similarity.item()}

    def _coverage(self, activations: Iterable[Tensor]) -> Tensor:
        """The share of neurons that are active, softly counted, (b,)."""
        scaled = []
        for activation in activations:
            neurons = activation.flatten(2).mean(2) if activation.ndim > 2 else activation
            low, high = neurons.aminmax(dim=1, keepdim=True)
            scaled.append((neurons - low) / (high - low + _EPS))
        hparams = self.hparams
        return ((torch.cat(scaled, dim=1) - hparams.threshold) / hparams.temperature).sigmoid().mean(1)


def _relus(network: nn.Module) -> list[nn.Module]:
    return [module for module in network.modules() if isinstance(module, nn.ReLU | nn.ReLU6)]


@contextmanager
def _recorded(layers: Iterable[nn.Module]) -> Iterator[list[Tensor]]:
    """What the layers give inside, in the order of their calls."""
    outputs: list[Tensor] = []
    handles = [layer.register_forward_hook(lambda _, __, output: outputs.append(output)) for layer in layers]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()
