"""ARM: a network that adapts to a batch through a context channel (Zhang et al. 2020, ARM-CML)."""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

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
    repeat_indices,
    require_features,
)
from domainwise.hparams import PHOTO_DATASETS, Choice, DatasetSetting, Hparams, hparam
from domainwise.networks import Network
from domainwise.perturbations.device import send_to

_WIDTH, _KERNEL = 64, 5


@dataclass(frozen=True)
class ARMHparams(Hparams):
    BY_DATASET = (DatasetSetting("batch_size", 8, Choice((8,)), PHOTO_DATASETS),)

    train_context: bool = hparam(
        True, help="Train the context network; false: it keeps its initial weights, as in DomainBed."
    )


class ContextNetwork(nn.Module):
    """A network whose first layer also sees the mean context of its batch, as one more channel of the image.

    A layer is linear in its input channels, so the new channel is a layer of its own, and its output is added to that
    of the network's first layer, which keeps its weights and their names.

    Args:
        network: A network whose first layer is a convolution, or a linear layer on flattened images.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        parts = require_features(network, "ARM")
        self.featurizer, self.classifier = parts.featurizer, parts.classifier
        self.input_shape, self.num_features = parts.input_shape, parts.num_features
        self.layer_name = find_first_layer(parts)
        self.context = build_context(self.input_shape[0]).to(**factory_kwargs(network))
        self.channel = build_channel(self.featurizer.get_submodule(self.layer_name), self.input_shape)

    def forward(self, x: Tensor, sizes: Sequence[int] = ()) -> Tensor:
        """Return the logits. `sizes` are those of consecutive support sets; without, all of `x` is one."""
        support = list(sizes) or [len(x)]

        def add_channel(layer: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> Tensor:
            # The layer's input is normalized, `x` is not.
            is_convolution = isinstance(layer, nn.Conv2d)
            images = given[0] if is_convolution else given[0].unflatten(1, self.input_shape)
            contexts = torch.stack([part.mean(0) for part in self.context(images).split(support)])
            added: Tensor = self.channel(contexts if is_convolution else contexts.flatten(1))
            return output + added.index_select(0, send_to(added.device, repeat_indices(support)))

        hook = self.featurizer.get_submodule(self.layer_name).register_forward_hook(add_channel)
        try:
            logits: Tensor = self.classifier(self.featurizer(x))
        finally:
            hook.remove()
        return logits


class ARM(LossAlgorithm):
    """Adaptive risk minimization: the network also sees a summary of its batch, so it can adapt to the domain."""

    group = "meta-learning"
    source = "Zhang et al. 2020"
    needs_features = True
    Hparams = ARMHparams
    hparams: ARMHparams
    network: ContextNetwork

    def setup(self) -> None:
        self.network = ContextNetwork(self.network)
        self.network.context.requires_grad_(self.hparams.train_context)
        self.optimizer = self.build_optimizer(
            parameter
            for name, parameter in self.network.named_parameters()
            if self.hparams.train_context or not name.startswith("context.")
        )

    def compute_loss(self, batches: Batches) -> Objective:
        x, y, _ = concatenate_batches(batches, self.num_domains)
        loss = F.cross_entropy(self.network(x, [len(labels) for _, labels in batches if len(labels)]), y)
        return loss, {"loss": loss}


def build_context(channels: int) -> nn.Sequential:
    """Return the network that maps images (b, channels, H, W) to contexts (b, 1, H, W)."""

    def convolve(inputs: int, outputs: int, bias: bool) -> nn.Conv2d:
        return nn.Conv2d(inputs, outputs, _KERNEL, padding=_KERNEL // 2, bias=bias)

    # Batch norm cancels a bias, which Adam would then move by rounding errors alone.
    return nn.Sequential(
        *(convolve(channels, _WIDTH, bias=False), nn.BatchNorm2d(_WIDTH), nn.ReLU()),
        *(convolve(_WIDTH, _WIDTH, bias=False), nn.BatchNorm2d(_WIDTH), nn.ReLU()),
        convolve(_WIDTH, 1, bias=True),
    )


def find_first_layer(network: Network) -> str:
    """Return the name, within the featurizer, of the first layer with weights; raise an error if it sees no image."""
    shape = network.input_shape
    calls: list[tuple[str, nn.Module, tuple[int, ...]]] = []

    def record_as(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        return lambda layer, given: calls.append((name, layer, tuple(given[0].shape[1:])))

    layers = [
        (name, layer)
        for name, layer in network.featurizer.named_modules()
        if not any(layer.children()) and any(True for _ in layer.parameters())
    ]
    hooks = [layer.register_forward_pre_hook(record_as(name)) for name, layer in layers]
    try:
        with eval_mode(network), torch.no_grad():
            network.featurizer(torch.zeros(1, *shape, **factory_kwargs(network)))
    finally:
        for hook in hooks:
            hook.remove()
    name, layer, seen = calls[0] if calls else ("", network.featurizer, ())
    is_convolution = isinstance(layer, nn.Conv2d) and layer.groups == 1 and seen[:1] == shape[:1]
    is_linear = isinstance(layer, nn.Linear) and len(shape) == 3 and seen == (math.prod(shape),)
    if not (is_convolution or is_linear):
        raise ValueError(
            "ARM adds a channel to the image and needs a network that starts with a convolution, or with a linear "
            f"layer on flattened images, got {type(layer).__name__} with inputs of shape {seen}"
        )
    return name


def build_channel(layer: nn.Module, input_shape: Sequence[int]) -> nn.Module:
    """Return the layer for one more input channel. It starts with the weights of the first channel."""
    channel: Any = copy.deepcopy(layer)
    if isinstance(layer, nn.Conv2d):
        channel.in_channels = 1
    else:
        channel.in_features = math.prod(input_shape[1:])
    first = channel.weight.detach()[:, : getattr(channel, "in_features", 1)]
    channel.weight, channel.bias = nn.Parameter(first.clone()), None
    return cast(nn.Module, channel)
