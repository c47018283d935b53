"""Initial weights of a backbone: published ones by name, or a file, which is read without executing code in it."""

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

from domainwise.errors import DomainwiseError, unknown_choice

State = Mapping[str, Tensor]

# Prefixes that training loops add, e.g. DistributedDataParallel and our own runs.
_WRAPPERS = ("module.", "featurizer.model.")
# DenseNet's published files predate the rule that layer names contain no dots.
_DOTTED = re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12]\.)")


def is_weights_file(weights: str) -> bool:
    """Return whether `weights` denotes a file rather than a name."""
    path = Path(weights)
    return path.suffix in (".pth", ".pt", ".bin", ".safetensors", ".tar") or len(path.parts) > 1 or path.is_file()


def read_weights(file: Path) -> dict[str, Tensor]:
    """Read a state dict written by safetensors or `torch.save`, and remove wrappers around it."""
    if not file.is_file():
        raise DomainwiseError(f"weights file {file} not found")
    try:
        if file.suffix == ".safetensors":
            return _unwrap(safetensors.torch.load_file(file))
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever its zip reader and unpickler raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DomainwiseError(f"weights file {file} could not be read: {reason}") from error
    for key in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        raise DomainwiseError(f"weights file {file} contains no state dict but a {type(content).__name__}")
    return _unwrap(content)


def fingerprint_weights(file: Path) -> str:
    """Return the file's name and hash, which identify its content independently of its folder."""
    try:
        with open(file, "rb") as content:
            return f"{file.name} sha256:{hashlib.file_digest(content, 'sha256').hexdigest()}"
    except OSError as error:
        raise DomainwiseError(f"weights file {file} could not be read: {error.strerror}") from error


def load_published_weights(model: str, weights: str) -> State:
    """Return weights published by torchvision; they are downloaded once and verified."""
    import torchvision

    enum = torchvision.models.get_model_weights(model)
    if weights not in enum.__members__:
        choices = [*enum.__members__, "none", "a file"]
        raise unknown_choice(f"weights of {model}", weights, choices)
    try:
        state: State = enum[weights].get_state_dict(progress=True, check_hash=True, weights_only=True)
    except (URLError, OSError, RuntimeError) as error:
        raise DomainwiseError(
            f"weights {weights} of {model} could not be downloaded ({error}); pass --weights FILE, or "
            "--weights none to train from scratch"
        ) from error
    return state


def load_except_head(model: nn.Module, state: State, *, heads: Sequence[str], weights: str, name: str) -> None:
    """Load `state` into the model; all tensors except those of the heads must match.

    Args:
        model: The model without its heads.
        state: The state dict to load.
        heads: Names of parts to skip: the last layer and auxiliary heads.
        weights, name: Names of the weights and of the model, for the error.
    """
    expected = model.state_dict()
    loaded = OrderedDict(
        (_DOTTED.sub(r"\1\2", key), value)
        for key, value in state.items()
        if not key.startswith(tuple(f"{head}." for head in heads))
    )
    # MNASNet refuses weights without a version. Its inner layers infer from a missing one that names may be old.
    loaded._metadata = {"": {"version": model._version}}  # type: ignore[attr-defined]
    faults = [
        f"{key} has shape {tuple(loaded[key].shape)}, expected {tuple(expected[key].shape)}"
        for key in expected
        if key in loaded and loaded[key].shape != expected[key].shape
    ]
    if not faults:
        missing, unexpected = model.load_state_dict(loaded, strict=False)
        faults = [f"missing key {key}" for key in missing] + [f"unexpected key {key}" for key in unexpected]
    if faults:
        raise mismatch_error(weights, name, *faults)


def mismatch_error(weights: str, name: str, *faults: str) -> DomainwiseError:
    """Return the error for weights that do not match the model."""
    more = f" (+{len(faults) - 1} more)" if len(faults) > 1 else ""
    return DomainwiseError(f"weights {weights} do not match {name}: {faults[0]}{more}; check the architecture")


def _unwrap(state: dict[str, Tensor]) -> dict[str, Tensor]:
    for wrapper in _WRAPPERS:
        inside = {key.removeprefix(wrapper): value for key, value in state.items() if key.startswith(wrapper)}
        state = inside or state
    return state
