"""A batch, a model and perturbations for one process, or for two that share the batch."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise import LowRankPerturbation, MultiplePerturbation, Perturbation, UniversalPerturbation

SHAPE = (3, 6, 6)
CASES: dict[str, Callable[[], Perturbation]] = {
    "universal": lambda: _build(UniversalPerturbation),
    "multiple": lambda: _build(MultiplePerturbation, count=3, weight_step_size=5.0, ascent="gradient"),
    "low-rank": lambda: _build(LowRankPerturbation, rank=2),
}


def attack(perturbation: Perturbation, part: slice) -> dict[str, Tensor]:
    """Return the state after two attacks on this part of the batch."""
    x, y, domain, model = _make_problem()
    for _ in range(2):
        perturbation.attack(x[part], domain[part], lambda x: F.cross_entropy(model(x), y[part], reduction="none"))
    return {name: tensor.detach() for name, tensor in perturbation.named_parameters()}


def ascend(perturbation: Perturbation, part: slice) -> dict[str, Tensor]:
    """Return the state after two ascents from an ordinary backward pass on this part of the batch."""
    x, y, domain, model = _make_problem()
    for _ in range(2):
        F.cross_entropy(model(perturbation(x[part], domain[part])), y[part]).backward()
        perturbation.ascend_()
    return {name: tensor.detach() for name, tensor in perturbation.named_parameters()}


def _make_problem() -> tuple[Tensor, Tensor, Tensor, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 36, 8), nn.Tanh(), nn.Linear(8, 2))
    # Every other sample is an equal mix of domains, so the mean of both halves is the mean of all.
    return torch.rand(16, *SHAPE), torch.randint(2, (16,)), torch.arange(16) // 2 % 2, model


def _build(kind: type[Perturbation], **settings: object) -> Perturbation:
    generator = torch.Generator().manual_seed(7)
    return kind(SHAPE, num_domains=2, epsilon=0.8, step_size=0.3, generator=generator, **settings)
