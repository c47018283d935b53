"""Accuracy under attack: clean at radius zero, inside the ball, lower where the ball is large, the same every time."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import Tensor, nn

from domainwise.data.dataset import Domain, Split
from domainwise.errors import DomainwiseError
from domainwise.explain.robustness import (
    ATTACK_KINDS,
    AttackKind,
    attack_run,
    average_by_epsilon,
    evaluate_under_attack,
    read_accuracy_by_epsilon,
)
from domainwise.explain.run_names import labels, run_names
from domainwise.storage.run_folder import RunFolder
from domainwise.training import RunConfig, train
from domainwise.training.loading import OpenRun, open_run
from run_folders import write_run

CPU = torch.device("cpu")
COUNTS = {"train_count": 240, "test_count": 120, "shifts": [0, 8]}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> OpenRun:
    output = tmp_path_factory.mktemp("runs") / "run"
    config = RunConfig(algorithm="erm", steps=120, batch_size=32, dataset_options=COUNTS, output=output, device="cpu")
    return open_run(train(config).folder)


class Watched(nn.Module):
    """A linear model that remembers what it was shown, while climbing and while measured."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(2, 48, generator=generator))
        self.climbed: list[Tensor] = []
        self.measured: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        (self.climbed if torch.is_grad_enabled() else self.measured).append(x.detach().clone())
        return x.flatten(1) @ self.weight.T


@pytest.fixture
def gray() -> tuple[Domain, Split]:
    """Images far from the bounds, so that a small offset is not clipped; main and holdout of different grays."""
    images = torch.full((30, 3, 4, 4), 128, dtype=torch.uint8)
    images[20:] = 100
    labels_ = torch.arange(30) % 2
    return Domain("gray", images, labels_), Split(main=torch.arange(20), holdout=torch.arange(20, 30))


@pytest.mark.parametrize("kind", ATTACK_KINDS)
def test_at_radius_zero_it_is_the_recorded_accuracy(run: OpenRun, kind: AttackKind) -> None:
    for each in attack_run(run, radii=[0.0], kinds=[kind], which="last"):
        assert each.accuracy == run.records[-1]["accuracy"][each.domain]["main"]
        assert each.images == len(run.splits[each.domain].main)


def test_a_large_ball_costs_accuracy(run: OpenRun) -> None:
    found = attack_run(run, domains=["style_0"], radii=[0, 0.5, 4], steps=5, which="last", images=60)
    sample = {each.radius: each.accuracy for each in found if each.kind == "sample"}
    domain = {each.radius: each.accuracy for each in found if each.kind == "domain"}
    assert sample[0] > 0.6  # or there would be nothing to lose
    assert sample[4] <= sample[0.5] <= sample[0]
    assert sample[4] < sample[0] - 0.3
    assert domain[4] < domain[0]
    # An image's own worst point is at least as bad for it as one point for all.
    assert sample[4] <= domain[4]


def test_the_same_seed_gives_the_same_numbers(run: OpenRun) -> None:
    one, again = (attack_run(run, domains=["shift_0"], radii=[0.1, 0.5], steps=2, images=60) for _ in range(2))
    assert one == again


@pytest.mark.parametrize("kind", ATTACK_KINDS)
def test_the_seed_draws_where_an_attack_starts(gray: tuple[Domain, Split], kind: AttackKind) -> None:
    def shown(seed: int) -> Tensor:
        model = Watched()
        evaluate_under_attack(model, *gray, kind, 0.3, 1, seed, CPU)
        return torch.cat(model.measured)

    assert torch.equal(shown(1), shown(1))
    assert not torch.equal(shown(1), shown(2))


def test_the_model_is_the_one_asked_for(run: OpenRun, tmp_path: Path) -> None:
    """Of two classes, the best model always says the other one."""
    folder = RunFolder(shutil.copytree(run.folder.path, tmp_path / "copy"))
    weights = folder.read_weights("last")
    flipped = {name: -value if name.startswith("classifier") else value for name, value in weights.items()}
    assert not all(torch.equal(flipped[name], weights[name]) for name in weights)
    folder.write_weights("best", flipped)
    recorded = run.records[-1]["accuracy"]["shift_8"]["main"]
    for which, expected in (("last", recorded), ("best", 1 - recorded)):
        (found,) = attack_run(open_run(folder.path), domains=["shift_8"], radii=[0], kinds=["domain"], which=which)  # type: ignore[arg-type]
        assert found.accuracy == pytest.approx(expected)


@pytest.mark.parametrize("kind", ATTACK_KINDS)
@pytest.mark.parametrize("radius", [0.1, 0.5])
def test_the_attack_stays_in_its_ball_and_fills_it(gray: tuple[Domain, Split], kind: AttackKind, radius: float) -> None:
    model = Watched()
    evaluate_under_attack(model, *gray, kind, radius, 6, 0, CPU)
    offsets = torch.cat(model.measured) - 128 / 255
    norms = offsets.flatten(1).norm(dim=1)
    assert len(norms) == 20
    assert torch.allclose(norms, torch.full((20,), radius), rtol=1e-4)


