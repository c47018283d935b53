"""What a dataset is: named domains of images, each with the part it plays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from domainwise.errors import DomainwiseError, unknown
from domainwise.hparams import Distribution
from domainwise.seeds import seed_hash

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


@dataclass(frozen=True)
class Split:
    """Indices of a domain's images: `main` to train or test on, `holdout` to select by."""

    main: Tensor
    holdout: Tensor


def split_indices(count: int, trial_seed: int, domain_index: int, holdout_fraction: float) -> Split:
    """The split that DomainBed makes for this trial and domain."""
    keys = list(range(count))
    np.random.RandomState(seed_hash(trial_seed, domain_index)).shuffle(keys)
    cut = int(count * holdout_fraction)
    return Split(main=torch.tensor(keys[cut:]), holdout=torch.tensor(keys[:cut], dtype=torch.int64))


def split_domains(dataset: Dataset, trial_seed: int) -> dict[str, Split]:
    """The split of every domain, by name."""
    return {
        domain.name: split_indices(len(domain), trial_seed, index, dataset.holdout_fraction)
        for index, domain in enumerate(dataset.domains)
    }


RoleAssignment = Literal["left_out", "named", "fixed"]


@dataclass(frozen=True)
class Roles:
    """Domain names by the part they play, and how that came about.

    `left_out`: test domains were left out and all others train; `fixed`: by the dataset; `named`: only some
    train of those that could, or three and more domains were left out.
    """

    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]
    assignment: RoleAssignment


def assign_roles(dataset: Dataset, train_domains: Sequence[str] = (), test_domains: Sequence[str] = ()) -> Roles:
    """Who trains, validates and tests.

    A dataset may fix the roles; then domains can only be named to leave the others of that role out. Otherwise the
    test domains must be named, and all others train unless the training domains are named too.
    """
    for name in (*train_domains, *test_domains):
        if name not in dataset.domain_names:
            raise unknown(f"domain of {dataset.name}", name, dataset.domain_names)
    if both := set(train_domains) & set(test_domains):
        raise DomainwiseError(f"domain {min(both)!r} cannot both train and test")
    fixed = {domain.name: domain.role for domain in dataset.domains if domain.role is not None}
    if fixed:
        for given, role in ((train_domains, "train"), (test_domains, "test")):
            for name in given:
                if fixed.get(name) != role:
                    part = fixed.get(name, "no part")
                    raise DomainwiseError(f"dataset {dataset.name} fixes domain {name!r} for {part}, not {role}")
        of = {role: tuple(n for n in fixed if fixed[n] == role) for role in ("train", "validation", "test")}
        trained = tuple(train_domains) or of["train"]
        how: RoleAssignment = "fixed" if set(trained) == set(of["train"]) else "named"
        return Roles(trained, of["validation"], tuple(test_domains) or of["test"], how)
    if not test_domains:
        raise DomainwiseError(f"say which domains of {dataset.name} to test on: {', '.join(dataset.domain_names)}")
    rest = tuple(name for name in dataset.domain_names if name not in test_domains)
    if not rest:
        raise DomainwiseError("all domains are left out to test on; none is left to train on")
    trained = tuple(train_domains) or rest
    # Selection leaves out one domain, or two to select by one of them; who leaves out more is after another task.
    how = "left_out" if set(trained) == set(rest) and len(test_domains) <= 2 else "named"
    return Roles(trained, (), tuple(test_domains), how)
