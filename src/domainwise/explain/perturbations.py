"""A run's perturbation in numbers: each domain's, its size against the ball, its singular values and its parts."""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.data.batches import iterate_batches
from domainwise.explain.offsets import offset_of_each, perturbed_algorithm
from domainwise.explain.ranks import numerical_rank, singular_values
from domainwise.perturbations import LowRankPerturbation
from domainwise.perturbations.base import Norm, compute_norm
from domainwise.training.loading import OpenRun
from domainwise.training.trainer import snapshot_perturbation


@dataclass(frozen=True)
class Portrait:
    """The perturbation that training ended with.

    Args:
        is_kept: whether a domain's images share `delta`; otherwise it is that of the image shown, made anew.
        delta: of each domain, (domains, C, H, W), in the units of `epsilon`.
        image, perturbed: the first training image of each domain, in [0, 1], and the same with its perturbation.
        rank: the most that a channel of `delta` can have, where the method limits it.
        components: what a mix is made of, (domains, count, C, H, W).
        mixing_weights: of a domain's components, (domains, count), where they are kept.
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
    components: Tensor | None = None
    mixing_weights: Tensor | None = None

    @property
    def norms(self) -> list[float]:
        """Of each domain's perturbation, as the ball measures it."""
        return [float(each) for each in compute_norm(self.delta, self.norm).flatten()]

    @property
    def component_norms(self) -> Tensor:
        """Of each component, (domains, count)."""
        assert self.components is not None
        return compute_norm(self.components, self.norm, batch_dims=2).flatten(1)

    @property
    def component_cosines(self) -> list[float]:
        """How alike a domain's components are: the mean cosine of two of them; 1 where there is but one."""
        assert self.components is not None
        count = self.components.shape[1]
        if count == 1:
            return [1.0] * len(self.components)
        unit = F.normalize(self.components.flatten(2), dim=-1)
        sums = unit.sum(1).square().sum(-1) - count
        return [float(each) for each in sums / (count * (count - 1))]

    @property
    def singular_values(self) -> Tensor:
        """Of each domain and channel, (domains, C, min(H, W)), largest first."""
        return singular_values(self.delta)

    @property
    def ranks(self) -> list[int]:
        """How many singular values are above zero, in the channel of each domain that has most."""
        return [int(each) for each in numerical_rank(self.singular_values, self.delta.shape[-2:]).amax(1)]


def portrait(run: OpenRun) -> Portrait:
    """The run's perturbation, with the first training image of each domain."""
    algorithm, perturbation = perturbed_algorithm(run)
    images, deltas = [], []
    for index, name in enumerate(run.roles.train):
        domain = run.dataset.domains[run.dataset.index(name)]
        x, y = next(iterate_batches(domain, run.splits[name].main[:1], torch.device("cpu")))
        images.append(x)
        deltas.append(offset_of_each(algorithm, x, y, index))
    image, delta = torch.cat(images), torch.cat(deltas)
    # The radius of the released variants is one of normalized images.
    space = getattr(algorithm, "space", None)
    offset = delta if space is None else delta * torch.tensor(space.std).reshape(-1, 1, 1)
    parts = snapshot_perturbation(algorithm)
    return Portrait(
        run=run.name,
        method=run.settings["algorithm"],
        domains=run.roles.train,
        epsilon=perturbation.epsilon,
        norm=perturbation.norm,
        is_kept=perturbation.is_kept,
        delta=delta,
        image=image,
        perturbed=(image + offset).clamp(0, 1),
        rank=perturbation.rank if isinstance(perturbation, LowRankPerturbation) else None,
        components=parts["components"].detach() if "components" in parts else None,
        mixing_weights=parts.get("mixing_weights"),
    )


@dataclass(frozen=True)
class Movement:
    """Norms and directions of each domain's perturbation over the steps of its records.

    Args:
        norms: l2, (records, domains); empty for perturbations made anew for each sample.
        leading: the largest singular value, mean over channels, (records, domains).
        kept_steps: of the snapshots, if the run kept them.
        to_previous, to_last: cosine of a snapshot with the one before it (the first has none: not a number) and with
            the last, (snapshots, domains).
    """

    steps: list[int] = field(default_factory=list)
    norms: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    leading: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    kept_steps: list[int] = field(default_factory=list)
    to_previous: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    to_last: Tensor = field(default_factory=lambda: torch.empty(0, 0))


def movement(run: OpenRun) -> Movement:
    """What the run's records and snapshots tell."""
    described = {
        record["step"]: record["perturbation"] for record in run.records if record.get("perturbation", {}).get("norm")
    }
    leading = [[values[0] for values in each["singular_values"]] for each in described.values()]
    kept = run.folder.read_perturbations()
    # Without a mix that is kept, the components themselves are what moves.
    points = [parts["delta" if "delta" in parts else "components"].flatten(1) for parts in kept.values()]
    return Movement(
        steps=list(described),
        norms=torch.tensor([each["norm"] for each in described.values()]),
        leading=torch.tensor(leading),
        kept_steps=list(kept),
        to_previous=_cosines(points, [torch.full_like(points[0], torch.nan), *points[:-1]] if points else []),
        to_last=_cosines(points, points[-1:] * len(points)),
    )


def _cosines(points: list[Tensor], others: list[Tensor]) -> Tensor:
    if not points:
        return torch.empty(0, 0)
    return torch.stack([F.cosine_similarity(one, other) for one, other in zip(points, others, strict=True)])
