"""Datasets that cannot be trained on."""

import torch

from domainwise.data import Dataset, Domain


def empty(seed: int) -> Dataset:
    return _dataset(_domain("full", 20), _domain("hollow", 0))


def mislabelled(seed: int) -> Dataset:
    wrong = Domain("odd", torch.zeros(20, 3, 32, 32, dtype=torch.uint8), torch.full((20,), 2), "train")
    return _dataset(_domain("full", 20), wrong)


def uneven(seed: int) -> Dataset:
    return _dataset(_domain("full", 100), _domain("scant", 12))


def _domain(name: str, count: int) -> Domain:
    return Domain(
        name, torch.zeros(count, 3, 32, 32, dtype=torch.uint8), torch.zeros(count, dtype=torch.int64), "train"
    )


def _dataset(*domains: Domain) -> Dataset:
    return Dataset("bad", ("a", "b"), domains)
