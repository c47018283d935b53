"""Accuracy of trained models under attacks of growing radius, domain-wise and sample-wise.

Both attacks climb the cross-entropy in an l2 ball, in steps of 2.5 radius / steps, so that they can cross it, from a
random start inside it; images stay in [0, 1]. The sample-wise one perturbs every image by itself. The domain-wise one
finds a single perturbation on the domain's holdout and adds it to the images of its main part, which it never saw.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.data.batches import iterate_batches
from domainwise.data.dataset import Domain, Split
from domainwise.errors import DomainwiseError, unknown
from domainwise.perturbations import Perturbation, SampleWisePerturbation, UniversalPerturbation
from domainwise.storage.run_folder import Which
from domainwise.training.loading import OpenRun

Kind = Literal["domain", "sample"]
KINDS: tuple[Kind, ...] = get_args(Kind)
RADII = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
_REACH = 2.5


@dataclass(frozen=True)
class Attacked:
    """The accuracy of one run's model on one domain under one attack."""

    run: str
    domain: str
    kind: Kind
    radius: float
    accuracy: float
    images: int


def under_attack(
    run: OpenRun,
    *,
    domains: Sequence[str] = (),
    radii: Sequence[float] = RADII,
    kinds: Sequence[Kind] = KINDS,
    steps: int = 20,
    images: int | None = None,
    which: Which = "best",
    seed: int = 0,
    device: torch.device | None = None,
    on_attack: Callable[[], None] = lambda: None,
) -> list[Attacked]:
    """The run's model under every attack asked for; the same numbers for the same seed.

    Args:
        domains: by name; by default the run's test domains.
        radii: l2, over a whole image in [0, 1], whatever its size. At 0 the accuracy is the clean one.
        steps: of ascent in each attack.
        images: how many of a domain's main part to measure on; None for all.
        on_attack: called after each.
    """
    _check(radii, steps, images)
    names = tuple(domains) or run.roles.test
    for name in names:
        if name not in run.dataset.domain_names:
            raise unknown(f"domain of {run.dataset.name}", name, run.dataset.domain_names)
    device = device or torch.device("cpu")
    model = run.model(which).to(device)
    found = []
    for name in names:
        domain, split = run.dataset.domains[run.dataset.index(name)], run.splits[name]
        measured = Split(main=split.main[:images], holdout=split.holdout)
        for kind in kinds:
            for radius in radii:
                accuracy = accuracy_under(model, domain, measured, kind, radius, steps, seed, device)
                found.append(Attacked(run.name, name, kind, radius, accuracy, len(measured.main)))
                on_attack()
    return found


def accuracy_under(
    model: nn.Module,
    domain: Domain,
    split: Split,
    kind: Kind,
    radius: float,
    steps: int,
    seed: int,
    device: torch.device,
) -> float:
    """The share of the main part's images that the model gets right while attacked."""
    generator = torch.Generator().manual_seed(seed)
    # In a ball without extent there is nowhere to go.
    steps = steps if radius > 0 else 0
    kind_of = UniversalPerturbation if kind == "domain" else SampleWisePerturbation
    perturbation = kind_of(
        tuple(domain.images.shape[1:]),
        epsilon=radius,
        step_size=_REACH * radius / max(steps, 1),
        generator=generator,
    ).to(device)
    if kind == "domain":
        _find(perturbation, model, domain, split.holdout, steps, device)
        steps = 0
    right = 0
    for x, y in iterate_batches(domain, split.main, device):
        attacked = perturbation.attack(x, 0, _loss(model, y), steps)
        with torch.no_grad():
            right += int((model(attacked).argmax(1) == y).sum())
    return right / len(split.main)


def _find(
    perturbation: Perturbation, model: nn.Module, domain: Domain, holdout: Tensor, steps: int, device: torch.device
) -> None:
    """Move the domain's perturbation up, a step a batch, over its holdout as often as that takes."""
    if steps and not len(holdout):
        raise DomainwiseError(f"domain {domain.name!r} has no holdout to find a perturbation on; use --kind sample")
    for x, y in islice(cycle(iterate_batches(domain, holdout, device)), steps):
        perturbation.attack(x, 0, _loss(model, y))


def _loss(model: nn.Module, y: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda x: F.cross_entropy(model(x), y, reduction="none")


def _check(radii: Sequence[float], steps: int, images: int | None) -> None:
    if not radii or not all(0 <= radius < float("inf") for radius in radii):
        raise DomainwiseError(f"radii must be numbers of at least 0, not {list(radii)}")
    if steps < 1:
        raise DomainwiseError(f"an attack needs at least 1 step, not {steps}")
    if images is not None and images < 1:
        raise DomainwiseError(f"give at least 1 image to measure on, not {images}")
