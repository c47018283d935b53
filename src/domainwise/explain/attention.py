"""Share of a network's Grad-CAM attention that lies on the object, measured with object masks.

An image's share is the heat on its object divided by all of its heat; negative attribution is dropped by Grad-CAM's
ReLU. Maps are upsampled to the image, so a network with few cells spreads heat beyond a small object. Compare shares
only between networks of one architecture, and with the object's coverage: the share of uniform attention.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from domainwise.data import Domain
from domainwise.data.batches import iterate_batches
from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.errors import DomainwiseError
from domainwise.explain.gradcam import compute_gradcam, find_target_layer
from domainwise.selection.statistics import Estimate, estimate_mean, format_percent
from domainwise.storage.run_folder import Which
from domainwise.training.loading import OpenRun

Target = Literal["predicted", "true"]
UNIFORM = "uniform attention"


@dataclass(frozen=True)
class Attention:
    """Attention of one network on one domain.

    Args:
        share: share of the heat that lies on the object, averaged over images; NaN if no map has heat.
        coverage: share of the image that the object covers, averaged over the same images.
        images: number of images that count.
        blank: number of images left out because their map has no heat.
    """

    share: float
    coverage: float
    images: int
    blank: int


def compute_object_share(maps: Tensor, masks: Tensor) -> Tensor:
    """Return per image the share of the heat on the object, (b,); NaN for a map of zeros.

    Args:
        maps: (b, H, W), nonnegative.
        masks: bool, (b, H, W).
    """
    return (maps * masks).sum((1, 2)) / maps.sum((1, 2))


def measure_object_attention(
    network: nn.Module,
    domain: Domain,
    indices: Tensor,
    device: torch.device,
    *,
    target: Target = "predicted",
    layer: str | None = None,
    on_progress: OnProgress = ignore_progress,
) -> Attention:
    """Measure the network's attention on the objects in the images `indices` of a domain.

    Args:
        target: class to explain: `predicted`, right or wrong, because it is what the network acts on; or `true`.
        layer: layer to explain (default: `find_target_layer`).
    """
    if domain.masks is None:
        raise DomainwiseError(f"domain {domain.name!r} has no object masks to compare attention with")
    network = network.to(device)
    target_layer = find_target_layer(network, domain.images.shape[1:], layer)
    shares, coverages, done = [], [], 0
    for images, labels in iterate_batches(domain, indices, device):
        masks = domain.masks[indices[done : done + len(images)]].to(device)
        maps = compute_gradcam(network, images, labels if target == "true" else None, target_layer)
        shares.append(compute_object_share(maps, masks).cpu())
        coverages.append(masks.float().mean((1, 2)).cpu())
        done += len(images)
        on_progress(f"Grad-CAM on {domain.name}", done, len(indices))
    share, coverage = torch.cat(shares), torch.cat(coverages)
    has_heat = ~share.isnan()
    return Attention(
        share=share[has_heat].mean().item(),
        coverage=coverage[has_heat].mean().item(),
        images=int(has_heat.sum()),
        blank=int((~has_heat).sum()),
    )


def measure_attention(
    run: OpenRun,
    device: torch.device,
    *,
    which: Which = "best",
    target: Target = "predicted",
    layer: str | None = None,
    domains: Sequence[str] = (),
    on_progress: OnProgress = ignore_progress,
) -> dict[str, Attention]:
    """Measure a run's attention on the main part of each domain with masks (default: of its test domains)."""
    model = run.model(which)
    selected = [run.dataset.domains[run.dataset.index(name)] for name in domains or run.roles.test]
    return {
        domain.name: measure_object_attention(
            model,
            domain,
            run.splits[domain.name].main,
            device,
            target=target,
            layer=layer,
            on_progress=lambda what, done, total: on_progress(f"{run.name}: {what}", done, total),
        )
        for domain in selected
        if domain.masks is not None
    }


@dataclass(frozen=True)
class AttentionTable:
    """Shares of attention on the object.

    Args:
        domains: columns of the table.
        rows: mean share over runs, by method and domain; domains that no run of the method was tested on are missing.
        coverage: share that uniform attention would have, by domain, averaged over all runs.
        blank: number of maps left out for lack of heat and number of all maps, by method.
    """

    domains: tuple[str, ...]
    rows: Mapping[str, Mapping[str, Estimate]]
    coverage: Mapping[str, float]
    blank: Mapping[str, tuple[int, int]]

    def format_rows(self) -> list[list[str]]:
        """Return one row per method, its name first, and last the coverage."""
        uniform = {domain: Estimate(share, None, 1) for domain, share in self.coverage.items()}
        return [
            [name, *(_format(estimates.get(domain)) for domain in self.domains)]
            for name, estimates in {**self.rows, UNIFORM: uniform}.items()
        ]


def _format(estimate: Estimate | None) -> str:
    return "" if estimate is None else format_percent(estimate.mean, estimate.error)


def tabulate_attention(attention: Mapping[str, Sequence[Mapping[str, Attention]]]) -> AttentionTable:
    """Build the table from the attention of each method's runs; domains keep the order in which they occur."""
    domains = dict.fromkeys(domain for runs in attention.values() for run in runs for domain in run)
    every_run = [run for runs in attention.values() for run in runs]
    return AttentionTable(
        tuple(domains),
        {method: _average(runs, "share") for method, runs in attention.items()},
        {domain: estimate.mean for domain, estimate in _average(every_run, "coverage").items()},
        {
            method: (
                sum(each.blank for run in runs for each in run.values()),
                sum(each.blank + each.images for run in runs for each in run.values()),
            )
            for method, runs in attention.items()
        },
    )


def _average(runs: Sequence[Mapping[str, Attention]], field: Literal["share", "coverage"]) -> dict[str, Estimate]:
    values: dict[str, list[float]] = {}
    for run in runs:
        for domain, attention in run.items():
            # A run whose maps are all blank has no share.
            if attention.images:
                values.setdefault(domain, []).append(getattr(attention, field))
    return {domain: estimate_mean(each) for domain, each in values.items()}
