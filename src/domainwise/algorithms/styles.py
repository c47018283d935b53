"""Training on other styles: the means and standard deviations of a layer's channels change, shared by MixStyle and DSU.

Layers change only inside the pass that trains: forward hooks are added before it and removed after it.
"""

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

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
from domainwise.networks.stages import MAX_STAGES, find_stages
from domainwise.perturbations.base import draw_noise

EPS = 1e-6


@dataclass(frozen=True)
class StyleHparams(Hparams):
    """The hyperparameters that MixStyle and DSU have in common."""

    probability: float = hparam(
        0.5,
        help="Probability that a stage changes in an update; each has its own draw.",
        search=Choice((0.25, 0.5, 0.75)),
        low=0,
        high=1,
    )
    stages: int | None = hparam(None, help="Number of stages that change, counted from the input; none: all.", low=1)
    stem: bool = hparam(True, help="Count the stem of a backbone, the first of its five stages, as a stage.")


class StyleAlgorithm(LossAlgorithm):
    """ERM on features in other styles. Subclasses say which."""

    group = "augmentation"
    hparams: StyleHparams

    def setup(self) -> None:
        shape = self.input_shape
        if shape is None or len(shape) != 3:
            name = type(self).__name__
            raise ValueError(f"{name} needs images; pass input_shape=(channels, height, width), got {shape}")
        with eval_mode(self.network):
            stages = list(
                find_stages(self._featurizer(), torch.zeros(3, *shape, **factory_kwargs(self.network))).items()
            )
        if len(stages) == MAX_STAGES and not self.hparams.stem:
            stages = stages[1:]
        # Channels need several places to have a standard deviation.
        maps = [name for name, (_, *rest) in stages if len(rest) == 3 and math.prod(rest[1:]) > 1]
        # Names of layers of the featurizer. If there are none, the images themselves change.
        self.layers = maps[: self.hparams.stages]

    @abstractmethod
    def restyle(self, features: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return the features (b, C, H, W) in another style.

        Args:
            sizes: Number of samples per domain, in their order.
        """

    def compute_loss(self, batches: Batches) -> Objective:
        x, y, _ = concatenate_batches(batches, self.num_domains)
        sizes = [len(labels) for _, labels in batches]
        if not self.layers and self._draw_choice():
            x = self._restyle(x, sizes).clamp(0, 1)
        with self._restyled([layer for layer in self.layers if self._draw_choice()], sizes):
            loss = F.cross_entropy(self.network(x), y)
        return loss, {"loss": loss}

    def _draw_choice(self) -> bool:
        # Drawn on the host, so that the device is not waited for.
        draw = draw_noise("uniform", (), like=torch.empty(0), generator=self.generator)
        return draw.item() < self.hparams.probability

    @contextmanager
    def _restyled(self, layers: Sequence[str], sizes: Sequence[int]) -> Iterator[None]:
        """Context in which the outputs of these layers have another style."""

        def restyle(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
            return self._restyle(output, sizes)

        modules = [self._featurizer().get_submodule(layer) for layer in layers]
        handles = [module.register_forward_hook(restyle) for module in modules]
        try:
            # Compiled code may ignore hooks, or keep them after they are removed.
            with torch.compiler.set_stance("force_eager") if layers else nullcontext():
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _restyle(self, features: Tensor, sizes: Sequence[int]) -> Tensor:
        # Squares of half-precision features may overflow.
        with torch.autocast(features.device.type, enabled=False):
            precise = features.to(torch.promote_types(features.dtype, torch.float32))
            return self.restyle(precise, sizes).to(features.dtype)

    def _featurizer(self) -> nn.Module:
        featurizer: nn.Module = getattr(self.network, "featurizer", self.network)
        return featurizer


def compute_style(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the standard deviation of each sample's channels, (b, C, 1, 1)."""
    variance, mean = torch.var_mean(features, (2, 3), correction=0, keepdim=True)
    return mean, (variance + EPS).sqrt()
