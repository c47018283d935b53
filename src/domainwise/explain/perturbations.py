"""A run's perturbations in numbers: the offsets they add, their size and components, their history and their ranks."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.algorithms import Algorithm
from domainwise.data.batches import iterate_batches
from domainwise.errors import DomainwiseError
from domainwise.perturbations import FeaturePrior, MultiplePerturbation, Perturbation
from domainwise.perturbations.base import ImageSpace, Norm, compute_norm
from domainwise.training.loading import OpenRun
from domainwise.training.trainer import snapshot_perturbation


def has_perturbation(algorithm: Algorithm) -> bool:
    """Return whether the method trains with a perturbation."""
    return isinstance(getattr(algorithm, "perturbation", None), Perturbation)


def load_perturbation(run: OpenRun) -> tuple[Algorithm, Perturbation]:
    """Load the run's algorithm and its perturbation.

    Raises:
        DomainwiseError: If the method has no perturbation.
    """
    algorithm = run.algorithm()
    if not has_perturbation(algorithm):
        raise DomainwiseError(
            f"the run in {run.folder.path} trained with {run.settings['algorithm']}, which has no perturbation; "
            "give runs of at, uat, mat or ldat"
        )
    return algorithm, algorithm.perturbation  # type: ignore[return-value]


def compute_offsets(algorithm: Algorithm, x: Tensor, y: Tensor, domain: int, seed: int = 0) -> Tensor:
    """Compute what the method adds to each image of one domain: in pixels before clipping, in the units of its radius.

    With a prior other than pixels, it is how much the clipped image changes.

    A perturbation kept per domain is the same for all images. One made per sample is made as in training, with draws
    from `seed`, and leaves the algorithm as it was: MAT's components do not move.

    Args:
        x: (b, *shape) in [0, 1].
        y: labels, (b,).
        domain: index among the training domains.

    Returns:
        (b, *shape).
    """
    perturbation = algorithm.perturbation
    assert isinstance(perturbation, Perturbation)
    generator = torch.Generator().manual_seed(seed)
    if not perturbation.is_in_pixels:
        return _compute_changes(algorithm, perturbation, x, y, domain, generator)
    if perturbation.is_kept:
        return perturbation.delta()[domain].detach().expand_as(x)
    space = getattr(algorithm, "space", None)
    model = algorithm.network if space is None else space.wrap(algorithm.network)
    inputs = x if space is None else space.normalize(x)
    steps = getattr(algorithm.hparams, "steps", 1)
    if not perturbation.clips_in_attack:
        # Clipping is part of each step.
        with _override(perturbation, generator=generator):
            x_adv = perturbation.attack(
                inputs, domain, lambda x: F.cross_entropy(model(x), y, reduction="none"), steps=steps
            )
        return x_adv - inputs
    clip = perturbation.space.clip
    # Attacking zeros, with the images added inside the loss, returns the offset itself, unclipped and unrounded.
    with _override(perturbation, generator=generator, space=ImageSpace(None), **_freeze(perturbation)):
        return perturbation.attack(
            torch.zeros_like(inputs),
            domain,
            lambda offset: F.cross_entropy(model(clip(inputs + offset)), y, reduction="none"),
            steps=steps,
        )


def _compute_changes(
    algorithm: Algorithm, perturbation: Perturbation, x: Tensor, y: Tensor, domain: int, generator: torch.Generator
) -> Tensor:
    """Compute how much each image changes under a perturbation whose points are not pixels."""
    if isinstance(perturbation.prior, FeaturePrior):
        raise DomainwiseError(
            "prior 'features' changes features inside the network, and no image; there is nothing to show"
        )
    if perturbation.is_kept:
        with torch.no_grad():
            changed: Tensor = perturbation(x, domain)
        return changed - x
    with _override(perturbation, generator=generator, **_freeze(perturbation)):
        network, steps = algorithm.network, getattr(algorithm.hparams, "steps", 1)
        x_adv = perturbation.attack(x, domain, lambda x: F.cross_entropy(network(x), y, reduction="none"), steps)
    return x_adv - x


def _freeze(perturbation: Perturbation) -> dict[str, bool]:
    """Return the attribute that lets an attack leave what is kept between batches unchanged."""
    return {"is_frozen": True} if isinstance(perturbation, MultiplePerturbation) else {}


def compute_domain_offsets(run: OpenRun, algorithm: Algorithm, name: str, count: int) -> Tensor:
    """Compute the offsets of a domain's first `count` training images, (n, *shape), on the CPU.

    Attacks use the batch size of training, because some depend on the whole batch.
    """
    device = next(algorithm.network.parameters()).device
    domain, indices = run.dataset.domains[run.dataset.index(name)], run.splits[name].main[:count]
    offsets = []
    for number, batch in enumerate(indices.split(run.settings["batch_size"])):
        x, y = (torch.cat(part) for part in zip(*iterate_batches(domain, batch, device), strict=True))
        offsets.append(compute_offsets(algorithm, x, y, run.roles.train.index(name), seed=number).cpu())
    return torch.cat(offsets)


@contextmanager
def _override(perturbation: Perturbation, **values: Any) -> Iterator[None]:
    """Set attributes temporarily; attacks in between do not count as updates."""
    before = {name: getattr(perturbation, name) for name in (*values, "updates")}
    try:
        for name, value in values.items():
            setattr(perturbation, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(perturbation, name, value)


@dataclass(frozen=True)
class PerturbationSummary:
    """The perturbation at the end of training.

    Args:
        run: name of the run.
        method: name of the algorithm.
        domains: names of the training domains.
        epsilon: radius of the ball.
        norm: norm of the ball.
        is_kept: whether all images of a domain share `delta`; otherwise it was made for `image` alone.
        delta: perturbation per domain, (domains, C, H, W), in the units of `epsilon`; with a prior other than pixels,
            what it does to `image`, in pixels.
        image: first training image per domain, in [0, 1].
        perturbed: the same with its perturbation, clipped to [0, 1].
        rank: largest rank that the method allows a channel of `delta`, if it limits it.
        prior: name of the prior.
        components: components that are mixed, (domains, count, C, H, W).
        mixing_weights: weights of the components, (domains, count), if they are kept.
    """

    run: str
    method: str
    domains: tuple[str, ...]
    epsilon: float
    norm: Norm
    is_kept: bool
    delta: Tensor
    image: Tensor
    perturbed: Tensor
    rank: int | None = None
    prior: str = "pixels"
    components: Tensor | None = None
    mixing_weights: Tensor | None = None

    @property
    def norms(self) -> list[float]:
        """Size of each domain's perturbation, in the norm of the ball."""
        return [float(each) for each in compute_norm(self.delta, self.norm).flatten()]

    @property
    def component_norms(self) -> Tensor:
        """Size of each component, (domains, count)."""
        assert self.components is not None
        return compute_norm(self.components, self.norm, batch_dims=2).flatten(1)

    @property
    def component_cosines(self) -> list[float]:
        """Mean cosine of two components per domain; 1 for a single component."""
        assert self.components is not None
        count = self.components.shape[1]
        if count == 1:
            return [1.0] * len(self.components)
        unit = F.normalize(self.components.flatten(2), dim=-1)
        sums = unit.sum(1).square().sum(-1) - count
        return [float(each) for each in sums / (count * (count - 1))]

    @property
    def singular_values(self) -> Tensor:
        """Singular values per domain and channel, (domains, C, min(H, W)), largest first."""
        return compute_singular_values(self.delta)

    @property
    def ranks(self) -> list[int]:
        """Highest numerical rank among the channels, per domain."""
        return [int(each) for each in compute_rank(self.singular_values, self.delta.shape[-2:]).amax(1)]


