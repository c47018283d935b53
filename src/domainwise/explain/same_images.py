"""The same images of a domain as several runs see them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from torch import Tensor

from domainwise.data import Dataset, Domain
from domainwise.data.batches import in_order
from domainwise.errors import DomainwiseError, unknown
from domainwise.explain.attention import Explained
from domainwise.explain.gradcam_picture import column, draw
from domainwise.runs.reopen import OpenRun
from domainwise.runs.store import Which


@dataclass(frozen=True)
class Examples:
    """Some images of a domain, by their indices."""

    dataset: Dataset
    domain: Domain
    indices: Tensor

    def batch(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Images (n, C, H, W) in [0, 1] and labels (n,)."""
        images, labels = zip(*in_order(self.domain, self.indices, device), strict=True)
        return torch.cat(images), torch.cat(labels)


def examples_of(run: OpenRun, name: str, count: int, seed: int = 0) -> Examples:
    """Images drawn from the main part of the domain `name`."""
    if name not in run.dataset.domain_names:
        raise unknown(f"domain of {run.dataset.name}", name, run.dataset.domain_names)
    main = run.splits[name].main
    if not 1 <= count <= len(main):
        raise DomainwiseError(f"--images must be from 1 to {len(main)}, as {name} has, not {count}")
    order = torch.randperm(len(main), generator=torch.Generator().manual_seed(seed))
    return Examples(run.dataset, run.dataset.domains[run.dataset.index(name)], main[order[:count]])


def draw_grad_cam(
    runs: Mapping[str, OpenRun],
    examples: Examples,
    *,
    which: Which = "best",
    classes: Explained = "predicted",
    layer: str | None = None,
    device: torch.device | None = None,
) -> Figure:
    """Grad-CAM of each run, by its label, on the examples; other arguments as in `object_attention`."""
    device = device or torch.device("cpu")
    images, labels = examples.batch(device)
    explained = labels if classes == "true" else None
    columns = [
        column(re.sub(",? ", "\n", label, count=1), run.model(which).to(device), images, explained, layer)
        for label, run in runs.items()
    ]
    domain = examples.domain
    masks = None if domain.masks is None else domain.masks[examples.indices]
    title = f"{examples.dataset.name}, {domain.name}: what speaks for the {classes} class"
    return draw(images.cpu(), labels.cpu(), examples.dataset.classes, columns, masks, title)