def test_a_domain_shares_one_perturbation_found_on_its_holdout(gray: tuple[Domain, Split]) -> None:
    model = Watched()
    evaluate_under_attack(model, *gray, "domain", 0.3, 7, 0, CPU)
    offsets = torch.cat(model.measured) - 128 / 255
    assert torch.allclose(offsets, offsets[:1].expand_as(offsets))
    assert len(model.climbed) == 7
    # What it climbs on is the holdout's gray, give or take the perturbation, whose mean entry is below .05.
    assert all(abs(float(shown.mean()) - 100 / 255) < 0.05 for shown in model.climbed)


def test_samples_differ_and_climb_their_own_loss(gray: tuple[Domain, Split]) -> None:
    model = Watched()
    accuracy = evaluate_under_attack(model, *gray, "sample", 0.3, 7, 0, CPU)
    offsets = (torch.cat(model.measured) - 128 / 255).flatten(1)
    towards = (model.weight[1] - model.weight[0]).detach()
    # The loss of a linear model of two classes is highest straight along, or against, the difference of its weights.
    cosines = nn.functional.cosine_similarity(offsets, towards[None])
    signs = torch.where(gray[0].labels[:20] == 0, 1.0, -1.0)
    assert (cosines * signs > 0.94).all()
    assert accuracy <= 0.5


def test_images_stay_in_bounds(gray: tuple[Domain, Split]) -> None:
    model = Watched()
    evaluate_under_attack(model, *gray, "sample", 50.0, 3, 0, CPU)
    assert torch.cat(model.measured).aminmax() == (0, 1)


def test_only_as_many_images_as_asked(run: OpenRun) -> None:
    told: list[int] = []
    found = attack_run(run, radii=[0, 1], steps=1, images=10, on_attack=lambda: told.append(1))
    assert {each.images for each in found} == {10}
    assert len(told) == len(found) == 2 * 2 * 2


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"radii": [-1.0]}, "radii must be numbers of at least 0"),
        ({"radii": []}, "radii must be"),
        ({"steps": 0}, "at least 1 step"),
        ({"kinds": ["domian"]}, "did you mean 'domain'"),
        ({"images": 0}, "images must be at least 1"),
        ({"domains": ["shift_9"]}, "did you mean 'shift_8'"),
    ],
)
def test_what_cannot_be_done_is_said(run: OpenRun, given: dict[str, list[float]], said: str) -> None:
    with pytest.raises(DomainwiseError, match=said):
        attack_run(run, **given)  # type: ignore[arg-type]


def test_without_a_holdout_nothing_can_be_found(gray: tuple[Domain, Split]) -> None:
    domain, split = gray
    bare = Split(split.main, torch.empty(0, dtype=torch.int64))
    with pytest.raises(DomainwiseError, match="'gray' has no holdout"):
        evaluate_under_attack(Watched(), domain, bare, "domain", 1.0, 3, 0, CPU)
    assert evaluate_under_attack(Watched(), domain, bare, "domain", 0.0, 3, 0, CPU) >= 0


def write_mat(folder: Path, epsilon: float, accuracy: float, trial: int = 0, **settings: Any) -> None:
    tested = settings.pop("tested", "sketch")
    write_run(folder, "mat", tested, (0.1, accuracy), trial=trial, hparams={"epsilon": epsilon}, **settings)


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """MAT at two epsilons and ERM, three trials each, tested on one domain."""
    for trial, (small, large, plain) in enumerate([(0.6, 0.7, 0.5), (0.62, 0.74, 0.5), (0.58, 0.66, 0.53)]):
        write_mat(tmp_path / f"s{trial}", 0.1, small, trial)
        write_mat(tmp_path / f"l{trial}", 1.0, large, trial)
        write_run(tmp_path / f"e{trial}", "erm", "sketch", (0.1, plain), trial=trial)
    return tmp_path


def test_mean_and_error_over_trials(sweep: Path) -> None:
    means = average_by_epsilon(read_accuracy_by_epsilon([sweep]))
    rows = {(row["method"], row["epsilon"]): row for row in means.iter_rows(named=True)}
    assert list(rows) == [("erm", None), ("mat", 0.1), ("mat", 1.0)]
    assert rows["mat", 1.0]["mean"] == pytest.approx(0.7)
    # Deviations 0, .04 and -.04: variance .0032 / 3, over three trials.
    assert rows["mat", 1.0]["error"] == pytest.approx(math.sqrt(0.0032 / 3 / 3))
    assert rows["erm", None]["mean"] == pytest.approx(0.51)
    assert {row["count"] for row in rows.values()} == {3}


