"""The stages of a featurizer: a few layers, from the first to the last, whose outputs describe what it computes."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd as AnyDropout

MAX_STAGES = 5
_IGNORED = (AnyDropout, nn.Identity, nn.Flatten)

# Outputs by the names of their modules, in the order of the forward pass.
Outputs = dict[str, Tensor]
Part = tuple[str, nn.Module]


def find_stages(featurizer: nn.Module, x: Tensor) -> dict[str, torch.Size]:
    """Return the names of the layers that end a stage, in the order of the forward pass, and their output shapes.

    At first the featurizer is the only part. While there are fewer than five stages, a part with more than half of all
    parameters is replaced by its children. A part with a matrix or a kernel starts a stage; the parts that follow it
    (normalization, activation, pooling) belong to it. To the last stage belong only those without parameters that keep
    the shape, such as an activation. Dropout and flattening belong to none. Of more than five stages, the first, the
    last and three at equal distances are chosen.

    For a ResNet these are the stem and its four layers, for a vision transformer with twelve blocks the patch embedding
    and blocks 3, 6, 9 and 12.

    Args:
        featurizer: In eval mode, because a batch passes through it.
        x: A batch of several images, (b, ...).
    """
    shapes = _trace_shapes(featurizer, x)
    ends = _find_ends(_split(featurizer, shapes), shapes)
    if len(ends) > MAX_STAGES:
        ends = [ends[index * (len(ends) - 1) // (MAX_STAGES - 1)] for index in range(MAX_STAGES)]
    return {name: shapes[name] for name in ends}


def count_stages_above(featurizer: nn.Module, x: Tensor) -> dict[str, int]:
    """Return the number of stages from each parameter's own to the last, which has 1.

    Stages are those of `find_stages` before five of them are chosen: of a vision transformer the patch embedding and
    every block. What follows the last stage, such as a final norm, belongs to it. Parameters that no stage calls, such
    as position embeddings, belong to the stage of the parameter before them, the first ones to the first stage.

    Args:
        featurizer: In any mode, which it keeps.
        x: As for `find_stages`.
    """
    modes = [(part, part.training) for part in featurizer.modules()]
    shapes = _trace_shapes(featurizer.eval(), x)
    for part, was_training in modes:
        part.training = was_training
    parts = _split(featurizer, shapes)
    order = {name: place for place, name in enumerate(shapes)}
    ends = [order[name] for name in _find_ends(parts, shapes)]
    above = {name: max(1, sum(end >= order[name] for end in ends)) for name, _ in parts if name in shapes}
    counts: dict[str, int] = {}
    count = len(ends)
    for name, _ in featurizer.named_parameters():
        count = next((above[part] for part in above if not part or name.startswith(f"{part}.")), count)
        counts[name] = count
    return counts


def _split(featurizer: nn.Module, shapes: Mapping[str, torch.Size]) -> list[Part]:
    """Return the parts of the featurizer, split until there are five stages or no part is the largest by far."""
    parts: list[Part] = [("", featurizer)]
    while len(_find_ends(parts, shapes)) < MAX_STAGES:
        largest = max(parts, key=_count_parameters)
        children = list(_list_children(*largest, shapes))
        is_dominant = 2 * _count_parameters(largest) > _count_parameters(("", featurizer))
        if not is_dominant or not _find_ends(children, shapes):
            break
        place = parts.index(largest)
        parts[place : place + 1] = children
    return parts


@contextmanager
def record_outputs(module: nn.Module, names: Iterable[str]) -> Iterator[Outputs]:
    """Record the outputs of the named submodules in the forward pass inside. The hooks are removed on exit."""
    outputs: Outputs = {}

    def record(name: str) -> Any:
        return lambda _module, _inputs, output: outputs.__setitem__(name, output)

    handles = [module.get_submodule(name).register_forward_hook(record(name)) for name in names]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def _trace_shapes(featurizer: nn.Module, x: Tensor) -> dict[str, torch.Size]:
    """Return the output shapes of all modules that are called once and map a batch to one tensor, in order."""
    calls: list[tuple[str, Any]] = []

    def record(name: str) -> Any:
        return lambda _module, _inputs, output: calls.append((name, output))

    handles = [module.register_forward_hook(record(name)) for name, module in featurizer.named_modules()]
    try:
        featurizer(x)
    finally:
        for handle in handles:
            handle.remove()
    names = [name for name, _ in calls]
    return {
        name: output.shape
        for name, output in calls
        if names.count(name) == 1 and isinstance(output, Tensor) and output.ndim > 1 and len(output) == len(x)
    }


def _list_children(name: str, module: nn.Module, shapes: Mapping[str, torch.Size]) -> Iterator[Part]:
    """Yield the children; in place of those that are never called, such as a `ModuleList`, their own children."""
    for own_name, child in module.named_children():
        child_name = f"{name}.{own_name}" if name else own_name
        if child_name in shapes:
            yield child_name, child
        else:
            yield from _list_children(child_name, child, shapes)


def _find_ends(parts: Iterable[Part], shapes: Mapping[str, torch.Size]) -> list[str]:
    """Return the name of the last part of each stage."""
    order = list(shapes)
    called = sorted(
        ((name, part) for name, part in parts if name in shapes and not isinstance(part, _IGNORED)),
        key=lambda part: order.index(part[0]),
    )
    starts = [index for index, (_, part) in enumerate(called) if any(each.ndim > 1 for each in part.parameters())]
    if not starts:
        return []
    last = starts[-1]
    for name, part in called[starts[-1] + 1 :]:
        if any(True for _ in part.parameters()) or shapes[name] != shapes[called[last][0]]:
            break
        last += 1
    return [called[index][0] for index in (*(start - 1 for start in starts[1:]), last)]


def _count_parameters(part: Part) -> int:
    return sum(parameter.numel() for parameter in part[1].parameters())
