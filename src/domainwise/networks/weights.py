"""Weights that a backbone starts from: published ones by name, or a file. Read without running any code in it."""

import hashlib
import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.error import URLError

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from domainwise.errors import DomainwiseError, unknown

State = Mapping[str, Tensor]

# What training loops wrap a network in, DistributedDataParallel and our own runs among them.
_WRAPPERS = ("module.", "featurizer.model.")
# DenseNet's published files are older than the rule that a layer's name has no dot in it.
_DOTTED = re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12]\.)")


def is_file(weights: str) -> bool:
    """Whether `weights` is meant as a file rather than as a name."""
    path = Path(weights)
    return path.suffix in (".pth", ".pt", ".bin", ".safetensors", ".tar") or len(path.parts) > 1 or path.is_file()


def read_state(file: Path) -> dict[str, Tensor]:
    """A state dict from a safetensors file or from what `torch.save` wrote, without what it was wrapped in."""
    if not file.is_file():
        raise DomainwiseError(f"there is no weights file {file}")
    try:
        if file.suffix == ".safetensors":
            return _unwrapped(safetensors.torch.load_file(file))
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises what its zip reader and unpickler happen to raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DomainwiseError(f"the weights file {file} cannot be read: {reason}") from error
    for key in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        raise DomainwiseError(f"the weights file {file} holds no state dict, but another {type(content).__name__}")
    return _unwrapped(content)


def named_by_content(file: Path) -> str:
    """A name for the file that says what is in it, not where it lies."""
    try:
        with open(file, "rb") as content:
            return f"{file.name} sha256:{hashlib.file_digest(content, 'sha256').hexdigest()}"
    except OSError as error:
        raise DomainwiseError(f"the weights file {file} cannot be read: {error.strerror}") from error


def published_state(model: str, weights: str) -> State:
    """The weights that torchvision publishes under this name; downloaded once, and checked."""
    import torchvision

    enum = torchvision.models.get_model_weights(model)
    if weights not in enum.__members__:
        choices = [*enum.__members__, "none", "a file"]
        raise unknown(f"weights of {model}", weights, choices)
    try:
        state: State = enum[weights].get_state_dict(progress=True, check_hash=True, weights_only=True)
    except (URLError, OSError, RuntimeError) as error:
        raise DomainwiseError(
            f"the weights {weights} of {model} cannot be downloaded ({error}); give a file as --weights FILE, or "
            "--weights none to train from scratch"
        ) from error
    return state


def load_all_but_head(model: nn.Module, state: State, *, heads: Sequence[str], what: str, name: str) -> None:
    """Load `state` into the model, where it must fit in every tensor.

    Args:
        heads: names of parts that may be there or not: the last layer and what only serves to train the original.
        what, name: the weights and the network, for the error.
    """
    ours = model.state_dict()
    given = OrderedDict(
        (_DOTTED.sub(r"\1\2", key), value)
        for key, value in state.items()
        if not key.startswith(tuple(f"{head}." for head in heads))
    )
    # MNASNet loads nothing that does not say its version. Layers inside know by its lack that names may be old ones.
    given._metadata = {"": {"version": model._version}}  # type: ignore[attr-defined]
    faults = [
        f"their {key} has shape {tuple(given[key].shape)}, not {tuple(ours[key].shape)}"
        for key in ours
        if key in given and given[key].shape != ours[key].shape
    ]
    if not faults:
        lacking, left_over = model.load_state_dict(given, strict=False)
        faults = [f"they lack {key}" for key in lacking] + [f"their {key} has no place" for key in left_over]
    if faults:
        more = f", and {len(faults) - 1} more like that" if len(faults) > 1 else ""
        raise DomainwiseError(f"{what} do not fit {name}: {faults[0]}{more}. Are they of another architecture?")


def _unwrapped(state: dict[str, Tensor]) -> dict[str, Tensor]:
    for wrapper in _WRAPPERS:
        inside = {key.removeprefix(wrapper): value for key, value in state.items() if key.startswith(wrapper)}
        state = inside or state
    return state
