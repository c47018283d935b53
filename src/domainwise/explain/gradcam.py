"""Grad-CAM (Selvaraju et al. 2017) for any image classifier, and the layer it is computed at."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from captum.attr import LayerAttribution, LayerGradCam  # type: ignore[import-untyped]
from torch import Tensor, nn

from domainwise.algorithms.base import eval_mode
from domainwise.errors import DomainwiseError, unknown_choice

Layout = Literal["channels_first", "channels_last", "tokens"]
# These also occur inside attention, where their output only looks like a map.
_NEVER_MAPS = (nn.Identity, nn.Dropout, nn.Softmax)
_MAX_EXTRA_TOKENS = 16
# Maps with fewer cells per side are hardly finer than the whole image.
_MIN_SIDE = 4
# Bounds the memory of a backward pass.
_BATCH_SIZE = 64


@dataclass(frozen=True)
class TargetLayer:
    """A layer whose output is a map of the image, and how the map's cells are laid out.

    Args:
        name: name in `network.named_modules()`.
        layout: layout of the output: (b, C, h, w), (b, h, w, C), or tokens (b, extra + h w, C).
        height: number of rows h.
        width: number of columns w.
        extra: number of tokens in front of the image's: class and register tokens.
    """

    name: str
    layout: Layout
    height: int
    width: int
    extra: int = 0

    def __str__(self) -> str:
        return f"{self.name}, {self.height} x {self.width} cells"

    @property
    def is_coarse(self) -> bool:
        """Whether the map has too few cells to locate anything."""
        return min(self.height, self.width) < _MIN_SIDE

    def to_map(self, output: Tensor) -> Tensor:
        """Return the output as (b, C, h, w)."""
        if self.layout == "channels_first":
            return output
        if self.layout == "channels_last":
            return output.permute(0, 3, 1, 2)
        tokens = output[:, self.extra :].transpose(1, 2)
        return tokens.reshape(*tokens.shape[:2], self.height, self.width)

    def from_map(self, cells: Tensor, output: Tensor) -> Tensor:
        """Return `output` with its cells replaced by `cells`, (b, C, h, w)."""
        if self.layout == "channels_first":
            return cells
        if self.layout == "channels_last":
            return cells.permute(0, 2, 3, 1)
        return torch.cat((output[:, : self.extra], cells.flatten(2).transpose(1, 2)), 1)


def find_target_layer(network: nn.Module, input_shape: Sequence[int], name: str | None = None) -> TargetLayer:
    """Find the last layer whose output is a map of more than one cell that the logits depend on.

    In a transformer that classifies by its class token, no other token of the last block's output matters. The layer is
    then the last one that the class token reads: the norm at the start of that block.

    Args:
        input_shape: shape of one image, (C, H, W).
        name: use this layer instead, a name in `network.named_modules()` such as `featurizer.model.layer4`.

    Raises:
        DomainwiseError: If the network has no such layer, or the named layer is not one.
    """
    names = [each for each, _ in network.named_modules() if each]
    if name is not None and name not in names:
        raise unknown_choice("layer", name, names, summary="the names in network.named_modules()")
    layers = _find_map_layers(network, input_shape, name)
    if name is not None and name not in layers:
        usable = list(_find_map_layers(network, input_shape)) or ["none"]
        raise DomainwiseError(
            f"the output of layer {name!r} is not a map of the image with more than one cell; the last usable layers: "
            f"{', '.join(usable[-5:])}"
        )
    if not layers:
        size = " x ".join(map(str, input_shape[1:]))
        raise DomainwiseError(
            f"Grad-CAM needs a layer whose output is a map of the image; this network has none for {size} images; use "
            "a convolutional network, a vision transformer or larger images"
        )
    influential = [layer for layer, is_influential in layers.values() if is_influential]
    if name is not None and not influential:
        raise DomainwiseError(f"the logits do not depend on the cells of layer {name!r}; choose an earlier layer")
    # With a classifier of zeros no layer is influential.
    return influential[-1] if influential else next(reversed(layers.values()))[0]


def find_finer_layer(network: nn.Module, input_shape: Sequence[int]) -> TargetLayer | None:
    """Find the last layer whose map is not coarse, or None; of the layers with the same grid, an outermost module."""
    layers = [layer for layer, is_influential in _find_map_layers(network, input_shape).values() if is_influential]
    fine = [layer for layer in layers if not layer.is_coarse]
    last = [layer for layer in fine if (layer.height, layer.width) == (fine[-1].height, fine[-1].width)]
    return min(reversed(last), key=lambda layer: layer.name.count("."), default=None)


def _find_map_layers(
    network: nn.Module, input_shape: Sequence[int], name: str | None = None
) -> dict[str, tuple[TargetLayer, bool]]:
    """Return the layers whose output is a map, by order of last call, and whether the logits depend on the cells."""
    with torch.inference_mode(False), torch.enable_grad(), eval_mode(network):
        # Seeded noise, so that the layer depends on the network alone and not on a batch.
        noise = torch.rand(2, *input_shape, generator=torch.Generator().manual_seed(0))
        parameter = next(network.parameters(), noise)
        # Gradients flow from the input, so frozen weights do not stop them.
        x = noise.to(parameter).requires_grad_()
        with _record_outputs(network, input_shape, name) as outputs:
            score = network(x).max(1).values.sum()
        tensors = [output for _, output in outputs.values()]
        gradients = torch.autograd.grad(score, tensors, allow_unused=True) if tensors else ()
    return {
        layer.name: (layer, gradient is not None and bool(layer.to_map(gradient).abs().sum(1).count_nonzero() > 1))
        for (layer, _), gradient in zip(outputs.values(), gradients, strict=True)
    }


@contextmanager
def _record_outputs(
    network: nn.Module, input_shape: Sequence[int], name: str | None
) -> Iterator[dict[str, tuple[TargetLayer, Tensor]]]:
    """Yield a dict that the network fills with its map layers and their outputs as it runs."""
    outputs: dict[str, tuple[TargetLayer, Tensor]] = {}
    grids: list[tuple[int, int]] = []
    has_weights = False

    def record(layer_name: str, module: nn.Module, output: Any) -> None:
        nonlocal has_weights
        # Until a layer with weights has run, outputs are the image itself.
        has_weights = has_weights or next(module.parameters(), None) is not None
        # A layer used several times counts where it is used last.
        outputs.pop(layer_name, None)
        if not has_weights or not isinstance(output, Tensor):
            return
        layer = _detect_layout(layer_name, output.shape, input_shape, grids)
        if layer is None:
            return
        if layer.layout == "channels_first":
            grids.append((layer.height, layer.width))
        if layer_name == name or (name is None and _is_candidate(module, layer.layout)):
            outputs[layer_name] = (layer, output)

    hooks = [
        module.register_forward_hook(lambda module, _, output, name=layer_name: record(name, module, output))
        for layer_name, module in network.named_modules()
        if layer_name
    ]
    try:
        yield outputs
    finally:
        for hook in hooks:
            hook.remove()


def _is_candidate(module: nn.Module, layout: Layout) -> bool:
    if layout == "channels_first":
        return not isinstance(module, _NEVER_MAPS)
    # Blocks and norms see a transformer's full residual stream; single layers inside a block see only their update.
    return "Norm" in type(module).__name__ or next(module.children(), None) is not None


def _detect_layout(
    name: str, shape: Sequence[int], input_shape: Sequence[int], grids: Sequence[tuple[int, int]]
) -> TargetLayer | None:
    """Return how an output of this shape holds a map, or None; `grids` are the sizes of earlier maps."""
    if len(shape) == 3:
        # Tokens were made from an earlier map, which gives their grid.
        sizes = [(h, w) for h, w in grids if 0 <= shape[1] - h * w <= _MAX_EXTRA_TOKENS]
        if not sizes:
            return None
        h, w = max(sizes, key=lambda size: size[0] * size[1])
        return TargetLayer(name, "tokens", h, w, shape[1] - h * w)
    if len(shape) != 4:
        return None
    _, height, width = input_shape
    _, first, second, third = shape
    # A map has the proportions of the image; padding may add a cell.
    if second > 1 and third > 1 and abs(second * width / height - third) <= 1:
        return TargetLayer(name, "channels_first", second, third)
    if first > 1 and second > 1 and first * width == second * height:
        return TargetLayer(name, "channels_last", first, second)
    return None


def compute_gradcam(
    network: nn.Module, images: Tensor, classes: Tensor | None = None, layer: TargetLayer | str | None = None
) -> Tensor:
    """Compute Grad-CAM heat maps.

    Each map is the layer's output weighted by the mean gradient of the class's logit, summed over channels, after a
    ReLU, and upsampled bilinearly. The network is explained in eval mode and left as it was.

    Args:
        images: (b, C, H, W) in [0, 1].
        classes: class to explain per image, (b,) (default: the predicted one).
        layer: layer to explain (default: `find_target_layer`, which costs one pass through the network).

    Returns:
        (b, H, W), scaled so that the maximum of each map is 1. A map without heat is all zeros.
    """
    if classes is not None and classes.shape != images.shape[:1]:
        raise DomainwiseError(
            f"classes must have one entry per image ({len(images)}), got shape {tuple(classes.shape)}"
        )
    if not isinstance(layer, TargetLayer):
        layer = find_target_layer(network, images.shape[1:], layer)
    size = (images.shape[2], images.shape[3])
    maps = [images.new_empty(0, *size)]
    with torch.inference_mode(False), eval_mode(network), _expose_map(network, layer) as cells:
        for start in range(0, len(images), _BATCH_SIZE):
            targets = None if classes is None else classes[start : start + _BATCH_SIZE].to(images.device).clone()
            # Copied, because tensors made in inference mode cannot take part in autograd.
            heat = _compute_heat(network, images[start : start + _BATCH_SIZE].detach().clone(), targets, cells)
            maps.append(LayerAttribution.interpolate(heat, size, "bilinear").squeeze(1))
    return _scale_to_one(torch.cat(maps))


def _compute_heat(network: nn.Module, images: Tensor, classes: Tensor | None, cells: nn.Module) -> Tensor:
    """Return (b, 1, h, w), at the layer's own resolution."""

    def highest_logit(x: Tensor) -> Tensor:
        highest: Tensor = network(x).max(1).values
        return highest

    method = LayerGradCam(highest_logit if classes is None else network, cells)
    heat: Tensor = method.attribute(images, target=classes, relu_attributions=True)
    return heat.detach()


def _scale_to_one(maps: Tensor) -> Tensor:
    highest = maps.amax((1, 2), keepdim=True)
    return torch.where(highest > 0, maps / highest, 0)


@contextmanager
def _expose_map(network: nn.Module, layer: TargetLayer) -> Iterator[nn.Module]:
    """Yield a module that the layer's output passes through as (b, C, h, w), the layout captum expects."""
    cells = nn.Identity()

    def pass_through(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        # Nothing before the layer needs a gradient, so its activations need not be kept.
        output = output.detach()
        return layer.from_map(cells(layer.to_map(output)), output)

    hook = network.get_submodule(layer.name).register_forward_hook(pass_through)
    try:
        yield cells
    finally:
        hook.remove()
