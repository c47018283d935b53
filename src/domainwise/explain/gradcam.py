"""Which layer Grad-CAM looks at: the last one whose output is a map of the image that the logits depend on."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from captum.attr import LayerAttribution, LayerGradCam  # type: ignore[import-untyped]
from torch import Tensor, nn

from domainwise.algorithms.base import eval_mode
from domainwise.errors import DomainwiseError, unknown

Layout = Literal["channels_first", "channels_last", "tokens"]
# These stand inside attention too, where what they are given only looks like a map.
_NO_MAPS = (nn.Identity, nn.Dropout, nn.Softmax)
_MOST_EXTRA_TOKENS = 16


@dataclass(frozen=True)
class MapLayer:
    """A layer by name, and how the cells of the image lie in its output.

    Args:
        layout: of the output, (b, C, h, w), (b, h, w, C), or a row of tokens (b, extra + h w, C).
        extra: tokens in front of those of the image: for the class, or registers.
    """

    name: str
    layout: Layout
    height: int
    width: int
    extra: int = 0

    def to_map(self, output: Tensor) -> Tensor:
        """The output as (b, C, h, w)."""
        if self.layout == "channels_first":
            return output
        if self.layout == "channels_last":
            return output.permute(0, 3, 1, 2)
        tokens = output[:, self.extra :].transpose(1, 2)
        return tokens.reshape(*tokens.shape[:2], self.height, self.width)

    def from_map(self, cells: Tensor, output: Tensor) -> Tensor:
        """What `output` was, with `cells` in the place of its own."""
        if self.layout == "channels_first":
            return cells
        if self.layout == "channels_last":
            return cells.permute(0, 2, 3, 1)
        return torch.cat((output[:, : self.extra], cells.flatten(2).transpose(1, 2)), 1)


def map_layer(network: nn.Module, input_shape: Sequence[int], name: str | None = None) -> MapLayer:
    """The layer of that name, or else the last whose output is a map of more than one cell.

    In a transformer that classifies by a token of its own nothing depends on the other tokens of the last block's
    output; there it is the last layer that the class token still reads, the norm at that block's start.

    Args:
        input_shape: of one image, (C, H, W).
        name: as in `network.named_modules()`, like `featurizer.model.layer4`.
    """
    names = [each for each, _ in network.named_modules() if each]
    if name is not None and name not in names:
        raise unknown("layer", name, names, shown="the names in network.named_modules()")
    maps = _maps(network, input_shape, name)
    if name is not None and name not in maps:
        usable = list(_maps(network, input_shape)) or ["none"]
        raise DomainwiseError(
            f"the output of layer {name!r} is no map of the image of more than one cell; the last that are: "
            f"{', '.join(usable[-5:])}"
        )
    if not maps:
        size = " x ".join(map(str, input_shape[1:]))
        raise DomainwiseError(
            f"Grad-CAM needs a layer whose output is a map of the image, and this network has none for images of {size}"
            ": take a convolutional network or a vision transformer, or larger images"
        )
    read = [layer for layer, is_read in maps.values() if is_read]
    if name is not None and not read:
        raise DomainwiseError(f"no place in the output of layer {name!r} has an influence on the logits")
    # A classifier of zeros reads nothing anywhere.
    return read[-1] if read else next(reversed(maps.values()))[0]


def _maps(network: nn.Module, input_shape: Sequence[int], name: str | None = None) -> dict[str, tuple[MapLayer, bool]]:
    """Layers whose output is a map, in the order of their last call, and whether the logits depend on its cells."""
    with torch.inference_mode(False), torch.enable_grad(), eval_mode(network):
        # Noise from a seed, so that the choice is the network's and not that of one batch.
        noise = torch.rand(2, *input_shape, generator=torch.Generator().manual_seed(0))
        parameter = next(network.parameters(), noise)
        # Gradients that flow from the image on need none of the weights'.
        x = noise.to(parameter).requires_grad_()
        with _watched(network, input_shape, name) as outputs:
            score = network(x).max(1).values.sum()
        tensors = [output for _, output in outputs.values()]
        gradients = torch.autograd.grad(score, tensors, allow_unused=True) if tensors else ()
    return {
        layer.name: (layer, gradient is not None and bool(layer.to_map(gradient).abs().sum(1).count_nonzero() > 1))
        for (layer, _), gradient in zip(outputs.values(), gradients, strict=True)
    }


@contextmanager
def _watched(
    network: nn.Module, input_shape: Sequence[int], wanted: str | None
) -> Iterator[dict[str, tuple[MapLayer, Tensor]]]:
    """Fills what it yields as the network runs."""
    found: dict[str, tuple[MapLayer, Tensor]] = {}
    grids: list[tuple[int, int]] = []
    has_weights = False

    def watch(name: str, module: nn.Module, output: Any) -> None:
        nonlocal has_weights
        # Until a layer with weights has run, an output is the image itself.
        has_weights = has_weights or next(module.parameters(), None) is not None
        # A layer that is used several times counts where it is used last.
        found.pop(name, None)
        if not has_weights or not isinstance(output, Tensor):
            return
        layer = _layout_of(name, output.shape, input_shape, grids)
        if layer is None:
            return
        if layer.layout == "channels_first":
            grids.append((layer.height, layer.width))
        if name == wanted or (wanted is None and _may_be_chosen(module, layer.layout)):
            found[name] = (layer, output)

    hooks = [
        module.register_forward_hook(lambda module, _, output, name=name: watch(name, module, output))
        for name, module in network.named_modules()
        if name
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _may_be_chosen(module: nn.Module, layout: Layout) -> bool:
    if layout == "channels_first":
        return not isinstance(module, _NO_MAPS)
    # Blocks and norms see all that a transformer knows; single layers inside a block only what it adds.
    return "Norm" in type(module).__name__ or next(module.children(), None) is not None


def _layout_of(
    name: str, shape: Sequence[int], input_shape: Sequence[int], grids: Sequence[tuple[int, int]]
) -> MapLayer | None:
    """How an output of this shape holds a map, if it does; `grids` are the sizes of the maps before it."""
    if len(shape) == 3:
        # Tokens came out of a map, by which their grid is known.
        fitting = [(h, w) for h, w in grids if 0 <= shape[1] - h * w <= _MOST_EXTRA_TOKENS]
        if not fitting:
            return None
        h, w = max(fitting, key=lambda grid: grid[0] * grid[1])
        return MapLayer(name, "tokens", h, w, shape[1] - h * w)
    if len(shape) != 4:
        return None
    _, height, width = input_shape
    _, first, second, third = shape
    # A map has the proportions of the image; padding may add a cell.
    if second > 1 and third > 1 and abs(second * width / height - third) <= 1:
        return MapLayer(name, "channels_first", second, third)
    if first > 1 and second > 1 and first * width == second * height:
        return MapLayer(name, "channels_last", first, second)
    return None


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
    with torch.inference_mode(False), eval_mode(network), _as_layer(network, layer) as cells:
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