def test_draws_of_one_epsilon_compete_by_training_domain_holdout(tmp_path: Path) -> None:
    for draw, (training, accuracy) in enumerate([(0.8, 0.9), (0.95, 0.6), (0.7, 0.99)]):
        write_mat(tmp_path / f"mat{draw}", 0.1, accuracy, draw=draw, training=training)
        write_run(tmp_path / f"erm{draw}", "erm", "sketch", (0.1, accuracy), draw=draw, training=training)
    frame = read_accuracy_by_epsilon([tmp_path])
    assert frame.select("method", "epsilon", "accuracy").rows() == [("erm", None, 0.6), ("mat", 0.1, 0.6)]
    assert frame["run"].to_list() == [str(tmp_path / "erm1"), str(tmp_path / "mat1")]


def test_each_sampled_epsilon_is_a_point(tmp_path: Path) -> None:
    for draw, epsilon in enumerate([0.1, 0.37, 2.2]):
        write_mat(tmp_path / f"mat{draw}", epsilon, 0.5 + draw / 10, draw=draw)
    assert read_accuracy_by_epsilon([tmp_path]).select("epsilon", "accuracy").rows() == [
        (0.1, 0.5),
        (0.37, 0.6),
        (2.2, 0.7),
    ]


def test_the_earliest_record_with_the_highest_holdout_is_selected(tmp_path: Path) -> None:
    write_mat(tmp_path / "run", 0.1, 0.4)
    records = tmp_path / "run" / "records.jsonl"
    first, best = records.read_text().splitlines()
    tie = {**json.loads(best), "step": 2}
    tie["accuracy"] = {**tie["accuracy"], "sketch": {"main": 0.01, "holdout": 0.5}}
    records.write_text(f"{first}\n{best}\n{json.dumps(tie)}\n")
    assert read_accuracy_by_epsilon([tmp_path])["accuracy"].to_list() == [0.4]


def test_the_average_needs_every_test_domain(tmp_path: Path) -> None:
    for trial, (one, other) in enumerate([(0.4, 0.8), (0.5, 0.7)]):
        write_mat(tmp_path / f"a{trial}", 0.1, one, trial)
        write_mat(tmp_path / f"b{trial}", 0.1, other, trial, tested="art")
    write_run(tmp_path / "c", "erm", "art", (0.1, 0.99))
    frame = read_accuracy_by_epsilon([tmp_path])
    average = frame.filter(pl.col("domain") == "average")
    assert average["accuracy"].to_list() == pytest.approx([0.6, 0.6])
    assert set(average["method"]) == {"mat"}
    assert frame["domain"].unique(maintain_order=True).to_list()[-1] == "average"


def test_a_single_run_has_no_standard_error(tmp_path: Path) -> None:
    write_mat(tmp_path / "run", 0.1, 0.4)
    assert average_by_epsilon(read_accuracy_by_epsilon([tmp_path]))["error"].to_list() == [None]


def test_unfinished_runs_are_left_out_and_counted(sweep: Path) -> None:
    write_mat(sweep / "x", 0.5, 0.9, is_done=False)
    with pytest.warns(UserWarning, match="1 run is left out"):
        frame = read_accuracy_by_epsilon([sweep])
    assert 0.5 not in frame["epsilon"].to_list()


def test_two_runs_of_one_cell_are_refused(sweep: Path) -> None:
    write_mat(sweep / "again", 1.0, 0.1, trial=2)
    with pytest.raises(DomainwiseError, match=r"both mat with epsilon 1.0 on toy, tested on sketch, trial 2, draw 0"):
        read_accuracy_by_epsilon([sweep])


def test_runs_of_several_datasets_are_refused(sweep: Path) -> None:
    write_mat(sweep / "other", 1.0, 0.1, dataset="nico")
    with pytest.raises(DomainwiseError, match=r"several datasets \(nico, toy\)"):
        read_accuracy_by_epsilon([sweep])


def test_without_a_finished_run_there_is_an_error(tmp_path: Path) -> None:
    write_mat(tmp_path / "x", 0.5, 0.9, is_done=False)
    with pytest.warns(UserWarning, match="not finished"), pytest.raises(DomainwiseError, match="no finished runs"):
        read_accuracy_by_epsilon([tmp_path])


def test_labels_tell_runs_apart_by_what_differs() -> None:
    def settings(algorithm: str, seed: int, **hparams: object) -> dict[str, object]:
        return {"algorithm": algorithm, "trial_seed": seed, "hparams": {"lr": 1, **hparams}, "network": "mlp"}

    given = [settings("erm", 0), settings("mat", 0, epsilon=1), settings("mat", 1, epsilon=1)]
    assert labels(given) == ["erm", "mat", "mat"]
    assert labels([*given, settings("mat", 0, epsilon=2)])[1:] == ["mat, epsilon 1", "mat, epsilon 1", "mat, epsilon 2"]


def test_names_of_runs_are_as_long_as_they_must_be() -> None:
    assert run_names([Path("/a/b/mat"), Path("/a/b/uat")]) == ["mat", "uat"]
    assert run_names([Path("/a/b/mat"), Path("/a/c/mat")]) == ["b-mat", "c-mat"]
    assert run_names([Path("/a/mat"), Path("/mat")]) == ["a-mat", "-mat"]
