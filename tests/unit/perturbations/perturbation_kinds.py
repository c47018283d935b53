"""All kinds of perturbations by name, and losses and measures shared by the tests."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from domainwise.perturbations import (
    LowRankPerturbation,
    MultiplePerturbation,
    Perturbation,
    SampleWisePerturbation,
    UniversalPerturbation,
)

SHAPE = (2, 5, 4)

SAMPLE_WISE = {
    f"sample-wise {start} over {over}": (SampleWisePerturbation, {"start": start, "over": over})
    for start in ("zero", "random", "cube")
    for over in ("sample", "domain")
}
LOW_RANK_SAMPLE_WISE = {
    "sample-wise zero, low rank": (SampleWisePerturbation, {"start": "zero", "rank": 2}),
    "sample-wise random, low rank": (SampleWisePerturbation, {"start": "random", "rank": 2}),
    "sample-wise zero, low rank over domain": (SampleWisePerturbation, {"start": "zero", "over": "domain", "rank": 2}),
}
BY_GRADIENT = {
    "multiple assigned": (MultiplePerturbation, {"weights": "assigned"}),
    "multiple soft": (MultiplePerturbation, {"weights": "soft"}),
    "multiple subspace": (MultiplePerturbation, {"weights": "subspace"}),
    "multiple subspace, no memory": (MultiplePerturbation, {"weights": "subspace", "memory": 0.0}),
}
MIXED_BY_SAMPLE = {
    f"multiple by sample, {unit}": (MultiplePerturbation, {"weights": "sample", "normalized_over": unit})
    for unit in ("perturbation", "stack")
}
ONE_PASS = {
    "universal": (UniversalPerturbation, {}),
    "universal unprojected": (UniversalPerturbation, {"start": "unprojected"}),
    "multiple by domain, perturbation": (MultiplePerturbation, {"weights": "domain"}),
    "multiple by domain, stack": (
        MultiplePerturbation,
        {"weights": "domain", "normalized_over": "stack"},
    ),
    "multiple unprojected": (MultiplePerturbation, {"weights": "domain", "start": "unprojected"}),
    "low-rank factors": (LowRankPerturbation, {"solver": "factors"}),
    "low-rank projected": (LowRankPerturbation, {"solver": "projected"}),
}
# Kinds with a state that attacks change.
KEPT = ONE_PASS | MIXED_BY_SAMPLE | BY_GRADIENT
KINDS: dict[str, tuple[type[Perturbation], dict[str, Any]]] = SAMPLE_WISE | LOW_RANK_SAMPLE_WISE | KEPT
LOW_RANK = [*LOW_RANK_SAMPLE_WISE, "low-rank factors", "low-rank projected"]
UNPROJECTED = [kind for kind in KINDS if "unprojected" in kind]
WITHOUT_DRAWS = [kind for kind in KINDS if "random" not in kind and "cube" not in kind]


def build(kind: str, *, seed: int = 0, count: int = 2, rank: int = 2, double: bool = False, **settings: Any) -> Any:
    """Build a perturbation of this kind with its own generator."""
    of_kind, options = KINDS[kind]
    sizes = {MultiplePerturbation: {"count": count}, LowRankPerturbation: {"rank": rank}}.get(of_kind, {})
    generator = torch.Generator().manual_seed(seed)
    settings = {"shape": SHAPE, "epsilon": 0.5, "step_size": 0.1} | sizes | options | settings
    if settings.get("weights") == "subspace" and settings.get("ascent") == "sign":
        settings["ascent"] = "normalized"  # signs would leave the subspace, which is an error
    perturbation = of_kind(generator=generator, **settings)
    return perturbation.double() if double else perturbation


def linear_loss(slopes: Tensor) -> Callable[[Tensor], Tensor]:
    """A loss whose gradient is constant: the slopes of each sample."""
    return lambda x: (x * slopes).flatten(1).sum(1)


def wavy_loss(slopes: Tensor) -> Callable[[Tensor], Tensor]:
    """A loss whose gradient differs between points and samples."""
    return lambda x: (x * slopes + torch.sin(3 * x + slopes) / 2).flatten(1).sum(1)


def length(points: Tensor, norm: str, batch_dims: int) -> Tensor:
    flat = points.detach().double().flatten(batch_dims)
    return flat.square().sum(-1).sqrt() if norm == "l2" else flat.abs().amax(-1)


def state_of(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of the parameters, and of a subspace's directions."""
    state = dict(module.named_parameters())
    if hasattr(module, "directions"):
        state["directions"] = module.directions
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def pass_once(perturbation: Perturbation, x: Tensor, domain: Tensor, loss: Callable[[Tensor], Tensor]) -> None:
    """Take one one-pass step."""
    loss(perturbation(x, domain)).mean().backward()
    perturbation.ascend_()
