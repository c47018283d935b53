"""A run's perturbations: summaries match records, offsets stay in the ball, ranks match numpy, plots are complete."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from domainwise.errors import DomainwiseError
from domainwise.explain.perturbations import (
    PerturbationHistory,
    PerturbationSummary,
    Ranks,
    compute_effective_rank,
    compute_offsets,
    compute_rank,
    compute_ranks,
    compute_singular_values,
    load_perturbation,
    measure_ranks,
    read_perturbation_history,
    summarize_perturbation,
)
from domainwise.explain.plots.perturbations import plot_components, plot_perturbation, plot_ranks
from domainwise.perturbations import MultiplePerturbation
from domainwise.training import RunConfig, train
from domainwise.training.loading import OpenRun, open_run

SMALL = {"train_count": 60, "test_count": 40, "shifts": [0]}
EPSILON = 0.5
Trained = Callable[..., OpenRun]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folders: dict[str, Path] = {}

    def run(algorithm: str, **hparams: Any) -> OpenRun:
        name = f"{algorithm} {hparams}"
        if name not in folders:
            config = RunConfig(
                algorithm=algorithm,
                hparams=hparams if algorithm == "erm" else {"epsilon": EPSILON, **hparams},
                steps=5,
                record_every=2,
                record_first=True,
                batch_size=16,
                dataset_options=SMALL,
                output=tmp_path_factory.mktemp("runs") / "run",
                device="cpu",
                keep_perturbations=algorithm in ("uat", "mat", "ldat"),
            )
            folders[name] = train(config).folder
        return open_run(folders[name])

    return run


def test_the_summary_matches_the_last_record(trained: Trained) -> None:
    for run in (trained("uat"), trained("mat", weights="domain"), trained("ldat"), trained("ldat", solver="factors")):
        summary = summarize_perturbation(run)
        recorded = run.records[-1]["perturbation"]
        assert summary.is_kept
        assert summary.domains == ("style_0", "style_1")
        assert summary.norms == pytest.approx(recorded["norm"], abs=1e-6)
        assert summary.singular_values.mean(1)[:, :5].numpy() == pytest.approx(
            np.array(recorded["singular_values"]), abs=1e-5
        )


def test_low_rank_perturbations_have_rank_at_most_rank(trained: Trained) -> None:
    summary = summarize_perturbation(trained("ldat", rank=4))
    assert summary.rank == 4
    assert summary.ranks == [4, 4]
    assert summarize_perturbation(trained("uat")).ranks == [32, 32]
    for channel in summary.delta.flatten(0, 1):
        assert np.linalg.matrix_rank(channel.numpy()) == 4


@pytest.mark.parametrize(
    ("algorithm", "hparams"),
    [
        ("at", {}),
        ("at", {"steps": 3, "norm": "linf", "epsilon": 0.05}),
        ("uat", {}),
        ("at", {"rank": 2}),
        ("mat", {"weights": "sample", "count": 3}),
        ("mat", {"weights": "assigned", "count": 3}),
        ("mat", {"weights": "soft", "count": 3}),
        ("mat", {"weights": "subspace", "count": 3}),
        ("ldat", {}),
    ],
)
def test_the_perturbation_stays_in_its_ball_and_the_image_in_bounds(
    trained: Trained, algorithm: str, hparams: dict[str, Any]
) -> None:
    summary = summarize_perturbation(trained(algorithm, **hparams))
    assert summary.epsilon == hparams.get("epsilon", EPSILON)
    assert 0 < max(summary.norms) <= summary.epsilon * (1 + 1e-5)
    assert summary.perturbed.min() >= 0
    assert summary.perturbed.max() <= 1
    inside = (summary.perturbed > 0) & (summary.perturbed < 1)
    assert torch.allclose((summary.perturbed - summary.image)[inside], summary.delta[inside], atol=1e-6)


def test_offsets_per_sample_are_reproducible_and_leave_the_run_unchanged(trained: Trained) -> None:
    for run in (trained("at"), trained("mat", weights="sample", count=3)):
        algorithm, perturbation = load_perturbation(run)
        before = {name: tensor.clone() for name, tensor in perturbation.named_parameters()}
        settings = (perturbation.step_size, perturbation.generator, perturbation.space)
        domain = run.dataset.domains[0]
        x, y = domain.images[:4].float() / 255, domain.labels[:4]
        first, again = (compute_offsets(algorithm, x, y, 0) for _ in range(2))
        assert torch.equal(first, again)
        assert not torch.equal(first, compute_offsets(algorithm, x, y, 0, seed=1))
        assert not torch.equal(first[0], first[1])
        assert all(torch.equal(before[name], tensor) for name, tensor in perturbation.named_parameters())
        assert settings == (perturbation.step_size, perturbation.generator, perturbation.space)


@pytest.mark.parametrize("weights", ["assigned", "soft", "subspace"])
def test_explaining_leaves_components_and_counters_unchanged(trained: Trained, weights: str) -> None:
    run = trained("mat", weights=weights, count=3)
    algorithm, perturbation = load_perturbation(run)
    before = {name: tensor.clone() for name, tensor in perturbation.state_dict().items() if name != "_extra_state"}
    assert perturbation.updates == 5
    domain = run.dataset.domains[1]
    x, y = domain.images[:6].float() / 255, domain.labels[:6]
    first, again = (compute_offsets(algorithm, x, y, 1) for _ in range(2))
    assert torch.equal(first, again)
    assert (first.flatten(1).norm(dim=1) > 0.1).all()
    after = perturbation.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert (perturbation.updates, perturbation.is_frozen) == (5, False)
    # Each offset is a combination of its domain's components; an assigned one is a component itself.
    assert isinstance(perturbation, MultiplePerturbation)
    components = perturbation.components()[1].detach().flatten(1).double()
    offsets = first.flatten(1).double()
    rebuilt = offsets @ torch.linalg.pinv(components) @ components
    torch.testing.assert_close(rebuilt, offsets, rtol=0, atol=1e-5)
    if weights == "assigned":
        assert torch.cdist(offsets, components).amin(1).max() <= 1e-6


def test_the_mix_of_a_sample_is_convex(trained: Trained) -> None:
    run = trained("mat", weights="sample", count=3)
    algorithm, perturbation = load_perturbation(run)
    domain = run.dataset.domains[1]
    offsets = compute_offsets(algorithm, domain.images[:5].float() / 255, domain.labels[:5], 1)
    components = perturbation.deltas[1].detach().flatten(1).double().numpy()  # type: ignore[index,union-attr]
    weights, residual, *_ = np.linalg.lstsq(components.T, offsets.flatten(1).double().numpy().T, rcond=None)
    assert np.all(residual < 1e-10)
    assert np.all(weights > 0)
    assert weights.sum(0) == pytest.approx(np.ones(5), abs=1e-5)


def test_released_variants_use_units_of_normalized_images(trained: Trained) -> None:
    summary = summarize_perturbation(trained("uat", variant="released"))
    std = torch.tensor([0.229, 0.224, 0.225]).reshape(-1, 1, 1)
    inside = (summary.perturbed > 0) & (summary.perturbed < 1)
    assert torch.allclose((summary.perturbed - summary.image)[inside], (summary.delta * std)[inside], atol=1e-6)


def test_components_add_up_to_the_perturbation(trained: Trained) -> None:
    run = trained("mat", weights="domain", count=3)
    summary = summarize_perturbation(run)
    assert summary.components is not None
    assert summary.mixing_weights is not None
    assert summary.mixing_weights.numpy() == pytest.approx(
        np.array(run.records[-1]["perturbation"]["mixing_weights"]), abs=1e-6
    )
    assert torch.allclose(
        torch.einsum("dk,dkchw->dchw", summary.mixing_weights, summary.components), summary.delta, atol=1e-6
    )
    flat = summary.components.flatten(2).numpy()
    cosines = [np.mean([_cosine(d[i], d[j]) for i, j in ((0, 1), (0, 2), (1, 2))]) for d in flat]
    assert summary.component_cosines == pytest.approx(cosines, abs=1e-5)
    assert summary.component_norms.numpy() == pytest.approx(np.linalg.norm(flat, axis=-1), abs=1e-6)


@pytest.mark.parametrize(
    ("name", "hparams"),
    [
        ("at", {"prior": "filter", "adversary": "worst_of"}),
        ("uat", {"prior": "tone"}),
        ("mat", {"prior": "filter", "count": 2}),
        ("ldat", {"prior": "spectrum", "rank": 2}),
    ],
)
def test_other_priors_are_shown_by_what_they_do_to_the_image(trained: Trained, name: str, hparams: Any) -> None:
    run = trained(name, **hparams)
    before = run.algorithm().state_dict()["perturbation._extra_state"]["updates"]
    summary = summarize_perturbation(run)
    assert summary.prior == hparams["prior"]
    assert (summary.components, summary.rank) == (None, None)
    torch.testing.assert_close(summary.perturbed, summary.image + summary.delta)
    assert summary.delta.abs().amax() > 0.01
    assert run.algorithm().state_dict()["perturbation._extra_state"]["updates"] == before
    figure = plot_perturbation(summary, read_perturbation_history(run))
    assert f"of prior {hparams['prior']}" in figure.get_suptitle()
    ranks = measure_ranks(run, images=6)
    assert max(ranks[0].stacked) > 1  # the same filter changes each image in its own way


def test_features_have_no_picture(trained: Trained) -> None:
    with pytest.raises(DomainwiseError, match="features inside the network"):
        summarize_perturbation(trained("uat", prior="features"))


def test_the_history_matches_records_and_snapshots(trained: Trained) -> None:
    run = trained("uat")
    history = read_perturbation_history(run)
    assert history.steps == history.snapshot_steps == [0, 2, 4]
    kept = [tensors["delta"].flatten(1).numpy() for tensors in run.folder.read_perturbations().values()]
    for index in range(2):
        first, second, last = (each[index] for each in kept)
        assert float(history.cosine_to_last[0, index]) == pytest.approx(_cosine(first, last), abs=1e-5)
        assert float(history.cosine_to_previous[2, index]) == pytest.approx(_cosine(second, last), abs=1e-5)
    assert torch.isnan(history.cosine_to_previous[0]).all()
    assert history.cosine_to_last[-1].tolist() == pytest.approx([1, 1], abs=1e-5)
    assert history.norms[1].tolist() == pytest.approx(run.records[1]["perturbation"]["norm"])
    assert history.largest_singular_values[1, 0].item() == pytest.approx(
        run.records[1]["perturbation"]["singular_values"][0][0]
    )


def test_perturbations_per_sample_have_no_history(trained: Trained) -> None:
    history = read_perturbation_history(trained("at"))
    assert (history.steps, history.snapshot_steps) == ([], [])
    assert read_perturbation_history(trained("mat", weights="sample", count=3)).snapshot_steps == [0, 2, 4]


def test_the_figure_has_a_row_per_domain_and_no_empty_panels(trained: Trained) -> None:
    # Five panels and a color bar; norms if a perturbation is kept; directions if snapshots were written.
    for run, panels in (
        (trained("at"), 6),
        (trained("mat", weights="sample", count=3), 7),
        (trained("ldat", rank=4), 8),
    ):
        figure = plot_perturbation(summarize_perturbation(run), read_perturbation_history(run))
        figure.draw_without_rendering()
        assert len(figure.axes) == 2 * panels
    limit = [line for axes in figure.axes for line in axes.lines if line.get_label() == "rank 4"]
    assert [line.get_xdata()[0] for line in limit] == [4, 4]  # type: ignore[index]


def test_the_figure_of_components(trained: Trained) -> None:
    kept, own = (summarize_perturbation(trained("mat", count=3, weights=weights)) for weights in ("domain", "assigned"))
    for summary, panels in ((kept, 2 * (1 + 3)), (own, 2 * 3)):
        figure = plot_components(summary)
        figure.draw_without_rendering()
        assert len(figure.axes) == panels


def test_no_cosine_is_cut_off(trained: Trained) -> None:
    run = trained("uat")
    history = replace(
        read_perturbation_history(run),
        cosine_to_previous=torch.tensor([[torch.nan, torch.nan], [-0.9, 0.5], [0.1, 0.2]]),
        cosine_to_last=torch.tensor([[0.1, 0.2], [0.3, 0.4], [1.0, 1.0]]),
    )
    panels = [
        axes for axes in plot_perturbation(summarize_perturbation(run), history).axes if axes.get_ylim()[1] == 1.05
    ]
    assert [panel.get_ylim()[0] for panel in panels] == [pytest.approx(-0.95)] * 2


@pytest.mark.parametrize("channels", [1, 2])
def test_images_with_other_than_three_channels_can_be_plotted(channels: int) -> None:
    delta = torch.linspace(-1, 1, channels * 64).reshape(1, channels, 8, 8)
    image = torch.full((1, channels, 8, 8), 0.5)
    summary = PerturbationSummary("run", "at", ("one",), 1.0, "l2", False, delta, image, image)
    plot_perturbation(summary, PerturbationHistory()).draw_without_rendering()


def test_a_method_without_a_perturbation_raises_an_error(trained: Trained) -> None:
    with pytest.raises(DomainwiseError, match="trained with erm, which has no perturbation; give runs of at"):
        summarize_perturbation(trained("erm"))


METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "at": ("at", {}),
    "uat": ("uat", {}),
    "at-rank": ("at", {"rank": 2}),
    "mat": ("mat", {"count": 3, "weights": "domain"}),
    "mat-sample": ("mat", {"count": 3, "weights": "sample"}),
    "mat-assigned": ("mat", {"count": 3}),
    "mat-subspace": ("mat", {"count": 3, "weights": "subspace"}),
    "ldat": ("ldat", {"rank": 4}),
    "ldat-factors": ("ldat", {"rank": 4, "solver": "factors"}),
}
IMAGES = 24


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Ranks]]:
    measured = {}
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
        measured[name] = measure_ranks(open_run(train(config).folder), IMAGES)
    return measured


def build_matrix(rank: int, rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, rank, generator=generator) @ torch.randn(rank, columns, generator=generator)


@pytest.mark.parametrize("rank", [1, 3, 20])
@pytest.mark.parametrize("shape", [(20, 90), (90, 20), (40, 40)])
def test_the_rank_equals_numpys(rank: int, shape: tuple[int, int]) -> None:
    matrix = build_matrix(rank, *shape)
    computed = compute_rank(compute_singular_values(matrix), shape)
    assert int(computed) == np.linalg.matrix_rank(matrix.numpy()) == rank


def test_the_rank_uses_the_threshold_of_float32() -> None:
    floor = 100 * np.finfo(np.float32).eps
    values = torch.tensor([2.0, 2.02 * floor, 1.98 * floor], dtype=torch.float64)
    assert int(compute_rank(values, (30, 100))) == 2


def test_the_effective_rank_is_exp_of_the_entropy() -> None:
    assert float(compute_effective_rank(torch.tensor([2.0, 2.0, 2.0, 0.0]))) == pytest.approx(3)
    assert float(compute_effective_rank(torch.tensor([5.0, 0.0]))) == pytest.approx(1)
    share = np.array([9.0, 1.0]) / 10
    assert float(compute_effective_rank(torch.tensor([3.0, 1.0]))) == pytest.approx(
        np.exp(-(share * np.log(share)).sum())
    )


def test_a_zero_matrix_has_rank_zero() -> None:
    values = compute_singular_values(torch.zeros(4, 6))
    assert int(compute_rank(values, (4, 6))) == 0
    assert float(compute_effective_rank(values)) == 0


def test_each_channel_is_a_matrix() -> None:
    """Channel 0: 12 images share 2 perturbations. Channel 1: all differ, each of rank 1."""
    shared = build_matrix(2, 12, 48).reshape(12, 6, 8)
    own = torch.stack([build_matrix(1, 6, 8, seed) for seed in range(12)])
    computed = compute_ranks(torch.stack([shared, own], dim=1), "run", "method", "domain")
    assert computed.stacked == [2, 12]
    assert computed.single == [6, 1]
    assert (computed.images, computed.shape, computed.single_max) == (12, (6, 8), 6)


def test_sample_wise_perturbations_have_full_rank(ranks: dict[str, list[Ranks]]) -> None:
    for each in ranks["at"]:
        assert each.stacked == [IMAGES] * 3
        assert each.single_max == 32


@pytest.mark.parametrize("name", ["uat", "mat", "ldat", "ldat-factors"])
def test_perturbations_per_domain_have_rank_one_over_images(name: str, ranks: dict[str, list[Ranks]]) -> None:
    for each in ranks[name]:
        assert each.stacked == [1] * 3
        assert each.stacked_effective == pytest.approx([1] * 3)


def test_mixes_of_k_components_have_rank_at_most_k(ranks: dict[str, list[Ranks]]) -> None:
    for each in ranks["mat-sample"]:
        assert each.stacked == [3] * 3
        assert max(each.stacked_effective) > 1.0001


@pytest.mark.parametrize("name", ["mat-assigned", "mat-subspace"])
def test_perturbations_by_gradient_have_rank_at_most_k(name: str, ranks: dict[str, list[Ranks]]) -> None:
    for each in ranks[name]:
        assert max(each.stacked) <= 3
        assert min(each.stacked) >= 2
        assert min(each.stacked_effective) > 1.02


def test_low_rank_per_sample(ranks: dict[str, list[Ranks]]) -> None:
    for each in ranks["at-rank"]:
        assert each.single_max == 2
        assert each.stacked == [IMAGES] * 3


def test_only_low_rank_perturbations_have_low_rank_within_one(ranks: dict[str, list[Ranks]]) -> None:
    for name in ("ldat", "ldat-factors"):
        assert [each.single for each in ranks[name]] == [[4.0] * 3] * 2
    assert [each.single_max for name in ("uat", "mat") for each in ranks[name]] == [32] * 4


def test_the_figure_of_ranks_names_every_run(ranks: dict[str, list[Ranks]]) -> None:
    figure = plot_ranks([each for of in ranks.values() for each in of])
    figure.draw_without_rendering()
    names = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert names == list(METHODS)
    assert len(figure.axes[1].lines) == len(METHODS)


def test_the_figure_of_ranks_of_domains_with_different_numbers_of_images() -> None:
    generator = torch.Generator().manual_seed(0)
    ranks = [
        compute_ranks(torch.randn(count, 3, 8, 8, generator=generator), "run", "at", name)
        for name, count in (("a", 5), ("b", 9))
    ]
    figure = plot_ranks(ranks)
    assert figure.axes[0].get_title() == "over a domain's images: 5 to 9 x 64 per channel"
    (spectrum,) = figure.axes[1].get_lines()
    both = (ranks[0].stacked_spectrum.mean(0).tolist() + [0.0] * 4, ranks[1].stacked_spectrum.mean(0).tolist())
    assert spectrum.get_ydata() == pytest.approx([(one + other) / 2 for one, other in zip(*both, strict=True)])


def test_ranks_over_no_images_raise_an_error(tmp_path: Path) -> None:
    config = RunConfig(algorithm="uat", steps=1, batch_size=8, dataset_options=SMALL, output=tmp_path / "r")
    with pytest.raises(DomainwiseError, match="images must be at least 1"):
        measure_ranks(open_run(train(config).folder), 0)


def _cosine(one: Any, other: Any) -> float:
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))
