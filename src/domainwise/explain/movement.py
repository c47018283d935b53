"""How a run's perturbation moved over training: what its records say, and what kept snapshots add."""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from domainwise.runs.reopen import OpenRun


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