def summarize_perturbation(run: OpenRun) -> PerturbationSummary:
    """Summarize the run's perturbation, with the first training image of each domain."""
    algorithm, perturbation = load_perturbation(run)
    images, deltas = [], []
    for index, name in enumerate(run.roles.train):
        domain = run.dataset.domains[run.dataset.index(name)]
        x, y = next(iterate_batches(domain, run.splits[name].main[:1], torch.device("cpu")))
        images.append(x)
        deltas.append(compute_offsets(algorithm, x, y, index))
    image, delta = torch.cat(images), torch.cat(deltas)
    # The released variants measure their radius on normalized images.
    space = getattr(algorithm, "space", None)
    offset = delta if space is None else delta * torch.tensor(space.std).reshape(-1, 1, 1)
    parts = snapshot_perturbation(algorithm)
    return PerturbationSummary(
        run=run.name,
        method=run.settings["algorithm"],
        domains=run.roles.train,
        epsilon=perturbation.epsilon,
        norm=perturbation.norm,
        is_kept=perturbation.is_kept,
        delta=delta,
        image=image,
        perturbed=(image + offset).clamp(0, 1),
        rank=getattr(perturbation, "rank", None) if perturbation.is_in_pixels else None,
        prior=perturbation.prior.name,
        components=parts["components"].detach() if "components" in parts and perturbation.is_in_pixels else None,
        mixing_weights=parts.get("mixing_weights"),
    )


@dataclass(frozen=True)
class PerturbationHistory:
    """Size and direction of each domain's perturbation during training.

    Args:
        steps: steps of the records; empty for perturbations made per sample.
        norms: l2 norms, (records, domains).
        largest_singular_values: averaged over channels, (records, domains); NaN with a prior other than pixels.
        snapshot_steps: steps of the snapshots, if the run kept them.
        cosine_to_previous: cosine with the previous snapshot (NaN for the first), (snapshots, domains).
        cosine_to_last: cosine with the last snapshot, (snapshots, domains).
    """

    steps: list[int] = field(default_factory=list)
    norms: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    largest_singular_values: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    snapshot_steps: list[int] = field(default_factory=list)
    cosine_to_previous: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    cosine_to_last: Tensor = field(default_factory=lambda: torch.empty(0, 0))


