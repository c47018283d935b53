"""Ranks of perturbations: against numpy on matrices of known rank, and what each method promises."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from domainwise.errors import DomainwiseError
from domainwise.explain.plots.ranks import draw_ranks
from domainwise.explain.ranks import Ranks, effective_rank, numerical_rank, ranks, ranks_of, singular_values
from domainwise.training import RunConfig, train
from domainwise.training.loading import open_run

SMALL = {"train_count": 60, "test_count": 40, "shifts": [0]}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "at": ("at", {}),
    "uat": ("uat", {}),
    "mat": ("mat", {"count": 3}),
    "mat-sample": ("mat", {"count": 3, "weights": "sample"}),
    "ldat": ("ldat", {"rank": 4}),
}
IMAGES = 24


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Ranks]]:
    made = {}
    for name, (algorithm, hparams) in METHODS.items():
        config = RunConfig(
            algorithm=algorithm,
            hparams={"epsilon": 1.0, **hparams},
            steps=3,
            batch_size=16,
            dataset_options=SMALL,
            output=tmp_path_factory.mktemp("runs") / name,
            device="cpu",
        )
        made[name] = ranks(open_run(train(config).folder), IMAGES)
    return made


def of_rank(rank: int, rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, rank, generator=generator) @ torch.randn(rank, columns, generator=generator)


@pytest.mark.parametrize("rank", [1, 3, 20])
@pytest.mark.parametrize("shape", [(20, 90), (90, 20), (40, 40)])
def test_the_rank_is_numpys(rank: int, shape: tuple[int, int]) -> None:
    matrix = of_rank(rank, *shape)
    found = numerical_rank(singular_values(matrix), shape)
    assert int(found) == np.linalg.matrix_rank(matrix.numpy()) == rank


def test_the_threshold_is_that_of_float32() -> None:
    floor = 100 * np.finfo(np.float32).eps
    values = torch.tensor([2.0, 2.02 * floor, 1.98 * floor], dtype=torch.float64)
    assert int(numerical_rank(values, (30, 100))) == 2


def test_the_effective_rank_counts_equal_directions_and_follows_the_entropy() -> None:
    assert float(effective_rank(torch.tensor([2.0, 2.0, 2.0, 0.0]))) == pytest.approx(3)
    assert float(effective_rank(torch.tensor([5.0, 0.0]))) == pytest.approx(1)
    share = np.array([9.0, 1.0]) / 10
    assert float(effective_rank(torch.tensor([3.0, 1.0]))) == pytest.approx(np.exp(-(share * np.log(share)).sum()))


def test_nothing_at_all_has_rank_zero() -> None:
    values = singular_values(torch.zeros(4, 6))
    assert int(numerical_rank(values, (4, 6))) == 0
    assert float(effective_rank(values)) == 0


def test_each_channel_is_a_matrix_of_its_own() -> None:
    """Channel 0: 12 images share 2 perturbations. Channel 1: all differ, each of rank 1."""
    shared = of_rank(2, 12, 48).reshape(12, 6, 8)
    own = torch.stack([of_rank(1, 6, 8, seed) for seed in range(12)])
    found = ranks_of(torch.stack([shared, own], dim=1), "run", "method", "domain")
    assert found.stacked == [2, 12]
    assert found.single == [6, 1]
    assert (found.images, found.shape, found.single_most) == (12, (6, 8), 6)


def test_sample_wise_perturbations_fill_the_matrix(found: dict[str, list[Ranks]]) -> None:
    for each in found["at"]:
        assert each.stacked == [IMAGES] * 3
        assert each.single_most == 32


@pytest.mark.parametrize("name", ["uat", "mat", "ldat"])
def test_what_a_domain_shares_has_rank_one_over_images(name: str, found: dict[str, list[Ranks]]) -> None:
    for each in found[name]:
        assert each.stacked == [1] * 3
        assert each.stacked_effective == pytest.approx([1] * 3)


def test_mixes_of_k_have_rank_k_at_most(found: dict[str, list[Ranks]]) -> None:
    for each in found["mat-sample"]:
        assert each.stacked == [3] * 3
        assert max(each.stacked_effective) > 1.0001


def test_only_low_rank_ones_are_thin_by_themselves(found: dict[str, list[Ranks]]) -> None:
    assert [each.single for each in found["ldat"]] == [[4.0] * 3] * 2
    assert [each.single_most for name in ("uat", "mat") for each in found[name]] == [32] * 4


def test_the_figure_names_every_run(found: dict[str, list[Ranks]]) -> None:
    figure = draw_ranks([each for of in found.values() for each in of])
    figure.draw_without_rendering()
    words = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert words == list(METHODS)
    assert len(figure.axes[1].lines) == len(METHODS)


def test_images_that_are_none_are_refused(tmp_path: Path) -> None:
    config = RunConfig(algorithm="uat", steps=1, batch_size=8, dataset_options=SMALL, output=tmp_path / "r")
    with pytest.raises(DomainwiseError, match="at least 1 image"):
        ranks(open_run(train(config).folder), 0)
