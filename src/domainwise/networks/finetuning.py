"""How a network is fine-tuned: frozen parts, learning rates by depth, low-rank adapters, gradient checkpointing.

All of them work on the featurizer; the classifier is always trained. Parts have the names that they have in the
backbone, such as `layer1` or `blocks.0.attn.qkv`, without what we wrap around it.
"""

import re
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as AnyBatchNorm
from torch.utils.checkpoint import checkpoint

from domainwise.errors import DomainwiseError, suggest_install, unknown_choice
from domainwise.networks.backbones import Backbone
from domainwise.networks.stages import count_stages_above

ALL = "all"
_ATTENTION = ("attn", "attention")


def prepare_network_(
    network: nn.Module,
    *,
    freeze: Sequence[str] = (),
    layer_decay: float | None = None,
    lora: int | None = None,
    lora_targets: Sequence[str] = (),
    gradient_checkpointing: bool = False,
) -> None:
    """Set up how the network is fine-tuned; without arguments, nothing changes. Arguments as in `RunConfig`.

    An optimizer of `Algorithm.build_optimizer` that is built afterwards has the learning rates by depth.
    """
    if freeze:
        freeze_(network, freeze)
    if lora is not None:
        add_lora_(network, lora, lora_targets)
    if layer_decay is not None:
        decay_learning_rates_(network, layer_decay)
    if gradient_checkpointing:
        checkpoint_gradients_(network)


def freeze_(network: nn.Module, patterns: Sequence[str]) -> None:
    """Exclude parts of the featurizer from training; batch norm of a backbone there keeps its statistics as well.

    Args:
        patterns: Names of layers, with everything inside, or of parameters; `*`, `?` and `[0-5]` as in file names.
            `all` is the whole featurizer.
    """
    featurizer = _require_featurizer(network, "freeze")
    backbone = _backbone(featurizer)
    names = [name for name, _ in backbone.named_parameters()]
    for pattern in patterns:
        if pattern != ALL and not any(_matches(name, pattern) for name in names):
            raise _unknown_part(backbone, pattern)
    is_frozen = partial(_matches_any, patterns=patterns)
    for name, parameter in backbone.named_parameters():
        if is_frozen(name):
            parameter.requires_grad_(False)
    for name, module in backbone.named_modules():
        if isinstance(module, AnyBatchNorm) and (is_frozen(name) or is_frozen(f"{name}.weight")):
            module.keeps_statistics = True  # type: ignore[assignment]
    featurizer.train(featurizer.training)


def decay_learning_rates_(network: nn.Module, decay: float) -> None:
    """Let each stage learn `decay` times as fast as the one after it, and the last one `decay` times the full rate.

    Of a ResNet, stages are the stem and its four layers; of a vision transformer, the patch embedding and every block,
    the last one with the final norm (`count_stages_above`). The classifier has the full rate.
    """
    featurizer = _require_featurizer(network, "layer_decay")
    for name, count in count_stages_above(featurizer, _example(network, batch_size=2)).items():
        parent, _, own_name = name.rpartition(".")
        module = featurizer.get_submodule(parent)
        # On the module that owns the parameter, so that copies of it have the same rates.
        module.lr_scales = {**getattr(module, "lr_scales", {}), own_name: decay**count}  # type: ignore[assignment]


def find_lr_scales(module: nn.Module) -> dict[nn.Parameter, float]:
    """Return what the learning rates of parameters are multiplied by; those that are missing have the full rate."""
    return {
        parameter: scale
        for part in module.modules()
        for name, scale in getattr(part, "lr_scales", {}).items()
        if (parameter := part._parameters.get(name)) is not None
    }