def read_perturbation_history(run: OpenRun) -> PerturbationHistory:
    """Read the history from the run's records and snapshots."""
    described = {
        record["step"]: record["perturbation"] for record in run.records if record.get("perturbation", {}).get("norm")
    }
    largest = [
        [values[0] for values in each.get("singular_values", [[math.nan]] * len(each["norm"]))]
        for each in described.values()
    ]
    snapshots = run.folder.read_perturbations()
    # Where no mix is kept, the components are what moves.
    points = [parts["delta" if "delta" in parts else "components"].flatten(1) for parts in snapshots.values()]
    previous = [torch.full_like(points[0], torch.nan), *points[:-1]] if points else []
    return PerturbationHistory(
        steps=list(described),
        norms=torch.tensor([each["norm"] for each in described.values()]),
        largest_singular_values=torch.tensor(largest),
        snapshot_steps=list(snapshots),
        cosine_to_previous=_compute_cosines(points, previous),
        cosine_to_last=_compute_cosines(points, points[-1:] * len(points)),
    )


def _compute_cosines(points: list[Tensor], others: list[Tensor]) -> Tensor:
    if not points:
        return torch.empty(0, 0)
    return torch.stack([F.cosine_similarity(one, other) for one, other in zip(points, others, strict=True)])


def compute_singular_values(matrices: Tensor) -> Tensor:
    """Return the singular values of matrices (..., rows, columns), largest first, computed in float64."""
    values: Tensor = torch.linalg.svdvals(matrices.double())
    return values


def compute_rank(values: Tensor, shape: Sequence[int]) -> Tensor:
    """Count the singular values (..., k) of float32 matrices (rows, columns) that are above rounding error."""
    floor = max(shape) * torch.finfo(torch.float32).eps * values[..., :1]
    return (values > floor).sum(-1)


def compute_effective_rank(values: Tensor) -> Tensor:
    """Return exp of the entropy of the normalized squared singular values (..., k) (Roy and Vetterli 2007)."""
    energy = values.square()
    total = energy.sum(-1, keepdim=True)
    share = torch.where(total > 0, energy / total, 0.0)
    return torch.where(total.squeeze(-1) > 0, torch.special.entr(share).sum(-1).exp(), 0.0)


@dataclass(frozen=True)
class Ranks:
    """Ranks of one run's perturbations on one training domain; lists have one entry per channel.

    Args:
        images: number of stacked perturbations, the paper's n.
        shape: (H, W).
        stacked: rank of the matrix (n, H W).
        stacked_effective: its effective rank.
        single: rank of one perturbation (H, W), averaged over images.
        single_effective: its effective rank, averaged over images.
        single_max: highest rank of a single perturbation.
        stacked_spectrum: singular values divided by the largest, (C, k).
        single_spectrum: the same for single perturbations, averaged over images.
    """

    run: str
    method: str
    domain: str
    images: int
    shape: tuple[int, int]
    stacked: list[int]
    stacked_effective: list[float]
    single: list[float]
    single_effective: list[float]
    single_max: int
    stacked_spectrum: Tensor
    single_spectrum: Tensor


def measure_ranks(run: OpenRun, images: int = 256, device: torch.device | None = None) -> list[Ranks]:
    """Measure the ranks per training domain, over its first `images` training images."""
    if images < 1:
        raise DomainwiseError(f"the number of images must be at least 1, got {images}")
    algorithm, perturbation = load_perturbation(run)
    algorithm.to(device)
    return [
        compute_ranks(
            compute_domain_offsets(run, algorithm, name, images),
            run.name,
            run.settings["algorithm"],
            name,
            is_shared=perturbation.is_kept and perturbation.is_in_pixels,
        )
        for name in run.roles.train
    ]


def compute_ranks(offsets: Tensor, run: str, method: str, domain: str, is_shared: bool = False) -> Ranks:
    """Compute the ranks of perturbations (n, C, H, W); shared ones are all equal, so one stands for all."""
    count, _, height, width = offsets.shape
    rows = offsets.transpose(0, 1).flatten(2)
    stacked = compute_singular_values(rows)
    single = compute_singular_values(offsets[:1] if is_shared else offsets)
    single_ranks = compute_rank(single, (height, width))
    return Ranks(
        run=run,
        method=method,
        domain=domain,
        images=count,
        shape=(height, width),
        stacked=compute_rank(stacked, rows.shape[1:]).tolist(),
        stacked_effective=compute_effective_rank(stacked).tolist(),
        single=single_ranks.double().mean(0).tolist(),
        single_effective=compute_effective_rank(single).mean(0).tolist(),
        single_max=int(single_ranks.max()),
        stacked_spectrum=_divide_by_largest(stacked),
        single_spectrum=_divide_by_largest(single).mean(0),
    )


def _divide_by_largest(values: Tensor) -> Tensor:
    return values / values[..., :1].clamp(min=torch.finfo(values.dtype).tiny)
