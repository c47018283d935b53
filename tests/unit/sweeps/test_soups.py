"""Averages over the runs of a small sweep, and of a run with its start."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from inline_engine import InlineEngine
from PIL import Image
from torch import Tensor

from domainwise.averaging import average_states
from domainwise.data.dataset import Dataset
from domainwise.errors import DomainwiseError
from domainwise.selection import read_runs
from domainwise.selection.score import selection_score
from domainwise.storage.run_folder import RunFolder
from domainwise.sweeps.runner import run_sweep
from domainwise.sweeps.soups import Soup, average_sweep, interpolate_run
from domainwise.sweeps.spec import SweepSpec
from domainwise.training import RunConfig, load_model, train
from domainwise.training.loading import open_run
from domainwise.training.prediction import predict_images
from domainwise.training.registry import DatasetCache

OPTIONS = {"train_count": 60, "test_count": 20, "image_size": 16, "shifts": (8.0,)}
SETTINGS: dict[str, Any] = {"steps": 4, "record_every": 1, "dataset_options": OPTIONS, "batch_size": 8, "dropout": 0.1}
SPEC = SweepSpec(("silhouettes",), ("erm",), draws=3, trials=2, settings={**SETTINGS, "shared_start": True})
RUN = "silhouettes-erm-shift_8-draw{}-trial{}"


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweeps") / "sweep"
    assert run_sweep(SPEC, folder, engine=InlineEngine(), placement={"device": "cpu"}).done == 6
    return folder


@pytest.fixture(scope="module")
def soups(trained: Path) -> dict[tuple[str, int], Soup]:
    """The averages of the sweep by rule and trial."""
    return {(soup.rule, soup.record["trial_seed"]): soup for soup in average_sweep(trained, device="cpu")}


@pytest.fixture
def sweep(trained: Path, tmp_path: Path) -> Path:
    """A copy of the sweep, to be changed."""
    return Path(shutil.copytree(trained, tmp_path / "sweep"))


def run_names(trained: Path, trial: int) -> list[str]:
    names = sorted(path.name for path in trained.glob(f"*-trial{trial}"))
    assert len(names) == 3
    return names


def score_of(run: Path) -> float:
    return max(selection_score(record) for record in RunFolder(run).read_records())


def holdout_accuracy(model: torch.nn.Module, run: Path) -> float:
    opened = open_run(run)
    accuracies = []
    for name in opened.roles.train:
        domain, indices = opened.dataset.domains[opened.dataset.index(name)], opened.splits[name].holdout
        with torch.no_grad():
            right = model(domain.images[indices].float() / 255).argmax(1) == domain.labels[indices]
        accuracies.append(right.double().mean().item())
    return sum(accuracies) / len(accuracies)


def test_every_average_is_written_next_to_the_sweep(trained: Path, soups: dict[tuple[str, int], Soup]) -> None:
    assert soups.keys() == {(rule, trial) for rule in ("uniform", "greedy") for trial in (0, 1)}
    for (rule, trial), soup in soups.items():
        first = next(name for name in run_names(trained, trial) if "draw0" in name)
        assert soup.folder == trained.with_name("sweep-averages") / f"{first}-{rule}"
        assert soup.num_candidates == 3
        scores = {name: score_of(trained / name) for name in run_names(trained, trial)}
        assert selection_score(soup.best) == max(scores.values())


def test_uniform_is_the_mean_of_the_best_models(trained: Path, soups: dict[tuple[str, int], Soup]) -> None:
    for trial in (0, 1):
        names = run_names(trained, trial)
        soup = soups["uniform", trial]
        assert sorted(soup.members) == names
        states = [RunFolder(trained / name).read_weights("best") for name in names]
        mean = RunFolder(soup.folder).read_weights("best")
        for key, value in mean.items():
            torch.testing.assert_close(value, torch.stack([state[key] for state in states]).mean(0))
        assert not torch.equal(states[0]["classifier.weight"], states[1]["classifier.weight"])


def test_greedy_follows_its_rule(trained: Path, soups: dict[tuple[str, int], Soup]) -> None:
    for trial in (0, 1):
        # Python's sort keeps draws with equal scores in order.
        ordered = sorted(run_names(trained, trial), key=lambda name: -score_of(trained / name))
        states: dict[str, dict[str, Tensor]] = {
            name: RunFolder(trained / name).read_weights("best") for name in ordered
        }
        model = load_model(trained / ordered[0])
        chosen, best = ordered[:1], score_of(trained / ordered[0])
        for name in ordered[1:]:
            model.load_state_dict(average_states([states[each] for each in (*chosen, name)]))
            accuracy = holdout_accuracy(model, trained / name)
            if accuracy >= best:
                chosen, best = [*chosen, name], accuracy
        assert list(soups["greedy", trial].members) == chosen
        assert selection_score(soups["greedy", trial].record) == pytest.approx(best)


def test_an_average_is_a_complete_run(
    trained: Path, soups: dict[tuple[str, int], Soup], domainwise: Callable[..., Any], tmp_path: Path
) -> None:
    soup = soups["uniform", 0]
    files = sorted(path.name for path in soup.folder.iterdir())
    assert files == ["best.safetensors", "config.json", "done", "last.safetensors", "records.jsonl"]
    model, opened = load_model(soup.folder), open_run(soup.folder)
    assert holdout_accuracy(model, soup.folder) == pytest.approx(selection_score(soup.record))
    domain = opened.dataset.domains[opened.dataset.index("shift_8")]
    Image.fromarray(domain.images[0].permute(1, 2, 0).contiguous().numpy()).save(tmp_path / "0.png")
    (prediction,) = predict_images(soup.folder, [tmp_path / "0.png"], device="cpu")
    with torch.no_grad():
        expected = model(domain.images[:1].float() / 255).softmax(1)[0]
    assert list(prediction.probabilities.values()) == pytest.approx(expected.tolist(), abs=1e-5)
    uniform = [soups["uniform", trial].folder for trial in (0, 1)]
    assert not read_runs(uniform).notes
    alone = domainwise("report", *uniform)
    assert alone.code == 0, alone.err
    assert "erm" in alone.out
    # Both rules in one table are variants.
    assert "would be counted twice" in domainwise("report", soup.folder.parent).err
    split = domainwise("report", trained, soup.folder.parent, "--split-variants")
    assert split.code == 0, split.err
    assert "uniform" in split.out
    assert "greedy" in split.out


def test_existing_averages_are_not_computed_again(sweep: Path) -> None:
    first = average_sweep(sweep, device="cpu")
    files = {path: path.stat().st_mtime_ns for path in sweep.with_name("sweep-averages").rglob("*") if path.is_file()}
    assert len(files) == 20
    again = average_sweep(sweep, device="cpu")
    assert {path: path.stat().st_mtime_ns for path in files} == files
    assert [(soup.folder, soup.members, soup.num_candidates) for soup in again] == [
        (soup.folder, soup.members, soup.num_candidates) for soup in first
    ]
    # One that was interrupted is.
    soup = first[0]
    expected = (soup.folder / "best.safetensors").read_bytes()
    (soup.folder / "done").unlink()
    (soup.folder / "best.safetensors").write_bytes(b"")
    average_sweep(sweep, device="cpu")
    assert (soup.folder / "done").exists()
    assert (soup.folder / "best.safetensors").read_bytes() == expected


def test_an_average_of_fewer_runs_is_computed_again(sweep: Path, tmp_path: Path) -> None:
    third = sweep / RUN.format(2, 0)
    third.rename(tmp_path / "third")
    before = average_sweep(sweep, device="cpu", rules=("uniform",))
    (tmp_path / "third").rename(third)
    after = average_sweep(sweep, device="cpu", rules=("uniform",))
    assert [(len(soup.members), soup.num_candidates) for soup in before] == [(2, 2), (3, 3)]
    assert [(len(soup.members), soup.num_candidates) for soup in after] == [(3, 3), (3, 3)]
    assert before[0].folder == after[0].folder


def test_the_test_domain_decides_nothing(
    sweep: Path, soups: dict[tuple[str, int], Soup], monkeypatch: pytest.MonkeyPatch
) -> None:
    build = DatasetCache.build

    def build_with_wrong_test_labels(self: DatasetCache, *arguments: Any) -> Dataset:
        dataset = build(self, *arguments)
        domains = tuple(
            replace(domain, labels=1 - domain.labels) if domain.name == "shift_8" else domain
            for domain in dataset.domains
        )
        return replace(dataset, domains=domains)

    monkeypatch.setattr(DatasetCache, "build", build_with_wrong_test_labels)
    for soup in average_sweep(sweep, device="cpu", rules=("greedy",)):
        expected = soups["greedy", soup.record["trial_seed"]]
        assert soup.members == expected.members
        ours, theirs = (each.record["accuracy"] for each in (soup, expected))
        assert ours["style_0"] == theirs["style_0"]
        assert ours["shift_8"]["main"] == pytest.approx(1 - theirs["shift_8"]["main"])


def test_methods_are_averaged_apart_unless_asked_for(sweep: Path) -> None:
    for draw in range(2):
        name = f"silhouettes-uat-draw{draw}"
        train(
            RunConfig(
                algorithm="uat",
                hparams_seed=draw,
                hparams={"lr": 1e-3 * (draw + 1)},
                output=sweep / name,
                device="cpu",
                shared_start=True,
                test_domains=(),
                **SETTINGS,
            )
        )
    apart = average_sweep(sweep, device="cpu", rules=("uniform",))
    sizes = {(soup.record["algorithm"], soup.record["trial_seed"]): len(soup.members) for soup in apart}
    assert sizes == {("erm", 0): 3, ("erm", 1): 3, ("uat", 0): 2}
    across = average_sweep(sweep, device="cpu", rules=("uniform",), across_methods=True)
    assert {soup.record["trial_seed"]: len(soup.members) for soup in across} == {0: 5, 1: 3}
    assert not {soup.folder for soup in apart} & {soup.folder for soup in across}


def test_runs_with_and_without_adapters_are_averaged_apart(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    for draw in range(2):
        for name, settings in {"plain": {}, "lora": {"lora": 2, "lora_targets": ("*",)}}.items():
            train(
                RunConfig(
                    algorithm="erm",
                    network="mlp",
                    hparams_seed=draw,
                    hparams={"lr": 1e-3 * (draw + 1)},
                    output=tmp_path / "runs" / f"{name}{draw}",
                    device="cpu",
                    shared_start=True,
                    **settings,
                    **SETTINGS,
                )
            )
    soups = average_sweep(tmp_path / "runs", device="cpu", rules=("uniform",))
    assert {soup.members for soup in soups} == {("plain0", "plain1"), ("lora0", "lora1")}


def test_runs_without_a_shared_start_are_rejected(sweep: Path) -> None:
    start = sorted(sweep.glob("*trial0"))[1] / "start.safetensors"
    other = next(iter(sweep.glob("*trial1"))) / "start.safetensors"
    start.write_bytes(other.read_bytes())
    with pytest.raises(DomainwiseError, match="began with different weights, so their average is meaningless"):
        average_sweep(sweep, device="cpu")
    start.unlink()
    with pytest.raises(DomainwiseError, match=r"has no initial weights; train the sweep with --shared-start"):
        average_sweep(sweep, device="cpu")
    with pytest.raises(DomainwiseError, match="has no initial weights; train it with --shared-start"):
        interpolate_run(start.parent, 0.5, device="cpu")
    assert not sweep.with_name("sweep-averages").exists()


def test_a_folder_with_nothing_to_average_is_an_error(sweep: Path) -> None:
    (run, *_) = sweep.glob("*trial0")
    with pytest.raises(DomainwiseError, match=r"nothing to average in .*: no two finished runs share"):
        average_sweep(run, device="cpu")


def test_interpolation_ends_at_start_and_best(sweep: Path) -> None:
    (run, *_) = sorted(sweep.glob("*trial0"))
    for alpha, which in ((0, "start"), (1, "best")):
        soup = interpolate_run(run, alpha, device="cpu")
        # Not within the sweep, where it would be taken for one of its runs.
        assert soup.folder == sweep.with_name("sweep-averages") / f"{run.name}-alpha{alpha}"
        ours, theirs = load_model(soup.folder).state_dict(), RunFolder(run).read_weights(which)  # type: ignore[arg-type]
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
        assert soup.members == (run.name,)
    assert soup.record["accuracy"]["shift_8"] == soup.best["accuracy"]["shift_8"]
    half = interpolate_run(run, 0.5, sweep.with_name("half"), device="cpu")
    assert half.folder == sweep.with_name("half")
    assert half.record["soup"]["alpha"] == 0.5
    # Averages are no members of averages.
    shutil.copytree(half.folder, sweep / "half")
    assert [soup.num_candidates for soup in average_sweep(sweep, device="cpu", rules=("uniform",))] == [3, 3]


@pytest.mark.parametrize("alpha", [-0.1, 1.1, float("nan")])
def test_alpha_is_a_share(alpha: float, tmp_path: Path) -> None:
    with pytest.raises(DomainwiseError, match="alpha must be at least 0 and at most 1"):
        interpolate_run(tmp_path, alpha)
