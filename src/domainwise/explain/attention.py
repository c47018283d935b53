"""How much of what a network looks at lies on the object: Grad-CAM against masks, as a number a domain.

An image's share is the heat on its object over all its heat; what speaks against the class counts as none. The map is
the one that is shown, upsampled to the image, so a network of few cells spreads heat beyond a small object: shares are
compared between networks of one architecture, and with the share of the image that the object covers, which a network
that looks everywhere alike would have.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from domainwise.data import Domain
from domainwise.data.batches import iterate_batches
from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.errors import DomainwiseError
from domainwise.explain.gradcam import heat_maps, map_layer
from domainwise.storage.run_folder import Which
from domainwise.training.loading import OpenRun

Explained = Literal["predicted", "true"]


@dataclass(frozen=True)
class Attention:
    """Of one network on one domain.

    Args:
        share: of heat that lies on the object, mean over images; NaN where no map has heat.
        coverage: share of the image that the object takes, mean over the same images.
        images: how many count.
        blank: how many were left out because their map has no heat: nothing speaks for their class.
    """

    share: float
    coverage: float
    images: int
    blank: int


def share_on_object(maps: Tensor, masks: Tensor) -> Tensor:
    """For each image the share of its heat on its object, (b,); NaN for a map of zeros.

    Args:
        maps: (b, H, W), nowhere negative.
        masks: bool, (b, H, W).
    """
    return (maps * masks).sum((1, 2)) / maps.sum((1, 2))


def object_attention(
    network: nn.Module,
    domain: Domain,
    indices: Tensor,
    device: torch.device,
    *,
    classes: Explained = "predicted",
    layer: str | None = None,
    on_progress: OnProgress = ignore_progress,
) -> Attention:
    """The attention of a network to the objects in a domain's images `indices`.

    Args:
        classes: the class that is explained: what the network predicts, right or wrong, because that is what it acts
            on; or the true one.
    """
    if domain.masks is None:
        raise DomainwiseError(f"domain {domain.name!r} has no masks of its objects to compare attention with")
    network = network.to(device)
    found = map_layer(network, domain.images.shape[1:], layer)
    shares, coverages, done = [], [], 0
    for images, labels in iterate_batches(domain, indices, device):
        masks = domain.masks[indices[done : done + len(images)]].to(device)
        maps = heat_maps(network, images, labels if classes == "true" else None, found)
        shares.append(share_on_object(maps, masks).cpu())
        coverages.append(masks.float().mean((1, 2)).cpu())
        done += len(images)
        on_progress(f"Grad-CAM on {domain.name}", done, len(indices))
    share, coverage = torch.cat(shares), torch.cat(coverages)
    counted = ~share.isnan()
    return Attention(
        share=share[counted].mean().item(),
        coverage=coverage[counted].mean().item(),
        images=int(counted.sum()),
        blank=int((~counted).sum()),
    )


def attention_of_run(
    run: OpenRun,
    device: torch.device,
    *,
    which: Which = "best",
    classes: Explained = "predicted",
    layer: str | None = None,
    domains: Sequence[str] = (),
    on_progress: OnProgress = ignore_progress,
) -> dict[str, Attention]:
    """A run's attention on the main part of domains that have masks, by default of all that it is tested on."""
    model = run.model(which)
    looked_at = [run.dataset.domains[run.dataset.index(name)] for name in domains or run.roles.test]
    return {
        domain.name: object_attention(
            model,
            domain,
            run.splits[domain.name].main,
            device,
            classes=classes,
            layer=layer,
            on_progress=lambda what, done, total: on_progress(f"{run.name}: {what}", done, total),
        )
        for domain in looked_at
        if domain.masks is not None
    }


@dataclass(frozen=True)
class Cell:
    """Mean over runs and its standard error, None for a single run."""

    mean: float
    error: float | None
    runs: int

    def __str__(self) -> str:
        """In percent."""
        mean = f"{100 * self.mean:.1f}"
        return mean if self.error is None else f"{mean} ± {100 * self.error:.1f}"


@dataclass(frozen=True)
class AttentionTable:
    """Shares of attention on the object.

    Args:
        rows: by method and then by domain; a method lacks a domain that none of its runs was tested on.
        coverage: what a network that looks everywhere alike would have, by domain, a mean over all runs.
        blank: how many of how many maps were left out because they have no heat, by method.
    """

    domains: tuple[str, ...]
    rows: Mapping[str, Mapping[str, Cell]]
    coverage: Mapping[str, float]
    blank: Mapping[str, tuple[int, int]]

    def lines(self) -> list[list[str]]:
        """A line a method, its name first, and last the coverage."""
        lines = [
            [name, *(str(cells[domain]) if domain in cells else "" for domain in self.domains)]
            for name, cells in self.rows.items()
        ]
        blind = (f"{100 * self.coverage[domain]:.1f}" if domain in self.coverage else "" for domain in self.domains)
        return [*lines, ["the whole image alike", *blind]]


def attention_table(measured: Mapping[str, Sequence[Mapping[str, Attention]]]) -> AttentionTable:
    """One row a method from the attention of each of its runs; domains in the order they are met."""
    domains = dict.fromkeys(domain for runs in measured.values() for run in runs for domain in run)
    everything = [run for runs in measured.values() for run in runs]
    coverage = {domain: cell.mean for domain, cell in _cells(everything, "coverage").items()}
    return AttentionTable(
        tuple(domains),
        {method: _cells(runs, "share") for method, runs in measured.items()},
        coverage,
        {
            method: (
                sum(each.blank for run in runs for each in run.values()),
                sum(each.blank + each.images for run in runs for each in run.values()),
            )
            for method, runs in measured.items()
        },
    )


def _cells(runs: Sequence[Mapping[str, Attention]], what: Literal["share", "coverage"]) -> dict[str, Cell]:
    values: dict[str, list[float]] = {}
    for run in runs:
        for domain, attention in run.items():
            # A run whose maps are all blank has no share.
            if attention.images:
                values.setdefault(domain, []).append(getattr(attention, what))
    return {domain: Cell(statistics.fmean(each), _standard_error(each), len(each)) for domain, each in values.items()}


def _standard_error(values: Sequence[float]) -> float | None:
    return statistics.pstdev(values) / len(values) ** 0.5 if len(values) > 1 else None
