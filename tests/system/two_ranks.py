"""A batch, a model and perturbations that two processes and one process can both be given."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise import LowRankPerturbation, MultiplePerturbation, Perturbation, UniversalPerturbation

SHAPE = (3, 6, 6)
CASES: dict[str, Callable[[], Perturbation]] = {
    "universal": lambda: _seeded(UniversalPerturbation),
    "multiple": lambda: _seeded(MultiplePerturbation, count=3, weight_step_size=5.0, ascent="gradient"),
    "low-rank": lambda: _seeded(LowRankPerturbation, rank=2),
}


def attacked(perturbation: Perturbation, part: slice) -> dict[str, Tensor]:
    """The state after two attacks on this part of the batch."""
    x, y, domain, model = _problem()
    for _ in range(2):
        perturbation.attack(x[part], domain[part], lambda x: F.cross_entropy(model(x), y[part], reduction="none"))
    return {name: tensor.detach() for name, tensor in perturbation.named_parameters()}


def one_pass(perturbation: Perturbation, part: slice) -> dict[str, Tensor]:
    """The state after two ascents from an ordinary backward on this part of the batch."""
    x, y, domain, model = _problem()
    for _ in range(2):
        F.cross_entropy(model(perturbation(x[part], domain[part])), y[part]).backward()
        perturbation.ascend_()
    return {name: tensor.detach() for name, tensor in perturbation.named_parameters()}


def _problem() -> tuple[Tensor, Tensor, Tensor, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 36, 8), nn.Tanh(), nn.Linear(8, 2))
    # Every other sample has as many of each domain, so the mean over halves is the mean over all.
    return torch.rand(16, *SHAPE), torch.randint(2, (16,)), torch.arange(16) // 2 % 2, model


def _seeded(kind: type[Perturbation], **settings: object) -> Perturbation:
    generator = torch.Generator().manual_seed(7)
    return kind(SHAPE, num_domains=2, epsilon=0.8, step_size=0.3, generator=generator, **settings)