def add_lora_(network: nn.Module, rank: int, targets: Sequence[str] = ()) -> None:
    """Freeze the featurizer and add trainable low-rank adapters to linear layers (LoRA, Hu et al. 2021), by peft.

    A layer's W x becomes W x + 2 B A x with B of shape (outputs, rank) and A of shape (rank, inputs): alpha is twice
    the rank. B starts as 0, so the network first computes what it did before.

    Args:
        rank: Rank of the adapters.
        targets: Names of the layers, as for `freeze_`. By default, the linear layers of attention.
    """
    featurizer = _require_featurizer(network, "lora")
    peft = _import_peft()
    backbone = _backbone(featurizer)
    names = _find_targets(backbone, targets)
    freeze_(network, [ALL])
    config = peft.LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="|".join(map(re.escape, names)))
    peft.inject_adapter_in_model(config, backbone)
    # Some networks read the weights of a layer without calling it; an adapter would have no effect there.
    idle = set(names)
    handles = [
        backbone.get_submodule(name).register_forward_hook(lambda *_, name=name: idle.discard(name)) for name in names
    ]
    was_training = featurizer.training
    with torch.no_grad():
        featurizer.eval()(_example(network, batch_size=1))
    featurizer.train(was_training)
    for handle in handles:
        handle.remove()
    if idle:
        first = next(name for name in names if name in idle)
        raise DomainwiseError(
            f"LoRA has no effect on {first} (+{len(idle) - 1} more): the network reads the weights of these layers "
            "without calling them; name others with --lora-target"
        )


def checkpoint_gradients_(network: nn.Module) -> None:
    """Let the stages keep only their inputs for the backward pass, which computes the rest again.

    The results are the same: dropout draws the same numbers again, and batch norm does not see a batch twice.
    """
    featurizer = _require_featurizer(network, "gradient_checkpointing")
    stages = count_stages_above(featurizer, _example(network, batch_size=2))
    # The largest modules that lie within one stage and contain more than a single layer.
    chosen: list[str] = []
    for name, module in featurizer.named_modules():
        if name.startswith(tuple(f"{each}." for each in chosen)) or not any(module.children()):
            continue
        inside = {stage for parameter, stage in stages.items() if not name or parameter.startswith(f"{name}.")}
        if len(inside) == 1 and not isinstance(module, nn.ModuleList | nn.ModuleDict):
            chosen.append(name)
    if not chosen:
        raise DomainwiseError("gradient_checkpointing needs a network with stages of several layers; this one has none")
    for name in chosen:
        module = featurizer.get_submodule(name)
        module.forward = partial(_forward_checkpointed, module, module.forward)


def compile_(network: nn.Module) -> None:
    """Compile the featurizer, or a network that has none, in place. It is compiled when it is first called."""
    featurizer = getattr(network, "featurizer", None)
    (featurizer if isinstance(featurizer, nn.Module) else network).compile()


@contextmanager
def explain_compilation() -> Iterator[None]:
    """Turn errors of torch.compile inside the block into one line."""
    from torch._dynamo.exc import TorchDynamoException

    try:
        yield
    except (TorchDynamoException, RuntimeError) as error:
        text = str(error).strip()
        # Compiled code may fail only in the backward pass; that of second derivatives always does.
        is_compiled = "_aot_autograd" in traceback.extract_tb(error.__traceback__)[-1].filename
        if not isinstance(error, TorchDynamoException) and "torch.compile" not in text and not is_compiled:
            raise
        reason = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
        raise DomainwiseError(f"the network could not be compiled: {reason}; train without --compile") from error


def count_parameters(network: nn.Module) -> tuple[int, int]:
    """Return how many numbers the network consists of, and how many of these are trained."""
    sizes = [(each.numel(), each.requires_grad) for each in network.parameters()]
    return sum(size for size, _ in sizes), sum(size for size, is_trained in sizes if is_trained)


def _require_featurizer(network: nn.Module, setting: str) -> nn.Module:
    featurizer = getattr(network, "featurizer", None)
    if not isinstance(featurizer, nn.Module) or not hasattr(network, "input_shape"):
        raise DomainwiseError(f"{setting} needs a network with a featurizer; use a domainwise.networks.Network")
    return featurizer


