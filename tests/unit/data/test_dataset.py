"""DomainBed's splits, and the roles of domains."""

import hashlib

import numpy as np
import pytest
import torch

from domainwise.data.dataset import Dataset, Domain, Roles, assign_roles, split_indices
from domainwise.data.listing import DomainFiles, Listing
from domainwise.errors import DomainwiseError
from domainwise.seeds import seed_hash


def domain(name: str, role: str | None = None) -> Domain:
    return Domain(name, torch.zeros(4, 3, 2, 2, dtype=torch.uint8), torch.tensor([0, 1, 0, 1]), role=role)


def open_dataset() -> Dataset:
    names = ("art", "cartoon", "photo", "sketch")
    return Dataset("pictures", classes=("cat", "dog"), domains=tuple(domain(name) for name in names))


def fixed_dataset() -> Dataset:
    domains = (
        domain("one", "train"),
        domain("two", "train"),
        domain("three", "validation"),
        domain("four", "test"),
        domain("five", "test"),
    )
    return Dataset("numbered", classes=("cat", "dog"), domains=domains)


def md5_number(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode()).digest(), "big") % 2**31


def test_seed_hash_is_the_md5_of_the_tuple_as_text() -> None:
    assert seed_hash(0, 1) == md5_number("(0, 1)")
    assert seed_hash(7) == md5_number("(7,)")
    assert seed_hash("PACS", "ERM", [0, 2], 3, 4) == md5_number("('PACS', 'ERM', [0, 2], 3, 4)")
    assert seed_hash(seed_hash(3, 4), "lr") == md5_number(f"({md5_number('(3, 4)')}, 'lr')")


# From `printf '(0, 0)' | md5sum`, the last eight hexadecimal digits without their highest bit.
@pytest.mark.parametrize(("parts", "expected"), [((0, 0), 894182419), ((0, 1), 1514274641), ((2, 3), 1709828778)])
def test_seed_hash_values(parts: tuple[int, int], expected: int) -> None:
    assert seed_hash(*parts) == expected


@pytest.mark.parametrize("trial_seed", [0, 1, 2])
@pytest.mark.parametrize("domain_index", [0, 3])
@pytest.mark.parametrize(("count", "fraction"), [(10, 0.2), (103, 0.2), (57, 0.1)])
def test_split_is_a_shuffle_cut_at_the_fraction(
    count: int, fraction: float, domain_index: int, trial_seed: int
) -> None:
    keys = list(range(count))
    np.random.RandomState(md5_number(f"({trial_seed}, {domain_index})")).shuffle(keys)
    cut = int(fraction * count)
    split = split_indices(count, trial_seed, domain_index, fraction)
    assert split.holdout.tolist() == keys[:cut]
    assert split.main.tolist() == keys[cut:]


@pytest.mark.parametrize(("count", "fraction"), [(1, 0.2), (4, 0.2), (5, 0.2), (1000, 0.2), (9, 0.0), (9, 0.5)])
def test_main_and_holdout_partition_the_domain(count: int, fraction: float) -> None:
    split = split_indices(count, 0, 0, fraction)
    assert sorted(split.main.tolist() + split.holdout.tolist()) == list(range(count))
    assert len(split.holdout) == int(fraction * count)
    assert split.main.dtype == split.holdout.dtype == torch.int64


def test_splits_differ_between_trials_and_domains() -> None:
    holdouts = {tuple(split_indices(100, trial, e, 0.2).holdout.tolist()) for trial in range(3) for e in range(3)}
    assert len(holdouts) == 9


def test_splitting_does_not_change_global_random_state() -> None:
    np.random.seed(0)
    expected = np.random.RandomState(0).uniform(size=3)
    split_indices(100, 5, 1, 0.2)
    np.testing.assert_array_equal(np.random.uniform(size=3), expected)


