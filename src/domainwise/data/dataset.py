"""Datasets: named domains of images, their splits into main and holdout parts, and their roles in a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from domainwise.errors import DomainwiseError, unknown_choice
from domainwise.hparams import Distribution
from domainwise.seeds import seed_hash

Role = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class Domain:
    """The images of one domain.

    Args:
        images: uint8, (n, C, H, W).
        labels: int64, (n,).
        role: role that the dataset fixes for this domain; None if the user chooses the test domains.
        masks: bool, (n, H, W), true on the object; None if unknown.
    """

    name: str
    images: Tensor
    labels: Tensor
    role: Role | None = None
    masks: Tensor | None = None

    def __post_init__(self) -> None:
        # Stored channels-last, so that batches are channels-last without a copy.
        if self.images.ndim == 4:
            object.__setattr__(self, "images", self.images.contiguous(memory_format=torch.channels_last))

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Dataset:
    """Domains that share classes and image shape, with default settings for training on them.

    Args:
        name: name in records and run folders.
        network, weights: default network and its initial weights.
        is_augmented: whether training images are augmented (`domainwise.data.augmentation`).
        defaults: default hyperparameters for this dataset; a method uses those that it has.
        search: search distributions that replace the methods' own on this dataset.
        steps, record_every: default number of training steps, and steps between two records.
        holdout_fraction: fraction of each domain kept out of training for model selection.
        revision: version of data that others may change, such as the commit of a dataset on the Hugging Face Hub.
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
    revision: str | None = None

    def __post_init__(self) -> None:
        if not self.domains:
            raise DomainwiseError(f"dataset {self.name!r} has no domains")
        if len(self.classes) < 2:
            raise DomainwiseError(f"dataset {self.name!r} has {len(self.classes)} classes; at least two are needed")
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
            actual = f"{domain.images.dtype} {tuple(domain.images.shape)}"
            raise DomainwiseError(f"{where} must have uint8 images (n, C, H, W), got {actual}")
        shape = tuple(domain.images.shape[1:])
        if shape != self.image_shape:
            raise DomainwiseError(f"{where} has images of shape {shape}; the first domain has {self.image_shape}")
        low, high, last = int(domain.labels.min()), int(domain.labels.max()), len(self.classes) - 1
        if low < 0 or high > last:
            raise DomainwiseError(f"{where} has labels from {low} to {high}; expected 0 to {last}")


@dataclass(frozen=True)
class Split:
    """Indices of a domain's images: `main` for training or testing, `holdout` for model selection."""

    main: Tensor
    holdout: Tensor


def split_indices(count: int, trial_seed: int, domain_index: int, holdout_fraction: float) -> Split:
    """Return the split of `count` images that DomainBed makes for this trial and domain."""
    keys = list(range(count))
    np.random.RandomState(seed_hash(trial_seed, domain_index)).shuffle(keys)
    cut = int(count * holdout_fraction)
    return Split(main=torch.tensor(keys[cut:]), holdout=torch.tensor(keys[:cut], dtype=torch.int64))


def split_domains(dataset: Dataset, trial_seed: int) -> dict[str, Split]:
    """Return the split of every domain, by name."""
    return {
        domain.name: split_indices(len(domain), trial_seed, index, dataset.holdout_fraction)
        for index, domain in enumerate(dataset.domains)
    }


# The values are part of the record format.
RoleAssignment = Literal["left_out", "named", "fixed"]


@dataclass(frozen=True)
class Roles:
    """Names of the training, validation and test domains.

    Args:
        assignment: how the roles were assigned. `left_out`: one or two test domains were left out and all others train;
            `fixed`: by the dataset; `named`: only some of the possible domains train, or three or more were left out.
    """

    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]
    assignment: RoleAssignment


class _NamedDomain(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def role(self) -> Role | None: ...


class NamedDomains(Protocol):
    """All that roles depend on: a dataset, or the listing of its files, which is there before any image."""

    @property
    def name(self) -> str: ...

    @property
    def domains(self) -> Sequence[_NamedDomain]: ...


def assign_roles(dataset: NamedDomains, train_domains: Sequence[str] = (), test_domains: Sequence[str] = ()) -> Roles:
    """Return the role of each domain.

    If the dataset fixes the roles, naming domains only leaves out the others of that role. Otherwise the test domains
    must be named, and all others train unless the training domains are named too. With all domains named as training
    domains, nothing is tested: that is how to train a final model.

    Raises:
        DomainwiseError: a name is unknown or given twice, a domain has two roles or the wrong one, or a role has no
            domain.
    """
    known = tuple(domain.name for domain in dataset.domains)
    for kind, names in (("training", train_domains), ("test", test_domains)):
        for name in names:
            if name not in known:
                raise unknown_choice(f"domain of {dataset.name}", name, known)
            if names.count(name) > 1:
                raise DomainwiseError(f"{kind} domain {name!r} is given {names.count(name)} times; give it once")
    if overlap := set(train_domains) & set(test_domains):
        raise DomainwiseError(f"domain {min(overlap)!r} cannot be both a training and a test domain")
    fixed = {domain.name: domain.role for domain in dataset.domains if domain.role is not None}
    assignment: RoleAssignment
    if fixed:
        for names, role in ((train_domains, "train"), (test_domains, "test")):
            for name in names:
                if fixed.get(name) != role:
                    raise DomainwiseError(
                        f"domain {name!r} of {dataset.name} has the fixed role {fixed.get(name, 'none')}, not {role}"
                    )
        by_role = {role: tuple(n for n in fixed if fixed[n] == role) for role in ("train", "validation", "test")}
        train = tuple(train_domains) or by_role["train"]
        if not train:
            raise DomainwiseError(f"{dataset.name} is for evaluation only: it has no training domain")
        assignment = "fixed" if set(train) == set(by_role["train"]) else "named"
        return Roles(train, by_role["validation"], tuple(test_domains) or by_role["test"], assignment)
    if not test_domains and set(train_domains) < set(known):
        raise DomainwiseError(f"no test domain for {dataset.name}; choose with --test-domain from {', '.join(known)}")
    others = tuple(name for name in known if name not in test_domains)
    if not others:
        raise DomainwiseError(f"all domains of {dataset.name} are test domains; leave at least one to train on")
    train = tuple(train_domains) or others
    # Leave-one-out selection leaves out one domain, or two and selects by one of them; more is a different protocol.
    assignment = "left_out" if set(train) == set(others) and len(test_domains) <= 2 else "named"
    return Roles(train, (), tuple(test_domains), assignment)
