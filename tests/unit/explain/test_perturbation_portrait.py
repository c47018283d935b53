"""Portraits of perturbations: true to the run, inside the ball, and drawn whole."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from domainwise.errors import DomainwiseError
from domainwise.explain.offsets import offset_of_each, perturbed_algorithm
from domainwise.explain.perturbations import Movement, Portrait, movement, portrait
from domainwise.explain.plots.perturbations import draw, draw_components
from domainwise.training import RunConfig, train
from domainwise.training.loading import OpenRun, open_run

SMALL = {"train_count": 60, "test_count": 40, "shifts": [0]}
EPSILON = 0.5
Trained = Callable[..., OpenRun]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    made: dict[str, Path] = {}

    def run(algorithm: str, **hparams: Any) -> OpenRun:
        name = f"{algorithm} {hparams}"
        if name not in made:
            config = RunConfig(
                algorithm=algorithm,
                hparams=hparams if algorithm == "erm" else {"epsilon": EPSILON, **hparams},
                steps=5,
                record_every=2,
                batch_size=16,
                dataset_options=SMALL,
                output=tmp_path_factory.mktemp("runs") / "run",
                device="cpu",
                keep_perturbations=algorithm in ("uat", "mat", "ldat"),
            )
            made[name] = train(config).folder
        return open_run(made[name])

    return run


def test_it_is_what_the_last_record_describes(trained: Trained) -> None:
    for algorithm in ("uat", "mat", "ldat"):
        run = trained(algorithm)
        made = portrait(run)
        described = run.records[-1]["perturbation"]
        assert made.is_kept
        assert made.domains == ("style_0", "style_1")
        assert made.norms == pytest.approx(described["norm"], abs=1e-6)
        assert made.singular_values.mean(1)[:, :5].numpy() == pytest.approx(
            np.array(described["singular_values"]), abs=1e-5
        )


def test_low_rank_has_at_most_rank_singular_values(trained: Trained) -> None:
    made = portrait(trained("ldat", rank=4))
    assert made.rank == 4
    assert made.ranks == [4, 4]
    assert portrait(trained("uat")).ranks == [32, 32]
    for channel in made.delta.flatten(0, 1):
        assert np.linalg.matrix_rank(channel.numpy()) == 4


@pytest.mark.parametrize(
    ("algorithm", "hparams"),
    [
        ("at", {}),
        ("at", {"steps": 3, "norm": "linf", "epsilon": 0.05}),
        ("uat", {}),
        ("mat", {"weights": "sample", "count": 3}),
        ("ldat", {}),
    ],
)
def test_it_stays_in_its_ball_and_the_image_in_bounds(
    trained: Trained, algorithm: str, hparams: dict[str, Any]
) -> None:
    made = portrait(trained(algorithm, **hparams))
    assert made.epsilon == hparams.get("epsilon", EPSILON)
    assert 0 < max(made.norms) <= made.epsilon * (1 + 1e-5)
    assert made.perturbed.min() >= 0
    assert made.perturbed.max() <= 1
    inside = (made.perturbed > 0) & (made.perturbed < 1)
    assert torch.allclose((made.perturbed - made.image)[inside], made.delta[inside], atol=1e-6)


def test_perturbations_made_anew_are_the_same_every_time_and_leave_the_run_as_it_was(trained: Trained) -> None:
    for run in (trained("at"), trained("mat", weights="sample", count=3)):
        algorithm, perturbation = perturbed_algorithm(run)
        before = {name: tensor.clone() for name, tensor in perturbation.named_parameters()}
        settings = (perturbation.step_size, perturbation.generator, perturbation.space)
        domain = run.dataset.domains[0]
        x, y = domain.images[:4].float() / 255, domain.labels[:4]
        first, again = (offset_of_each(algorithm, x, y, 0) for _ in range(2))
        assert torch.equal(first, again)
        assert not torch.equal(first, offset_of_each(algorithm, x, y, 0, seed=1))
        assert not torch.equal(first[0], first[1])
        assert all(torch.equal(before[name], tensor) for name, tensor in perturbation.named_parameters())
        assert settings == (perturbation.step_size, perturbation.generator, perturbation.space)


def test_a_samples_mix_is_convex(trained: Trained) -> None:
    run = trained("mat", weights="sample", count=3)
    algorithm, perturbation = perturbed_algorithm(run)
    domain = run.dataset.domains[1]
    offsets = offset_of_each(algorithm, domain.images[:5].float() / 255, domain.labels[:5], 1)
    components = perturbation.deltas[1].detach().flatten(1).double().numpy()  # type: ignore[index,union-attr]
    weights, residual, *_ = np.linalg.lstsq(components.T, offsets.flatten(1).double().numpy().T, rcond=None)
    assert np.all(residual < 1e-10)
    assert np.all(weights > 0)
    assert weights.sum(0) == pytest.approx(np.ones(5), abs=1e-5)


def test_released_variants_are_in_units_of_normalized_images(trained: Trained) -> None:
    made = portrait(trained("uat", variant="released"))
    std = torch.tensor([0.229, 0.224, 0.225]).reshape(-1, 1, 1)
    inside = (made.perturbed > 0) & (made.perturbed < 1)
    assert torch.allclose((made.perturbed - made.image)[inside], (made.delta * std)[inside], atol=1e-6)


def test_components(trained: Trained) -> None:
    run = trained("mat", count=3)
    made = portrait(run)
    assert made.components is not None
    assert made.mixing_weights is not None
    assert made.mixing_weights.numpy() == pytest.approx(
        np.array(run.records[-1]["perturbation"]["mixing_weights"]), abs=1e-6
    )
    assert torch.allclose(torch.einsum("dk,dkchw->dchw", made.mixing_weights, made.components), made.delta, atol=1e-6)
    flat = made.components.flatten(2).numpy()
    cosines = [np.mean([_cosine(d[i], d[j]) for i, j in ((0, 1), (0, 2), (1, 2))]) for d in flat]
    assert made.component_cosines == pytest.approx(cosines, abs=1e-5)
    assert made.component_norms.numpy() == pytest.approx(np.linalg.norm(flat, axis=-1), abs=1e-6)


def test_how_it_moved(trained: Trained) -> None:
    run = trained("uat")
    moved = movement(run)
    assert moved.steps == moved.kept_steps == [0, 2, 4]
    kept = [tensors["delta"].flatten(1).numpy() for tensors in run.folder.read_perturbations().values()]
    for index in range(2):
        assert float(moved.to_last[0, index]) == pytest.approx(_cosine(kept[0][index], kept[2][index]), abs=1e-5)
        assert float(moved.to_previous[2, index]) == pytest.approx(_cosine(kept[1][index], kept[2][index]), abs=1e-5)
    assert torch.isnan(moved.to_previous[0]).all()
    assert moved.to_last[-1].tolist() == pytest.approx([1, 1], abs=1e-5)
    assert moved.norms[1].tolist() == pytest.approx(run.records[1]["perturbation"]["norm"])
    assert moved.leading[1, 0].item() == pytest.approx(run.records[1]["perturbation"]["singular_values"][0][0])


def test_nothing_moves_that_is_made_anew(trained: Trained) -> None:
    moved = movement(trained("at"))
    assert (moved.steps, moved.kept_steps) == ([], [])
    assert movement(trained("mat", weights="sample", count=3)).kept_steps == [0, 2, 4]


def test_the_picture_has_a_row_a_domain_and_leaves_out_what_there_is_not(trained: Trained) -> None:
    # Five panels and a colour bar; sizes of what is kept; directions of what was written down.
    for run, panels in (
        (trained("at"), 6),
        (trained("mat", weights="sample", count=3), 7),
        (trained("ldat", rank=4), 8),
    ):
        figure = draw(portrait(run), movement(run))
        figure.draw_without_rendering()
        assert len(figure.axes) == 2 * panels
    limit = [line for axes in figure.axes for line in axes.lines if line.get_label() == "rank 4"]
    assert [line.get_xdata()[0] for line in limit] == [4, 4]  # type: ignore[index]


def test_the_picture_of_components(trained: Trained) -> None:
    kept, own = (portrait(trained("mat", count=3, **more)) for more in ({}, {"weights": "sample"}))
    for made, panels in ((kept, 2 * (1 + 3)), (own, 2 * 3)):
        figure = draw_components(made)
        figure.draw_without_rendering()
        assert len(figure.axes) == panels


@pytest.mark.parametrize("channels", [1, 2])
def test_images_of_other_than_three_channels_can_be_drawn(channels: int) -> None:
    delta = torch.linspace(-1, 1, channels * 64).reshape(1, channels, 8, 8)
    image = torch.full((1, channels, 8, 8), 0.5)
    made = Portrait("run", "at", ("one",), 1.0, "l2", False, delta, image, image)
    draw(made, Movement()).draw_without_rendering()


def test_a_method_without_a_perturbation_is_named(trained: Trained) -> None:
    with pytest.raises(DomainwiseError, match="trained with erm, which has no perturbation; give runs of at"):
        portrait(trained("erm"))


def _cosine(one: Any, other: Any) -> float:
    return float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other)))