def _backbone(featurizer: nn.Module) -> nn.Module:
    return featurizer.model if isinstance(featurizer, Backbone) else featurizer


def _example(network: nn.Module, batch_size: int) -> Tensor:
    parameter = next(network.parameters())
    shape: Any = network.input_shape
    return torch.zeros(batch_size, *shape, device=parameter.device, dtype=parameter.dtype)


def _matches(name: str, pattern: str) -> bool:
    """Return whether the pattern is the name of a part or of something that it lies in."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[:count]), pattern) for count in range(1, len(parts) + 1))


def _matches_any(name: str, patterns: Sequence[str]) -> bool:
    return any(pattern == ALL or _matches(name, pattern) for pattern in patterns)


def _unknown_part(backbone: nn.Module, pattern: str) -> DomainwiseError:
    """Return the error for a name that no parameter has; it lists those at the top, and how many entries lists have."""
    parts: dict[str, list[str]] = {}
    for name, _ in backbone.named_parameters():
        first, *rest = name.split(".")
        entries = parts.setdefault(first, [])
        if rest and rest[0].isdigit() and f"{first}.{rest[0]}" not in entries:
            entries.append(f"{first}.{rest[0]}")
    listed = [f"{first} ({entries[0]} to {entries[-1]})" if entries else first for first, entries in parts.items()]
    return unknown_choice("part to freeze", pattern, [ALL, *parts], ", ".join((ALL, *listed)))


def _find_targets(backbone: nn.Module, targets: Sequence[str]) -> list[str]:
    """Return the names of the linear layers that get an adapter."""
    # torch's own attention reads the weights of the layers inside.
    whole = [name for name, module in backbone.named_modules() if isinstance(module, nn.MultiheadAttention)]
    linear = [
        name
        for name, module in backbone.named_modules()
        if isinstance(module, nn.Linear) and name.rpartition(".")[0] not in whole
    ]
    for target in targets:
        if not any(_matches_any(name, [target]) for name in linear):
            raise unknown_choice("linear layer", target, linear)
    if targets:
        return [name for name in linear if _matches_any(name, targets)]
    parents = {name: name.rpartition(".")[0].rpartition(".")[2].lower() for name in linear}
    found = [name for name in linear if any(word in parents[name] for word in _ATTENTION)]
    if not found:
        raise DomainwiseError(
            "LoRA adapts the linear layers of attention, and this network has none that it can adapt; use a "
            "transformer of timm, or name layers with --lora-target"
        )
    return found


def _import_peft() -> Any:
    try:
        import peft
    except ImportError as error:
        raise DomainwiseError(f"lora needs peft; {suggest_install('lora')}") from error
    return peft


def _forward_checkpointed(module: nn.Module, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    # Weights that `functional_call` has put in place, and hooks, may be gone in the backward pass.
    has_own_weights = all(isinstance(each, nn.Parameter) for each in module.parameters())
    has_hooks = any(each._forward_hooks for each in module.modules() if each is not module)
    if not torch.is_grad_enabled() or not has_own_weights or has_hooks:
        return forward(*args, **kwargs)
    contexts = lambda: (nullcontext(), _CopiedBuffers(module))  # noqa: E731
    return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)


class _CopiedBuffers:
    """Lets a module write to copies of its buffers: a second pass over a batch must not count in its statistics.

    Second derivatives enter it several times.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.originals: list[list[dict[str, Tensor | None]]] = []

    def __enter__(self) -> None:
        self.originals.append([part._buffers for part in self.module.modules()])
        for part in self.module.modules():
            part._buffers = {name: None if buffer is None else buffer.clone() for name, buffer in part._buffers.items()}

    def __exit__(self, *_: object) -> None:
        for part, buffers in zip(self.module.modules(), self.originals.pop(), strict=True):
            part._buffers = buffers
