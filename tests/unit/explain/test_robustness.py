"""Accuracy under attack: clean at radius 0, inside the ball, lower at large radii, reproducible; and by epsilon."""

import json
import math
import shutil
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import Tensor, nn

from domainwise.data.dataset import Domain, Split
from domainwise.errors import DomainwiseError
from domainwise.explain.robustness import (
    DEFAULT_ATTACKS,
    attack_run,
    average_attacks,
    average_by_epsilon,
    evaluate_under_attack,
    read_accuracy_by_epsilon,
)
from domainwise.storage.run_folder import RunFolder
from domainwise.training import RunConfig, train
from domainwise.training.attacks import AttackName, AttackSettings
from domainwise.training.loading import OpenRun, open_run
from run_folders import write_run

CPU = torch.device("cpu")
COUNTS = {"train_count": 240, "test_count": 120, "shifts": [0, 8]}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> OpenRun:
    output = tmp_path_factory.mktemp("runs") / "run"
    config = RunConfig(algorithm="erm", steps=200, batch_size=32, dataset_options=COUNTS, output=output, device="cpu")
    return open_run(train(config).folder)


class Recorder(nn.Module):
    """A linear model that records its inputs, during ascent and during evaluation."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.randn(2, 48, generator=generator))
        self.ascended: list[Tensor] = []
        self.evaluated: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        (self.ascended if torch.is_grad_enabled() else self.evaluated).append(x.detach().clone())
        return x.flatten(1) @ self.weight.T


@pytest.fixture
def gray() -> tuple[Domain, Split]:
    """Return images far from the bounds, so that small offsets are not clipped; main and holdout differ in gray."""
    images = torch.full((30, 3, 4, 4), 128, dtype=torch.uint8)
    images[20:] = 100
    labels_ = torch.arange(30) % 2
    return Domain("gray", images, labels_), Split(main=torch.arange(20), holdout=torch.arange(20, 30))


@pytest.mark.parametrize("name", DEFAULT_ATTACKS)
def test_radius_zero_gives_the_recorded_accuracy(run: OpenRun, name: AttackName) -> None:
    for each in attack_run(run, epsilons=[0.0], attacks=[name], which="last"):
        assert each.accuracy == run.records[-1]["accuracy"][each.domain]["main"]
        assert each.images == len(run.splits[each.domain].main)


def test_a_large_radius_costs_accuracy(run: OpenRun) -> None:
    results = attack_run(run, domains=["style_0"], epsilons=[0, 0.5, 4], steps=5, which="last", images=60)
    sample = {each.epsilon: each.accuracy for each in results if each.attack == "sample"}
    domain = {each.epsilon: each.accuracy for each in results if each.attack == "domain"}
    assert sample[0] > 0.6  # better than chance, so that there is accuracy to lose
    assert sample[4] <= sample[0.5] <= sample[0]
    assert sample[4] < sample[0] - 0.3
    assert domain[4] < domain[0]
    # An image's own worst point is at least as bad for it as one point for all.
    assert sample[4] <= domain[4]


def test_the_same_seed_gives_the_same_results(run: OpenRun) -> None:
    one, again = (attack_run(run, domains=["shift_0"], epsilons=[0.1, 0.5], steps=2, images=60) for _ in range(2))
    assert one == again


@pytest.mark.parametrize("name", DEFAULT_ATTACKS)
def test_the_seed_determines_the_start(gray: tuple[Domain, Split], name: AttackName) -> None:
    def attack(seed: int) -> Tensor:
        model = Recorder()
        evaluate_under_attack(model, *gray, AttackSettings(name, 0.3, steps=1, seed=seed), CPU)
        return torch.cat(model.evaluated)

    assert torch.equal(attack(1), attack(1))
    assert not torch.equal(attack(1), attack(2))


def test_which_selects_the_model(run: OpenRun, tmp_path: Path) -> None:
    """The best model is made to predict the other of two classes."""
    folder = RunFolder(shutil.copytree(run.folder.path, tmp_path / "copy"))
    weights = folder.read_weights("last")
    flipped = {name: -value if name.startswith("classifier") else value for name, value in weights.items()}
    assert not all(torch.equal(flipped[name], weights[name]) for name in weights)
    folder.write_weights("best", flipped)
    recorded = run.records[-1]["accuracy"]["shift_8"]["main"]
    for which, expected in (("last", recorded), ("best", 1 - recorded)):
        (result,) = attack_run(
            open_run(folder.path), domains=["shift_8"], epsilons=[0], attacks=["domain"], which=which
        )  # type: ignore[arg-type]
        assert result.accuracy == pytest.approx(expected)


@pytest.mark.parametrize("name", DEFAULT_ATTACKS)
@pytest.mark.parametrize("radius", [0.1, 0.5])
def test_the_attack_reaches_the_boundary(gray: tuple[Domain, Split], name: AttackName, radius: float) -> None:
    model = Recorder()
    evaluate_under_attack(model, *gray, AttackSettings(name, radius, steps=6), CPU)
    offsets = torch.cat(model.evaluated) - 128 / 255
    norms = offsets.flatten(1).norm(dim=1)
    assert len(norms) == 20
    assert torch.allclose(norms, torch.full((20,), radius), rtol=1e-4)


def test_the_domain_wise_attack_fits_one_perturbation_on_the_holdout(gray: tuple[Domain, Split]) -> None:
    model = Recorder()
    evaluate_under_attack(model, *gray, AttackSettings("domain", 0.3, steps=7), CPU)
    offsets = torch.cat(model.evaluated) - 128 / 255
    assert torch.allclose(offsets, offsets[:1].expand_as(offsets))
    assert len(model.ascended) == 7
    # It ascends on images of the holdout's gray, plus a perturbation with a mean entry below .05.
    assert all(abs(float(images.mean()) - 100 / 255) < 0.05 for images in model.ascended)


def test_the_sample_wise_attack_ascends_each_loss(gray: tuple[Domain, Split]) -> None:
    model = Recorder()
    accuracy = evaluate_under_attack(model, *gray, AttackSettings("sample", 0.3, steps=7), CPU)
    offsets = (torch.cat(model.evaluated) - 128 / 255).flatten(1)
    towards = (model.weight[1] - model.weight[0]).detach()
    # The loss of a linear model of two classes grows fastest along, or against, the difference of its weights.
    cosines = nn.functional.cosine_similarity(offsets, towards[None])
    signs = torch.where(gray[0].labels[:20] == 0, 1.0, -1.0)
    assert (cosines * signs > 0.94).all()
    assert accuracy <= 0.5


def test_images_stay_in_bounds(gray: tuple[Domain, Split]) -> None:
    model = Recorder()
    evaluate_under_attack(model, *gray, AttackSettings("sample", 50.0, steps=3), CPU)
    assert torch.cat(model.evaluated).aminmax() == (0, 1)


def test_images_limits_the_number_of_images(run: OpenRun) -> None:
    reported: list[tuple[int, int]] = []
    results = attack_run(
        run, epsilons=[0, 1], steps=1, images=10, on_progress=lambda task, done, total: reported.append((done, total))
    )
    assert {each.images for each in results} == {10}
    again = attack_run(run, domains=["shift_0", "shift_0"], attacks="sample", epsilons=[0], images=10)
    assert [(each.domain, each.attack) for each in again] == [("shift_0", "sample")]
    assert len(results) == 2 * 2 * 2
    assert reported == [(done, 80) for done in range(10, 90, 10)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epsilons": [-1.0]}, "epsilon must be a number of at least 0"),
        ({"epsilons": ["4/255 rms"], "norm": "linf"}, "without unit"),
        ({"step_size": "fast"}, "step_size must be a number"),
        ({"step_size": 0.0}, "step size of an attack must be above 0"),
        ({"epsilons": [8], "norm": "linf"}, "did you mean 8/255"),
        ({"epsilons": ["300/255"], "norm": "linf"}, "got 300/255$"),
        ({"seed": 2**64}, "seed must be at least"),
        ({"attacks": []}, "at least one attack"),
        ({"attacks": ["autoattack"]}, "needs at least 4 classes"),
        ({"norm": "l1"}, "unknown norm 'l1'"),
        ({"restarts": 0}, "at least 1"),
        ({"steps": 0}, "at least 1 step"),
        ({"attacks": ["fgsm"], "steps": 5}, "steps has no effect on fgsm; it is for domain, sample, pgd"),
        ({"attacks": ["domain", "fgsm"], "restarts": 2}, "restarts has no effect on domain, fgsm; it is for sample"),
        ({"attacks": {"mine": lambda model, x, y: x}, "step_size": 0.1}, "step_size has no effect on mine"),
        ({"attacks": ["domian"]}, "did you mean 'domain'"),
        ({"images": 0}, "images must be at least 1"),
        ({"domains": ["shift_9"]}, "did you mean 'shift_8'"),
    ],
)
def test_wrong_settings_raise_an_error(run: OpenRun, settings: dict[str, list[float]], message: str) -> None:
    with pytest.raises(DomainwiseError, match=message):
        attack_run(run, **settings)  # type: ignore[arg-type]


def test_the_domain_wise_attack_needs_a_holdout(gray: tuple[Domain, Split]) -> None:
    domain, split = gray
    no_holdout = Split(split.main, torch.empty(0, dtype=torch.int64))
    with pytest.raises(DomainwiseError, match="'gray' has no holdout"):
        evaluate_under_attack(Recorder(), domain, no_holdout, AttackSettings("domain", 1.0), CPU)
    assert evaluate_under_attack(Recorder(), domain, no_holdout, AttackSettings("domain", 0.0), CPU) >= 0


def test_the_domain_wise_attack_in_linf_is_one_offset_at_the_boundary(gray: tuple[Domain, Split]) -> None:
    model = Recorder()
    evaluate_under_attack(model, *gray, AttackSettings("domain", 8 / 255, "linf", steps=7), CPU)
    offsets = torch.cat(model.evaluated) - 128 / 255
    assert torch.allclose(offsets, offsets[:1].expand_as(offsets))
    assert offsets.abs().amax() == pytest.approx(8 / 255, rel=1e-4)
    assert len(model.ascended) == 7


def test_a_missing_library_is_noticed_before_anything_is_attacked(
    run: OpenRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchattacks", None)
    monkeypatch.delitem(sys.modules, "domainwise.integrations.torchattacks", raising=False)
    reported: list[int] = []
    with pytest.raises(DomainwiseError, match="torchattacks is not installed"):
        attack_run(run, attacks=["fgsm", "autoattack"], on_progress=lambda task, done, total: reported.append(done))
    assert not reported


def test_the_norm_follows_the_attacks(run: OpenRun) -> None:
    def measure(**settings: Any) -> set[tuple[str | None, float | None]]:
        return {(each.norm, each.epsilon) for each in attack_run(run, images=5, **settings)}

    assert {norm for norm, _ in measure(steps=1)} == {"l2"}
    assert measure(attacks=["fgsm"]) == {("linf", parts / 255) for parts in (0, 1, 2, 4, 8)}
    assert measure(attacks=["domain"], norm="linf", epsilons=["4/255", 0]) == {("linf", 0.0), ("linf", 4 / 255)}
    ((norm, epsilon),) = measure(attacks=["fgsm"], norm="l2", epsilons=["51/255 rms"])
    assert (norm, epsilon) == ("l2", pytest.approx(0.2 * 3072**0.5))


def test_own_attacks_next_to_ours(run: OpenRun) -> None:
    """One of foolbox and one of our own, which is not called with an epsilon."""
    foolbox = pytest.importorskip("foolbox")
    with torch.random.fork_rng():
        results = attack_run(
            run,
            domains=["style_0"],
            attacks={
                "pgd": "pgd",
                "theirs": foolbox.attacks.LinfPGD(rel_stepsize=0.25, steps=20),
                "black": lambda model, x, y: torch.zeros_like(x),
            },
            epsilons=[0, "4/255"],
            images=60,
        )
    accuracies = {(each.attack, each.norm, each.epsilon): each.accuracy for each in results}
    assert list(accuracies) == [
        ("pgd", "linf", 0.0),
        ("pgd", "linf", 4 / 255),
        ("theirs", "linf", 0.0),
        ("theirs", "linf", 4 / 255),
        ("black", None, None),
    ]
    clean, attacked = accuracies["pgd", "linf", 0.0], accuracies["pgd", "linf", 4 / 255]
    assert attacked < clean == accuracies["theirs", "linf", 0.0]
    assert accuracies["theirs", "linf", 4 / 255] == pytest.approx(attacked, abs=1 / 60 + 1e-9)
    assert accuracies["black", None, None] < clean


def test_the_error_of_one_run_is_that_of_its_images() -> None:
    rows = [
        {
            "label": label,
            "domain": "a",
            "attack": "pgd",
            "norm": "linf",
            "epsilon": 0.1,
            "accuracy": value,
            "images": 98,
        }
        for label, values in (("one", [0.5]), ("two", [0.5, 0.7]))
        for value in values
    ]
    one, two = average_attacks(pl.DataFrame(rows)).iter_rows(named=True)
    assert one["error"] == pytest.approx(math.sqrt(0.25 / 98))
    assert two["error"] == pytest.approx(math.sqrt(0.02 / 1 / 2))
    assert (one["count"], two["count"]) == (1, 2)


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
    # Deviations 0, .04 and -.04: variance .0032 / 2, over three trials.
    assert rows["mat", 1.0]["error"] == pytest.approx(math.sqrt(0.0032 / 2 / 3))
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


def test_an_epsilon_per_pixel_is_converted_to_its_norm(tmp_path: Path) -> None:
    run = write_run(tmp_path / "mat", "mat", "sketch", hparams={"epsilon": "51/255 rms"})
    config = json.loads((run / "config.json").read_text())
    config["data"]["input_shape"] = [3, 4, 4]
    (run / "config.json").write_text(json.dumps(config))
    assert read_accuracy_by_epsilon([tmp_path])["epsilon"].to_list() == [pytest.approx(0.2 * 48**0.5)]


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
    with pytest.warns(UserWarning, match="1 unfinished run skipped"):
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
    with (
        pytest.warns(UserWarning, match="unfinished run skipped"),
        pytest.raises(DomainwiseError, match="no finished runs"),
    ):
        read_accuracy_by_epsilon([tmp_path])