def test_all_domains_but_the_test_domains_train() -> None:
    assert assign_roles(open_dataset(), test_domains=["photo"]) == Roles(
        ("art", "cartoon", "sketch"), (), ("photo",), "left_out"
    )
    both = assign_roles(open_dataset(), test_domains=["sketch", "art"])
    assert both == Roles(("cartoon", "photo"), (), ("sketch", "art"), "left_out")


def test_only_named_domains_train() -> None:
    roles = assign_roles(open_dataset(), train_domains=["art"], test_domains=["photo", "sketch"])
    assert roles == Roles(("art",), (), ("photo", "sketch"), "named")
    rest = ("cartoon", "photo", "sketch")
    assert assign_roles(open_dataset(), train_domains=["art"], test_domains=rest) == Roles(("art",), (), rest, "named")


def test_naming_all_training_domains_changes_nothing() -> None:
    named = assign_roles(open_dataset(), train_domains=["art", "cartoon", "sketch"], test_domains=["photo"])
    assert named == assign_roles(open_dataset(), test_domains=["photo"])


def test_a_dataset_can_fix_the_roles() -> None:
    assert assign_roles(fixed_dataset()) == Roles(("one", "two"), ("three",), ("four", "five"), "fixed")


def test_domains_of_a_fixed_role_can_be_left_out() -> None:
    assert assign_roles(fixed_dataset(), train_domains=["two"]) == Roles(
        ("two",), ("three",), ("four", "five"), "named"
    )
    assert assign_roles(fixed_dataset(), test_domains=["five"]) == Roles(("one", "two"), ("three",), ("five",), "fixed")


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (open_dataset, {"test_domains": ["scetch"]}, "unknown domain of pictures 'scetch'; did you mean 'sketch'?"),
        (open_dataset, {"train_domains": ["arts"], "test_domains": ["photo"]}, "did you mean 'art'?"),
        (open_dataset, {}, "no test domain for pictures; choose with --test-domain from art, cartoon, photo, sketch"),
        (open_dataset, {"train_domains": ["art"]}, "no test domain for pictures"),
        (
            open_dataset,
            {"train_domains": ["art"], "test_domains": ["art"]},
            "'art' cannot be both a training and a test domain",
        ),
        (open_dataset, {"test_domains": ["art", "cartoon", "photo", "sketch"]}, "leave at least one to train on"),
        (fixed_dataset, {"test_domains": ["one"]}, "domain 'one' of numbered has the fixed role train, not test"),
        (
            fixed_dataset,
            {"train_domains": ["three"]},
            "domain 'three' of numbered has the fixed role validation, not train",
        ),
        (fixed_dataset, {"train_domains": ["six"]}, "unknown domain of numbered 'six'"),
        (open_dataset, {"test_domains": ["art", "art"]}, "test domain 'art' is given 2 times; give it once"),
        (
            open_dataset,
            {"train_domains": ["photo", "art", "photo"], "test_domains": ["sketch"]},
            "training domain 'photo' is given 2 times; give it once",
        ),
        (fixed_dataset, {"train_domains": ["one", "one"]}, "training domain 'one' is given 2 times"),
        (
            lambda: Dataset("untrained", ("cat", "dog"), (domain("one", "test"),)),
            {},
            "untrained is for evaluation only: it has no training domain",
        ),
    ],
)
def test_invalid_roles_raise(make, arguments: dict[str, list[str]], message: str) -> None:
    with pytest.raises(DomainwiseError) as caught:
        assign_roles(make(), **arguments)
    assert message in str(caught.value)


def test_roles_of_a_listing_are_those_of_its_dataset() -> None:
    domains = tuple(DomainFiles(each.name, (), (), each.role) for each in fixed_dataset().domains)
    assert assign_roles(Listing("numbered", ("cat", "dog"), domains)) == assign_roles(fixed_dataset())


def test_one_class_raises() -> None:
    with pytest.raises(DomainwiseError, match=r"^dataset 'same' has 1 classes; at least two are needed$"):
        Dataset("same", ("cat",), (domain("one"),))
