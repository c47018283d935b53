"""`refit`: a run again, on all images of its training domains."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import DATASETS, find_differences, interrupted_run, read_outcome, tiny_run

from domainwise.algorithms.erm import ERM
from domainwise.errors import DomainwiseError
from domainwise.storage.run_folder import RunFolder
from domainwise.training import RunResult, load_model, train, trainer
from domainwise.training.loading import make_refit_config, open_run
from easy_images import write_easy_images

FALLING: dict[str, Any] = {
    "lr_schedule": "plateau",
    "hparams": {"lr": 1.0},
    "record_every": 1,
    "steps": 14,
    "average": "sma",
    "average_options": {"start": 100},
}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return tiny_run(tmp_path_factory.mktemp("first") / "run", **FALLING)


@pytest.fixture(scope="module")
def second(first: RunResult) -> RunResult:
    return train(make_refit_config(first.folder, first.folder.with_name("again")), datasets=DATASETS)


def test_the_settings_are_those_of_the_run(first: RunResult, second: RunResult) -> None:
    ours, theirs = (RunFolder(each.folder).read_config() for each in (second, first))
    assert ours["config"] == {**theirs["config"], "refit": "run"}
    assert ours["data"] == {**theirs["data"], "domain_sizes": [40, 40]}
    assert theirs["data"]["domain_sizes"] == [32, 32]


def test_learning_rates_and_length_are_repeated(first: RunResult, second: RunResult) -> None:
    factors = [record["lr_factor"] for record in first.records]
    assert len(set(factors)) == 4
    assert [record["lr_factor"] for record in second.records] == factors
    assert [record["step"] for record in second.records] == [record["step"] for record in first.records]
    assert RunFolder(second.folder).done_file.read_text() == RunFolder(first.folder).done_file.read_text() != ""


def test_the_last_model_is_the_best(second: RunResult) -> None:
    folder = RunFolder(second.folder)
    assert folder.weights_file("best").read_bytes() == folder.weights_file("last").read_bytes()
    for record in second.records:
        assert "holdout_loss" not in record
        assert not any("holdout" in record["accuracy"][name] for name in record["train_domains"])


def test_batches_are_drawn_from_all_images(first: RunResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[int]] = []
    draw = trainer.draw_batches

    def note_indices(parts: Any, *arguments: Any, **settings: Any) -> Any:
        seen.append([*parts[0][1].tolist()])
        return draw(parts, *arguments, **settings)

    monkeypatch.setattr(trainer, "draw_batches", note_indices)
    train(make_refit_config(first.folder, tmp_path / "again"), datasets=DATASETS)
    assert all(sorted(indices) == list(range(40)) for indices in seen)


def test_the_network_is_a_fresh_one(first: RunResult, second: RunResult) -> None:
    ours, theirs = (RunFolder(each.folder).read_weights("last") for each in (second, first))
    assert not torch.equal(ours["classifier.weight"], theirs["classifier.weight"])


def test_it_resumes_to_the_bit(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"lr_schedule": "plateau", "hparams": {"lr": 1.0}, "steps": 9}
    run = tiny_run(tmp_path / "run", **settings).folder
    settings = {**settings, "refit": run}
    whole = tiny_run(tmp_path / "whole", **settings)
    assert interrupted_run(tmp_path / "parts", **settings) > 2
    assert find_differences(read_outcome(tmp_path / "parts"), read_outcome(whole.folder)) == []


def test_it_can_be_opened_loaded_and_reported(
    first: RunResult, second: RunResult, domainwise: Callable[..., Any]
) -> None:
    opened = open_run(second.folder)
    assert [len(opened.splits["style_0"].main), len(opened.splits["style_0"].holdout)] == [40, 0]
    assert len(open_run(first.folder).splits["style_0"].holdout) == 8
    assert not load_model(second.folder).training
    outcome = domainwise("report", second.folder)
    assert "Traceback" not in outcome.err


def test_errors(first: RunResult, tmp_path: Path) -> None:
    paused = tiny_run(tmp_path / "paused", stop_after=3).folder
    with pytest.raises(DomainwiseError, match=r"paused is not finished; resume it first"):
        make_refit_config(paused, tmp_path / "again")
    swad = tiny_run(tmp_path / "swad", average="swad").folder
    with pytest.raises(DomainwiseError, match="swad needs holdout images"):
        train(make_refit_config(swad, tmp_path / "again"), datasets=DATASETS)


class MyMethod(ERM):
    """A method of one's own."""


def test_nothing_that_a_folder_names_is_imported(tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "run", algorithm=MyMethod).folder
    with pytest.raises(DomainwiseError, match=r"used a custom algorithm, test_refit:MyMethod; pass it with --alg"):
        make_refit_config(run, tmp_path / "again")
    result = train(make_refit_config(run, tmp_path / "again", algorithm=MyMethod), datasets=DATASETS)
    assert result.last["algorithm"] == "mymethod"


def test_an_average_of_runs_cannot_be_trained(first: RunResult, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "soup")
    folder.create()
    stored = RunFolder(first.folder).read_config()
    folder.claim({**stored["config"], "soup": "uniform"}, stored["data"])
    folder.write_done()
    with pytest.raises(DomainwiseError, match="is an average of runs; refit one of these"):
        make_refit_config(folder.path, tmp_path / "again")


def test_the_command(domainwise: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOMAINWISE_CACHE", str(tmp_path / "cache"))
    images = write_easy_images(tmp_path / "zoo", 10)
    run = tmp_path / "run"
    small: dict[str, Any] = {"dataset": str(images), "test_domains": ("light",), "dataset_options": {"image_size": 16}}
    tiny_run(run, **small, network="small_cnn", steps=2, augment=False)
    refused = domainwise("refit", run)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "used a custom dataset, zoo; pass it with --dataset" in refused.err
    outcome = domainwise("refit", run, "--dataset", images, "--device", "cpu")
    assert outcome.code == 0, outcome.err
    stored = json.loads((tmp_path / "run-refit" / "config.json").read_text())
    assert (stored["config"]["refit"], stored["data"]["domain_sizes"]) == ("run", [20, 20])
    assert (tmp_path / "run-refit" / "done").exists()
    # A refit of a run within a sweep is put next to it.
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "plan.jsonl").touch()
    run.rename(tmp_path / "sweep" / "run")
    assert domainwise("refit", tmp_path / "sweep" / "run", "--dataset", images, "--device", "cpu", "-q").code == 0
    assert (tmp_path / "sweep-refits" / "run-refit" / "done").exists()
    assert not list((tmp_path / "sweep").glob("*refit*"))
