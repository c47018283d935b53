"""Linear probing before training, and initial weights that runs share."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import DATASETS, find_differences, interrupted_run, read_outcome, tiny_config, tiny_run

from domainwise.data.dataset import split_domains
from domainwise.errors import DomainwiseError
from domainwise.storage.run_folder import RunFolder
from domainwise.training import load_model
from domainwise.training.distributed import World
from domainwise.training.evaluation import measure_holdout_loss
from domainwise.training.loading import open_run
from domainwise.training.probing import fit_classifier_
from easy_images import write_easy_images

PROBED: dict[str, Any] = {"shared_start": True, "probe_steps": 40, "probe_lr": 0.01, "steps": 1}


def start_of(output: Path, **settings: Any) -> bytes:
    run = tiny_run(output, **{**PROBED, **settings}).folder
    return RunFolder(run).weights_file("start").read_bytes()


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return start_of(tmp_path_factory.mktemp("start") / "run")


def measure_start(run: Path, dataset: str) -> float:
    opened = open_run(run, dataset=dataset)
    model = load_model(run, "start")
    with torch.no_grad():
        return measure_holdout_loss(model, opened.dataset, opened.splits, opened.roles, torch.device("cpu"), World())


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"algorithm": "mat"},
        {"algorithm": "dann", "hparams": {"lr": 0.1}, "hparams_seed": 3},
        {"seeding": "domainbed", "algorithm": "uat", "hparams_seed": 2},
        {"batch_size": 4, "dropout": 0.5, "average": "sma", "sam": True},
    ],
    ids=["again", "method", "draw", "seeding", "settings"],
)
def test_the_start_is_shared(settings: dict[str, Any], start: bytes, tmp_path: Path) -> None:
    assert start_of(tmp_path / "run", **settings) == start


@pytest.mark.parametrize(
    "settings",
    [{"trial_seed": 1}, {"probe_steps": 41}, {"probe_lr": 0.02}, {"probe_steps": None}, {"test_domains": ("shift_8",)}],
)
def test_the_start_depends_on_trial_and_probe(settings: dict[str, Any], start: bytes, tmp_path: Path) -> None:
    assert start_of(tmp_path / "run", **settings) != start


def test_without_a_shared_start_runs_of_domainbed_begin_differently(tmp_path: Path) -> None:
    weights = []
    for name in ("erm", "mat"):
        settings = {"algorithm": name, "seeding": "domainbed", "steps": 1, "hparams": {"lr": 0.0, "weight_decay": 0.0}}
        run = tiny_run(tmp_path / name, **settings).folder
        assert not RunFolder(run).has_weights("start")
        weights.append(RunFolder(run).read_weights("last"))
    assert find_differences(*weights)


def test_the_probe_lowers_the_holdout_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOMAINWISE_CACHE", str(tmp_path / "cache"))
    images = write_easy_images(tmp_path / "zoo", 20)
    easy: dict[str, Any] = {"dataset": str(images), "test_domains": ("light",), "dataset_options": {"image_size": 16}}
    losses = {}
    for steps in (None, 40):
        settings = {**PROBED, **easy, "network": "small_cnn", "augment": False, "probe_steps": steps}
        losses[steps] = measure_start(tiny_run(tmp_path / str(steps), **settings).folder, str(images))
    assert losses[40] < 0.9 * losses[None]


def test_only_the_classifier_is_fitted_and_training_begins_there(tmp_path: Path) -> None:
    still: dict[str, Any] = {"hparams": {"lr": 0.0, "weight_decay": 0.0}}
    probed, plain = (
        RunFolder(tiny_run(tmp_path / str(steps), **{**PROBED, **still, "probe_steps": steps}).folder)
        for steps in (40, None)
    )
    ours, theirs = probed.read_weights("start"), plain.read_weights("start")
    differing = {name for name in ours if not torch.equal(ours[name], theirs[name])}
    assert differing == {"classifier.weight", "classifier.bias"}
    assert find_differences(probed.read_weights("last"), ours) == []


def test_a_probe_leaves_no_gradients_modes_or_random_draws_behind() -> None:
    config = tiny_config(Path("run"))
    dataset = DATASETS.build(config)
    torch.manual_seed(0)
    from domainwise.networks import small_cnn

    network = small_cnn(dataset.image_shape, len(dataset.classes), 0.5).train()
    state = torch.get_rng_state()
    fit_classifier_(
        *(network, dataset, split_domains(dataset, 0), ("style_0", "style_1")),
        steps=3,
        lr=0.1,
        seed=0,
        device=torch.device("cpu"),
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert all(part.training for part in network.modules())
    assert all(parameter.grad is None for parameter in network.parameters())


def test_a_network_without_a_linear_classifier_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DomainwiseError, match="needs a network with a linear classifier on top of its features"):
        tiny_run(tmp_path / "run", algorithm="mtl", probe_steps=3)


def test_a_probed_run_resumes_to_the_bit(tmp_path: Path) -> None:
    settings = {**PROBED, "steps": 5}
    whole = tiny_run(tmp_path / "whole", **settings)
    assert interrupted_run(tmp_path / "parts", **settings) == 3
    assert find_differences(read_outcome(tmp_path / "parts"), read_outcome(whole.folder)) == []


def test_a_run_without_a_start_says_so(tmp_path: Path) -> None:
    run = tiny_run(tmp_path / "run", steps=1).folder
    with pytest.raises(DomainwiseError, match=r"has no start\.safetensors"):
        load_model(run, "start")
