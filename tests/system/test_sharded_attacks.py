"""Two processes that each have a part of a batch keep the same perturbation as one process with all of it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from sharded_attacks import (
    CASES,
    ONE_PASS,
    SHARES,
    WHOLE,
    WRAPPERS,
    ascend,
    attack,
    attack_from_own_starts,
    state_of,
    train_features,
)
from torch import Tensor
from warm_python import WarmPython

SCRIPT = Path(__file__).with_name("attack_shard.py")


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory, warm_python: WarmPython) -> list[dict[str, Any]]:
    """What each of the two processes saved."""
    folder = tmp_path_factory.mktemp("ranks")
    outputs = [folder / f"rank{rank}.pt" for rank in range(2)]
    processes = [warm_python.start(SCRIPT, rank, folder / "rendezvous", output) for rank, output in enumerate(outputs)]
    for process in processes:
        assert process.wait() == 0, process.err
    return [torch.load(output, weights_only=True) for output in outputs]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", CASES)
def test_two_processes_attack_as_one(name: str, share: str, ranks: list[dict[str, Any]]) -> None:
    first, second = (rank[f"{name} attack {share}"] for rank in ranks)
    expected = attack(CASES[name](), WHOLE)
    # Each sample is perturbed as in the whole batch.
    perturbed = expected.pop("perturbed")
    for rank, part in zip((first, second), SHARES[share], strict=True):
        torch.testing.assert_close(rank.pop("perturbed"), perturbed[part], atol=1e-6, rtol=1e-5)
    assert_moved_as_one(name, first, second, expected)


# Parts of different sizes are not one batch: a mean loss weighs the samples of the smaller one more.
@pytest.mark.parametrize("share", ["even", "skewed", "disjoint"])
@pytest.mark.parametrize("use", ["ascend", "by share"])
@pytest.mark.parametrize("name", ONE_PASS)
def test_two_processes_ascend_as_one(name: str, use: str, share: str, ranks: list[dict[str, Any]]) -> None:
    first, second = (rank[f"{name} {use} {share}"] for rank in ranks)
    assert_moved_as_one(name, first, second, ascend(CASES[name](), WHOLE, by_share=use == "by share"))


def assert_moved_as_one(
    name: str, first: dict[str, Tensor], second: dict[str, Tensor], expected: dict[str, Tensor]
) -> None:
    start = state_of(CASES[name]())
    assert expected.keys() == first.keys() == start.keys()
    for key, tensor in expected.items():
        assert torch.equal(first[key], second[key])
        torch.testing.assert_close(first[key], tensor, atol=1e-6, rtol=1e-5)
        assert key == "idle" or not torch.equal(tensor, start[key])


@pytest.mark.parametrize("name", WRAPPERS)
def test_an_attack_may_call_a_network_wrapped_for_distributed_training(name: str, ranks: list[dict[str, Any]]) -> None:
    first, second = ranks
    for key, tensor in first[f"{name} network"].items():
        assert torch.equal(first[f"{name} wrapper"][key], tensor)
        # Each rank has its own statistics until the next forward pass.
        assert "running" in key or torch.equal(second[f"{name} wrapper"][key], tensor)


def test_features_of_a_network_wrapped_for_distributed_training(ranks: list[dict[str, Any]]) -> None:
    first, second = (rank["features"] for rank in ranks)
    for key, tensor in first.items():
        assert torch.equal(second[key], tensor)
    # Statistics are those of a rank's own part, so this is not quite the whole batch.
    expected = train_features(lambda network: network, WHOLE)
    assert not torch.allclose(first["3.weight"], expected["3.weight"], atol=1e-6)
    torch.testing.assert_close(first["3.weight"], expected["3.weight"], atol=0.05, rtol=0)


@pytest.mark.parametrize("one_pass", [False, True])
def test_ranks_that_drew_different_starts_begin_with_that_of_the_first(
    one_pass: bool, ranks: list[dict[str, Any]]
) -> None:
    first, second = (rank[f"own starts {one_pass}"] for rank in ranks)
    assert torch.equal(first["deltas"], second["deltas"])
    expected = attack_from_own_starts(0, WHOLE, one_pass=one_pass)
    torch.testing.assert_close(first["deltas"], expected["deltas"], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("counts", [(3, 3), (1, 4), (2, 0), (0, 0)])
def test_rows_of_all_ranks_are_gathered_in_order(counts: tuple[int, int], ranks: list[dict[str, Any]]) -> None:
    expected = torch.cat([torch.arange(2 * count).reshape(-1, 2) + 100 * rank for rank, count in enumerate(counts)])
    for rank in ranks:
        gathered = rank[f"rows {counts}"]
        assert torch.equal(gathered["int"], expected)
        assert torch.equal(gathered["float"], expected.float())
