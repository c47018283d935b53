"""What a trained method adds to images: its domain's perturbation, or one made anew for each sample by an attack."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms import Algorithm
from domainwise.data.batches import iterate_batches
from domainwise.errors import DomainwiseError
from domainwise.perturbations import MultiplePerturbation, Perturbation
from domainwise.perturbations.base import ImageSpace
from domainwise.training.loading import OpenRun


def perturbed_algorithm(run: OpenRun) -> tuple[Algorithm, Perturbation]:
    """The run's algorithm and its perturbation; a clear error for methods that have none."""
    algorithm = run.algorithm()
    perturbation = getattr(algorithm, "perturbation", None)
    if not isinstance(perturbation, Perturbation):
        raise DomainwiseError(
            f"the run in {run.folder.path} trained with {run.settings['algorithm']}, which has no perturbation; "
            "give runs of at, uat, mat or ldat"
        )
    return algorithm, perturbation


def offset_of_each(algorithm: Algorithm, x: Tensor, y: Tensor, domain: int, seed: int = 0) -> Tensor:
    """What is added to each image of one domain, (b, *shape), before the images are clipped to their bounds.

    It is in the units that the radius is measured in. What is kept a domain is the same for all. What is made for each
    sample is made here as in training, from draws of `seed`, and leaves the algorithm as it was: MAT with
    `weights="sample"` mixes the components that training ended with.

    Args:
        domain: its place among the training domains.
    """
    perturbation = algorithm.perturbation
    assert isinstance(perturbation, Perturbation)
    if perturbation.is_kept:
        return perturbation.delta()[domain].detach().expand_as(x)
    generator = torch.Generator().manual_seed(seed)
    if isinstance(perturbation, MultiplePerturbation):
        return _mixes(algorithm, perturbation, x, y, domain, generator)
    space = getattr(algorithm, "space", None)
    model = algorithm.network if space is None else space.wrap(algorithm.network)
    inputs = x if space is None else space.normalize(x)
    steps = getattr(algorithm.hparams, "steps", 1)
    with _lent(perturbation, generator=generator):
        attacked = perturbation.attack(
            inputs, domain, lambda x: F.cross_entropy(model(x), y, reduction="none"), steps=steps
        )
    return attacked - inputs


def offsets_of_domain(run: OpenRun, algorithm: Algorithm, name: str, count: int) -> Tensor:
    """What is added to the first `count` training images of a domain, (n, *shape), on the CPU.

    Attacks see as many images at a time as in training, because some look at their whole batch.
    """
    device = next(algorithm.network.parameters()).device
    domain, indices = run.dataset.domains[run.dataset.index(name)], run.splits[name].main[:count]
    made = []
    for number, chosen in enumerate(indices.split(run.settings["batch_size"])):
        x, y = (torch.cat(part) for part in zip(*iterate_batches(domain, chosen, device), strict=True))
        made.append(offset_of_each(algorithm, x, y, run.roles.train.index(name), seed=number).cpu())
    return torch.cat(made)


def _mixes(
    algorithm: Algorithm, perturbation: MultiplePerturbation, x: Tensor, y: Tensor, domain: int, generator: Any
) -> Tensor:
    """Each sample's own mix, its weights drawn and moved one step; the components stay."""
    clip = perturbation.space.clip
    # An attack on zeros that adds the images inside the loss returns the offset itself, unclipped and unrounded.
    with _lent(perturbation, generator=generator, step_size=0.0, space=ImageSpace(None)):
        return perturbation.attack(
            torch.zeros_like(x),
            domain,
            lambda offset: F.cross_entropy(algorithm.network(clip(x + offset)), y, reduction="none"),
        )


@contextmanager
def _lent(perturbation: Perturbation, **values: Any) -> Iterator[None]:
    """Other values of some attributes inside."""
    before = {name: getattr(perturbation, name) for name in values}
    try:
        for name, value in values.items():
            setattr(perturbation, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(perturbation, name, value)
