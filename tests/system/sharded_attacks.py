"""A batch, a model and perturbations for one process, or for two that share the batch."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise import (
    LowRankPerturbation,
    MultiplePerturbation,
    Perturbation,
    SampleWisePerturbation,
    UniversalPerturbation,
)
from domainwise.perturbations import FeaturePrior, FilterPrior, SpectrumPrior, TonePrior

SHAPE = (3, 6, 6)
CASES: dict[str, Callable[[], Perturbation]] = {
    "universal": lambda: _build(UniversalPerturbation),
    "universal, raw gradients": lambda: _build(UniversalPerturbation, ascent="gradient"),
    "universal, sums": lambda: _build(UniversalPerturbation, ascent="gradient", reduction="sum"),
    "sample-wise, raw gradients": lambda: _build(SampleWisePerturbation, start="zero", ascent="gradient"),
    "multiple": lambda: _build(
        MultiplePerturbation, weights="domain", count=3, weight_step_size=5.0, ascent="gradient"
    ),
    "low-rank factors": lambda: _build(LowRankPerturbation, rank=2, solver="factors"),
    "low-rank projected": lambda: _build(LowRankPerturbation, rank=2, solver="projected", warmup_steps=3),
    "assigned": lambda: _build(MultiplePerturbation, weights="assigned", count=3, warmup_steps=3),
    "soft": lambda: _build(MultiplePerturbation, weights="soft", count=3),
    "filter": lambda: _build(UniversalPerturbation, prior=FilterPrior(3)),
    "assigned tone": lambda: _build(MultiplePerturbation, weights="assigned", count=3, prior=TonePrior()),
    "spectrum": lambda: _build(LowRankPerturbation, rank=2, prior=SpectrumPrior()),
    "worst of filters": lambda: _build(UniversalPerturbation, prior=FilterPrior(3), adversary="worst_of"),
    "assigned, worst": lambda: _build(MultiplePerturbation, count=3, prior=TonePrior(), adversary="worst_of"),
    "random": lambda: _build(UniversalPerturbation, prior=TonePrior(), adversary="random", warmup_steps=3),
    "subspace": lambda: _build(MultiplePerturbation, weights="subspace", count=3),
}
ONE_PASS = ["universal", "universal, raw gradients", "multiple", "low-rank factors", "low-rank projected"]
WRAPPERS = {
    "plain": {"find_unused_parameters": True},
    "static": {"static_graph": True},
    "views": {"find_unused_parameters": True, "gradient_as_bucket_view": True},
}
# How two ranks share the 16 samples, whose domains alternate in pairs: equally; with 13 and 3 samples; with 1 and 7 of
# the first domain; and with one domain each.
FIRST, SECOND = ([index for index in range(16) if index // 2 % 2 == domain] for domain in (0, 1))
SHARES = {
    "even": ([*range(0, 16, 2)], [*range(1, 16, 2)]),
    "short": ([*range(13)], [*range(13, 16)]),
    "skewed": (FIRST[:1] + SECOND[:7], FIRST[1:] + SECOND[7:]),
    "disjoint": (FIRST, SECOND),
}
EVEN = SHARES["even"]
WHOLE = [*range(16)]


def attack(perturbation: Perturbation, part: list[int]) -> dict[str, Tensor]:
    """Return the state, and the perturbed batch, after three attacks on this part of the batch."""
    x, y, domain, model = _make_problem()
    for _ in range(3):
        perturbed = perturbation.attack(
            x[part], domain[part], lambda x: F.cross_entropy(model(x), y[part], reduction="none")
        )
    return {**state_of(perturbation), "perturbed": perturbed}


def ascend(perturbation: Perturbation, part: list[int], *, by_share: bool = False) -> dict[str, Tensor]:
    """Return the state after two ascents from an ordinary backward pass on this part of the batch.

    Args:
        by_share: the inverse share of each domain in this part is the scale of its gradient.
    """
    x, y, domain, model = _make_problem()
    scale = len(part) / domain[part].bincount(minlength=2) if by_share else None
    for _ in range(2):
        F.cross_entropy(model(perturbation(x[part], domain[part])), y[part]).backward()
        perturbation.ascend_(scale)
    return state_of(perturbation)


def train_wrapped(
    wrap: Callable[[nn.Module], nn.Module], part: list[int], *, is_called_inside: bool
) -> dict[str, Tensor]:
    """Return the weights and statistics of a network, and the perturbation, after three updates on this part.

    Args:
        is_called_inside: the attack calls the network itself instead of its wrapper.
    """
    x, y, domain, _ = _make_problem()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 2))
    network[3].register_parameter("unused", nn.Parameter(torch.zeros(1)))
    model = wrap(network)
    perturbation = CASES["universal"]()
    attacked = network if is_called_inside else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        x_adv = perturbation.attack(
            x[part], domain[part], lambda x: F.cross_entropy(attacked(x), y[part], reduction="none"), steps=2
        )
        optimizer.zero_grad()
        F.cross_entropy(model(x_adv), y[part]).backward()
        optimizer.step()
    return {**network.state_dict(), **state_of(perturbation)}


def attack_from_own_starts(rank: int, part: list[int], *, one_pass: bool) -> dict[str, Tensor]:
    """Return the state of a perturbation whose start depends on the rank."""
    torch.manual_seed(rank)
    perturbation = UniversalPerturbation(SHAPE, num_domains=2, epsilon=0.8, step_size=0.01)
    if one_pass:
        return ascend(perturbation, part)
    states = attack(perturbation, part)
    states.pop("perturbed")
    return states


def train_features(wrap: Callable[[nn.Module], nn.Module], part: list[int]) -> dict[str, Tensor]:
    """Return the weights of a network, and the perturbation of its features, after three updates on this part."""
    x, y, domain, _ = _make_problem()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
    model = wrap(network)
    perturbation = _build(UniversalPerturbation, prior=FeaturePrior(network, ["0"]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        x_adv = perturbation.attack(
            x[part], domain[part], lambda x: F.cross_entropy(model(x), y[part], reduction="none")
        )
        optimizer.zero_grad()
        with perturbation.applied():
            F.cross_entropy(model(x_adv), y[part]).backward()
        optimizer.step()
    return {**network.state_dict(), **state_of(perturbation)}


def state_of(perturbation: Perturbation) -> dict[str, Tensor]:
    state = {name: tensor.clone() for name, tensor in perturbation.state_dict().items() if name != "_extra_state"}
    if "directions" in state:
        # Singular vectors have no sign of their own.
        directions = state.pop("directions").flatten(2)
        state["gram"] = directions.mT @ directions
    return state


def _make_problem() -> tuple[Tensor, Tensor, Tensor, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 36, 8), nn.Tanh(), nn.Linear(8, 2))
    # Every other sample is an equal mix of domains, so the mean of both halves is the mean of all.
    return torch.rand(16, *SHAPE), torch.randint(2, (16,)), torch.arange(16) // 2 % 2, model


def _build(kind: type[Perturbation], **settings: object) -> Perturbation:
    generator = torch.Generator().manual_seed(7)
    return kind(SHAPE, num_domains=2, epsilon=0.8, step_size=0.3, generator=generator, **settings)
