"""Grad-CAM: where in an image a network finds what speaks for a class."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from captum.attr import LayerAttribution, LayerGradCam  # type: ignore[import-untyped]
from torch import Tensor, nn

from domainwise.algorithms.base import evaluating
from domainwise.errors import DomainwiseError
from domainwise.explain.layers import MapLayer, map_layer

# Bounds the memory that a backward pass takes.
_BATCH = 64


def heat_maps(
    network: nn.Module, images: Tensor, classes: Tensor | None = None, layer: MapLayer | str | None = None
) -> Tensor:
    """Maps (b, H, W) from 0 to 1, the hottest place of each at 1; a map without heat is all zeros.

    Each is the layer's map weighted by the mean gradient of the class's logit, summed over channels, without what is
    negative, and upsampled bilinearly. The network is left as it was, and is explained in eval mode.

    Args:
        images: (b, C, H, W) in [0, 1].
        classes: (b,), the class to explain in each image; by default the one that the network predicts.
        layer: by default the one that `map_layer` finds; finding it anew takes a pass through the network.
    """
    if classes is not None and classes.shape != images.shape[:1]:
        raise DomainwiseError(f"classes must name one class an image, {len(images)}, not {tuple(classes.shape)}")
    if not isinstance(layer, MapLayer):
        layer = map_layer(network, images.shape[1:], layer)
    size = (images.shape[2], images.shape[3])
    maps = [images.new_empty(0, *size)]
    with torch.inference_mode(False), evaluating(network), _as_layer(network, layer) as cells:
        for start in range(0, len(images), _BATCH):
            chosen = None if classes is None else classes[start : start + _BATCH].to(images.device).clone()
            # A copy, since tensors of inference mode take no part in gradients.
            heat = _heat(network, images[start : start + _BATCH].detach().clone(), chosen, cells)
            maps.append(LayerAttribution.interpolate(heat, size, "bilinear").squeeze(1))
    return _scaled(torch.cat(maps))


def _heat(network: nn.Module, images: Tensor, classes: Tensor | None, cells: nn.Module) -> Tensor:
    """(b, 1, h, w), at the layer's own resolution."""

    def highest_logit(x: Tensor) -> Tensor:
        highest: Tensor = network(x).max(1).values
        return highest

    method = LayerGradCam(highest_logit if classes is None else network, cells)
    heat: Tensor = method.attribute(images, target=classes, relu_attributions=True)
    return heat.detach()


def _scaled(maps: Tensor) -> Tensor:
    highest = maps.amax((1, 2), keepdim=True)
    return torch.where(highest > 0, maps / highest, 0)


@contextmanager
def _as_layer(network: nn.Module, layer: MapLayer) -> Iterator[nn.Module]:
    """A module that the layer's output passes through as (b, C, h, w), which is what captum takes for a map."""
    cells = nn.Identity()

    def pass_through(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        # Nothing before the layer needs a gradient, nor need its activations be kept for one.
        output = output.detach()
        return layer.from_map(cells(layer.to_map(output)), output)

    hook = network.get_submodule(layer.name).register_forward_hook(pass_through)
    try:
        yield cells
    finally:
        hook.remove()
