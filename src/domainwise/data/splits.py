"""A domain's two parts, and the part that each domain plays in a run."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from domainwise.data.dataset import Dataset
from domainwise.errors import DomainwiseError, unknown
from domainwise.seeds import seed_hash


@dataclass(frozen=True)
class Split:
    """Indices of a domain's images: `main` to train or test on, `holdout` to select by."""

    main: Tensor
    holdout: Tensor


def split(count: int, trial_seed: int, domain_index: int, holdout_fraction: float) -> Split:
    """The split that DomainBed makes for this trial and domain."""
    keys = list(range(count))
    np.random.RandomState(seed_hash(trial_seed, domain_index)).shuffle(keys)
    cut = int(count * holdout_fraction)
    return Split(main=torch.tensor(keys[cut:]), holdout=torch.tensor(keys[:cut], dtype=torch.int64))


def splits_of(dataset: Dataset, trial_seed: int) -> dict[str, Split]:
    """The split of every domain, by name."""
    return {
        domain.name: split(len(domain), trial_seed, index, dataset.holdout_fraction)
        for index, domain in enumerate(dataset.domains)
    }


HowGiven = Literal["left_out", "named", "fixed"]


@dataclass(frozen=True)
class Roles:
    """Domain names by the part they play, and how that came about.

    `left_out`: test domains were left out and all others train; `fixed`: by the dataset; `named`: only some
    train of those that could, or three and more domains were left out.
    """

    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]
    given: HowGiven


def roles(dataset: Dataset, train_domains: Sequence[str] = (), test_domains: Sequence[str] = ()) -> Roles:
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
        how: HowGiven = "fixed" if set(trained) == set(of["train"]) else "named"
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
