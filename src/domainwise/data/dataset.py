"""What a dataset is: named domains of images, each with the part it plays."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from domainwise.errors import DomainwiseError
from domainwise.hparams import Distribution

Role = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class Domain:
    """The images of one domain.

    Args:
        images: uint8, (n, C, H, W).
        labels: int64, (n,).
        role: the part that the dataset fixes for this domain, or None where the user leaves domains out.
        masks: bool, (n, H, W), true on the object; None where it is not known.
    """

    name: str
    images: Tensor
    labels: Tensor
    role: Role | None = None
    masks: Tensor | None = None

    def __post_init__(self) -> None:
        # Channels-last from the start, so that a batch of them is.
        if self.images.ndim == 4:
            object.__setattr__(self, "images", self.images.contiguous(memory_format=torch.channels_last))

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Dataset:
    """Domains that share classes and image shape, and the settings that suit them.

    Args:
        network, weights: name of the network that a run uses unless told otherwise, and what it starts from.
        is_augmented: whether training sees random views of the images (`domainwise.data.augmentation`).
        defaults: hyperparameters that suit this data; a method takes those that it has.
        search: ranges to draw them from, likewise, where the methods' own do not suit.
        holdout_fraction: share of each domain kept out of training, to select models by.
    """

    name: str
    classes: tuple[str, ...]
    domains: tuple[Domain, ...]
    network: str = "small_cnn"
    weights: str = "none"
    is_augmented: bool = False
    defaults: Mapping[str, float] = field(default_factory=dict)
    search: Mapping[str, Distribution] = field(default_factory=dict)
    steps: int = 5001
    record_every: int = 100
    holdout_fraction: float = 0.2

    def __post_init__(self) -> None:
        if not self.domains:
            raise DomainwiseError(f"dataset {self.name!r} has no domains")
        for domain in self.domains:
            self._check(domain)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """(C, H, W)."""
        return tuple(self.domains[0].images.shape[1:])

    @property
    def domain_names(self) -> tuple[str, ...]:
        return tuple(domain.name for domain in self.domains)

    def index(self, name: str) -> int:
        return self.domain_names.index(name)

    def _check(self, domain: Domain) -> None:
        where = f"domain {domain.name!r} of dataset {self.name!r}"
        if len(domain) == 0:
            raise DomainwiseError(f"{where} is empty")
        if len(domain.images) != len(domain):
            raise DomainwiseError(f"{where} has {len(domain.images)} images but {len(domain)} labels")
        if domain.images.dtype != torch.uint8 or domain.images.ndim != 4:
            given = f"{domain.images.dtype} {tuple(domain.images.shape)}"
            raise DomainwiseError(f"{where} must hold uint8 images (n, C, H, W), not {given}")
        shape = tuple(domain.images.shape[1:])
        if shape != self.image_shape:
            raise DomainwiseError(f"{where} has images of shape {shape}, not {self.image_shape}")
        low, high, last = int(domain.labels.min()), int(domain.labels.max()), len(self.classes) - 1
        if low < 0 or high > last:
            raise DomainwiseError(f"{where} has labels from {low} to {high}; {last + 1} classes allow 0 to {last}")
