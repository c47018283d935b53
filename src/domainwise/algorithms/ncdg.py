"""NCDG: activate many neurons, and the same ones for two views of an image (Tian et al. 2022)."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms.base import Batches, LossAlgorithm, Objective, concatenate_batches
from domainwise.data.augmentation import augment_batch
from domainwise.hparams import Hparams, hparam

_EPS = 1e-8


@dataclass(frozen=True)
class NCDGHparams(Hparams):
    threshold: float = hparam(
        0.005, help="Neurons count as sigmoid((activation - threshold) / temperature) in the coverage."
    )
    temperature: float = hparam(0.1, help="Softness of that count.", above=0)
    coverage_weight: float = hparam(0.1, help="Weight of the coverage, which is maximized.", low=0)
    similarity_weight: float = hparam(
        0.1, help="Weight of 1 - cosine between the pixel gradients of both views' coverage.", low=0
    )


class NCDG(LossAlgorithm):
    """Neuron coverage: more active neurons, driven by the same pixels in an image and its augmented copy."""

    group = "augmentation"
    source = "Tian et al. 2022"
    supports_scaling = False
    Hparams = NCDGHparams
    hparams: NCDGHparams

    def setup(self) -> None:
        if not _find_relus(self.network):
            raise ValueError("NCDG counts active neurons, but its network has no torch.nn.ReLU layers")
        if self.augment is None:
            self.augment = partial(augment_batch, generator=self.generator)

    def compute_loss(self, batches: Batches) -> Objective:
        x, y, _ = concatenate_batches(batches, self.num_domains)
        assert self.augment is not None
        views = torch.cat([x, self.augment(x).to(x)]).requires_grad_()
        with _record_outputs(_find_relus(self.network)) as activations:
            loss = F.cross_entropy(self.network(views), y.repeat(2))
        coverage = self._compute_coverage(activations)
        hparams = self.hparams
        needs_second_derivative = hparams.similarity_weight > 0
        (gradient,) = torch.autograd.grad(
            coverage.sum(), views, retain_graph=True, create_graph=needs_second_derivative
        )
        image_gradient, copy_gradient = gradient.flatten(1).chunk(2)
        similarity = F.cosine_similarity(image_gradient, copy_gradient, eps=_EPS).mean()
        bonus = hparams.coverage_weight * coverage.mean() - hparams.similarity_weight * (1 - similarity)
        return loss - bonus, {"loss": loss, "coverage": coverage.mean(), "similarity": similarity}

    def _compute_coverage(self, activations: Iterable[Tensor]) -> Tensor:
        """Return the soft share of active neurons, (b,)."""
        scaled = []
        for activation in activations:
            neurons = activation.flatten(2).mean(2) if activation.ndim > 2 else activation
            low, high = neurons.amin(1, keepdim=True), neurons.amax(1, keepdim=True)
            scaled.append((neurons - low) / (high - low + _EPS))
        hparams = self.hparams
        return ((torch.cat(scaled, dim=1) - hparams.threshold) / hparams.temperature).sigmoid().mean(1)


def _find_relus(network: nn.Module) -> list[nn.Module]:
    return [module for module in network.modules() if isinstance(module, nn.ReLU | nn.ReLU6)]


@contextmanager
def _record_outputs(layers: Iterable[nn.Module]) -> Iterator[list[Tensor]]:
    """Yield a list that collects the layers' outputs, in the order of their calls."""
    outputs: list[Tensor] = []
    handles = [layer.register_forward_hook(lambda _, __, output: outputs.append(output)) for layer in layers]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()
