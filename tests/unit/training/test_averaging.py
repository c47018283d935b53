"""Runs with `average`: training is what it was, and everything that is measured and kept is the average."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_runs import DATA, DATASETS, find_differences, interrupted_run, read_outcome, tiny_config, tiny_run
from torch import Tensor, nn

from domainwise.algorithms import Algorithm
from domainwise.averaging import LossValley
from domainwise.data.dataset import split_domains
from domainwise.errors import DomainwiseError
from domainwise.networks import Network
from domainwise.selection.score import selection_score
from domainwise.storage.run_folder import RunFolder
from domainwise.training import RunConfig, RunResult, load_algorithm, load_model, train
from domainwise.training.distributed import World
from domainwise.training.evaluation import evaluate, measure_holdout_loss
from domainwise.training.prediction import predict_images
from domainwise.training.registry import resolve_config
from domainwise.training.trainer import Trainer

State = dict[str, Tensor]
OPTIONS: dict[str, dict[str, Any]] = {
    "sma": {"start": 3},
    "ema": {"decay": 0.6},
    "swad": {"every": 2, "patience": 1, "end_patience": 2, "tolerance": 0.0},
}


def batch_norm_network(input_shape: tuple[int, ...], num_classes: int, dropout: float) -> Network:
    featurizer = nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(dropout)
    )
    return Network(featurizer, nn.Linear(4 * 49, num_classes), input_shape=input_shape, num_features=4 * 49)


SETTINGS: dict[str, Any] = {"network": batch_norm_network, "hparams": {"lr": 0.01}, "evaluate": "all"}


class Observed:
    """A run whose weights were noted after every update, and whose last.safetensors after every record."""

    def __init__(self, output: Path, **settings: Any) -> None:
        self.states: list[State] = []
        self.losses: list[float] = []
        self.kept: list[State] = []
        self.trainer = Trainer(
            tiny_config(output, **{**SETTINGS, **settings}),
            on_step=lambda step, loss: self.note(),
            on_record=lambda record: self.kept.append(RunFolder(output).read_weights("last")),
            datasets=DATASETS,
        )
        self.result: RunResult = self.trainer.fit()
        self.folder = RunFolder(output)

    def note(self) -> None:
        algorithm = self.trainer.algorithm
        self.states.append({name: value.clone() for name, value in algorithm.network.state_dict().items()})
        self.losses.append(self.measure_loss(algorithm))

    def measure_loss(self, algorithm: Algorithm) -> float:
        trainer = self.trainer
        return measure_holdout_loss(
            *(algorithm.predict, trainer.dataset, trainer.splits, trainer.roles, torch.device("cpu"), World())
        )


def mean_of(states: list[State]) -> State:
    return {
        name: torch.stack([state[name] for state in states]).mean(0) if value.is_floating_point() else value
        for name, value in states[-1].items()
    }


def average_by_hand(name: str, run: Observed, update: int) -> State:
    """The average after this many updates."""
    states = run.states[:update]
    if name == "sma":
        return mean_of(states[1:]) if update >= 3 else states[-1]
    if name == "ema":
        mean = states[0]
        for t, state in enumerate(states[1:], start=1):
            kept = min(0.6, (1 + t) / (10 + t))
            mean = {key: kept * mean[key] + (1 - kept) * value for key, value in state.items()}
        return {**mean, **{key: value for key, value in states[-1].items() if not value.is_floating_point()}}
    valley, chosen = LossValley(patience=1, end_patience=2, tolerance=0.0), []
    for index in range(update // 2):
        chosen += valley.add_loss(run.losses[2 * index + 1])
    segments = [mean_of(states[2 * index : 2 * index + 2]) for index in range(update // 2)]
    return mean_of([segments[index] for index in (*chosen, *valley.open_segments())])


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    return Observed(tmp_path_factory.mktemp("plain") / "run")


@pytest.fixture(scope="module", params=list(OPTIONS))
def averaged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Observed]:
    name = request.param
    output = tmp_path_factory.mktemp(name) / "run"
    return name, Observed(output, average=name, average_options=OPTIONS[name])


def test_training_does_not_change(averaged: tuple[str, Observed], plain: Observed) -> None:
    _, run = averaged
    ours, theirs = (each.folder.read_checkpoint() for each in (run, plain))
    assert ours is not None
    assert theirs is not None
    assert find_differences(ours["algorithm"], theirs["algorithm"]) == []
    assert find_differences(run.states, plain.states) == []
    assert [record["loss"] for record in run.result.records] == [record["loss"] for record in plain.result.records]
    algorithm = load_algorithm(run.folder.path, network=batch_norm_network)
    assert find_differences(algorithm.network.state_dict(), run.states[-1]) == []


def test_records_and_weights_are_those_of_the_average(averaged: tuple[str, Observed], plain: Observed) -> None:
    name, run = averaged
    trainer = run.trainer
    algorithm = load_algorithm(run.folder.path, network=batch_norm_network)
    assert [record["step"] for record in run.result.records] == [2, 4, 6]
    for record, kept in zip(run.result.records, run.kept, strict=True):
        expected = average_by_hand(name, run, record["step"] + 1)
        assert kept.keys() == expected.keys()
        for key, value in kept.items():
            torch.testing.assert_close(value, expected[key], rtol=1e-5, atol=1e-6)
        algorithm.network.load_state_dict(kept)
        evaluation = evaluate(
            *(algorithm, trainer.dataset, trainer.splits, trainer.roles, "all", torch.device("cpu"), World())
        )
        assert record["accuracy"] == evaluation["accuracy"]
    assert not torch.equal(run.kept[-1]["classifier.weight"], run.states[-1]["classifier.weight"])
    assert not torch.equal(run.kept[-1]["featurizer.1.running_mean"], run.states[-1]["featurizer.1.running_mean"])
    scores = [selection_score(record) for record in run.result.records]
    best = run.folder.read_weights("best")
    assert find_differences(best, run.kept[scores.index(max(scores))]) == []
    assert (
        find_differences(load_model(run.folder.path, "last", network=batch_norm_network).state_dict(), run.kept[-1])
        == []
    )


def test_predictions_are_those_of_the_average(tmp_path: Path) -> None:
    result = tiny_run(tmp_path / "run", average="sma", average_options={"start": 1}, hparams={"lr": 0.05})
    domain = DATASETS.build(result.config).domains[0]
    Image.fromarray(domain.images[0].permute(1, 2, 0).contiguous().numpy()).save(tmp_path / "0.png")
    x = domain.images[:1].float() / 255
    with torch.no_grad():
        average, live = load_model(result.folder)(x).softmax(1), load_algorithm(result.folder).predict(x).softmax(1)
    (prediction,) = predict_images(result.folder, [tmp_path / "0.png"], device="cpu")
    probabilities = np.array(list(prediction.probabilities.values()))
    assert probabilities == pytest.approx(average[0].numpy(), abs=1e-5)
    assert probabilities != pytest.approx(live[0].numpy(), abs=1e-3)


RESUMED: dict[str, dict[str, Any]] = {
    "sma": {"average": "sma"},
    "swad": {**SETTINGS, "average": "swad", "average_options": OPTIONS["swad"], "hparams": {"lr": 0.3}},
    "mat with sam and swad": {
        "algorithm": "mat",
        "sam": True,
        "average": "swad",
        "average_options": {"every": 2, "patience": 2, "end_patience": 3},
    },
    "ermplusplus": {
        "algorithm": "ermplusplus",
        "hparams": {"head_steps": 2, "lr": 1.0, "head_lr": 0.01},
        "average_options": {"start": 100},
        "steps": 20,
    },
}


@pytest.mark.parametrize("name", RESUMED)
def test_a_stopped_run_resumes_to_the_bit(name: str, tmp_path: Path) -> None:
    settings = RESUMED[name]
    whole = tiny_run(tmp_path / "whole", **settings)
    stops = interrupted_run(tmp_path / "parts", **settings)
    assert stops >= 3
    assert find_differences(read_outcome(tmp_path / "parts"), read_outcome(whole.folder)) == []
    if name == "ermplusplus":
        factors = [record["lr_factor"] for record in whole.records]
        assert factors == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01, 0])


def test_a_crashed_run_resumes_to_the_bit(tmp_path: Path) -> None:
    settings = RESUMED["swad"]
    whole = tiny_run(tmp_path / "whole", **settings)

    class CrashError(Exception):
        pass

    for crash in (2, 4, 6):

        def on_step(step: int, loss: float, crash: int = crash) -> None:
            if step == crash:
                raise CrashError

        with pytest.raises(CrashError):
            train(tiny_config(tmp_path / "parts", **settings), on_step=on_step, datasets=DATASETS)
    tiny_run(tmp_path / "parts", **settings)
    assert find_differences(read_outcome(tmp_path / "parts"), read_outcome(whole.folder)) == []


def test_a_checkpoint_without_an_average_is_an_error(tmp_path: Path) -> None:
    tiny_run(tmp_path / "run", stop_after=3)
    config = RunFolder(tmp_path / "run").config_file
    settings = json.loads(config.read_text())
    settings["config"] |= {"average": "sma", "average_options": {"start": 3}}
    config.write_text(json.dumps(settings))
    with pytest.raises(DomainwiseError, match=r"checkpoint\.pt does not match this run"):
        tiny_run(tmp_path / "run", average="sma")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"average": "swa"}, "unknown average 'swa'"),
        ({"average": "sma", "average_options": {"strat": 3}}, "unknown option of sma 'strat'; did you mean 'start'"),
        ({"average": "sma", "average_options": {"decay": 0.9}}, "unknown option of sma 'decay'"),
        (
            {"average": "sma", "average_options": {"start": 0}},
            "average_options of sma: start must be at least 1, got 0",
        ),
        ({"average": "sma", "average_options": {"start": 1.5}}, "start must be an integer, got 1.5"),
        ({"average": "sma", "average_options": {"start": True}}, "start must be an integer, got True"),
        ({"average": "ema", "average_options": {"decay": "high"}}, "decay must be a number, got 'high'"),
        ({"average": "ema", "average_options": {"decay": 1}}, "decay must be at least 0 and below 1, got 1"),
        (
            {"average": "swad", "average_options": {"variant": "new"}},
            "variant must be 'paper' or 'released', got 'new'",
        ),
        ({"average": "swad", "average_options": {"tolerance": float("nan")}}, "tolerance must be"),
        ({"average_options": {"start": 3}}, "average_options need an average: sma, ema, swad"),
        ({"sam": True, "sagm": True}, "--sam and --sagm cannot be used together"),
        ({"sam": True, "sam_radius": -1.0}, "sam_radius must be a number of at least 0"),
        ({"probe_steps": 0}, "probe_steps must be an integer of at least 1, got 0"),
        ({"lr_schedule": "cosin"}, "unknown lr_schedule 'cosin'; did you mean 'cosine'"),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DomainwiseError, match=message) as error:
        RunConfig(algorithm="erm", **settings)
    assert "\n" not in str(error.value)


FEW = {**DATA, "train_count": 4}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": "andmask", "sam": True}, "ANDMask cannot be combined with SAM or SAGM"),
        ({"algorithm": "andmask", "sagm": True}, "ANDMask cannot be combined with SAM or SAGM"),
        ({"algorithm": "uat", "sam": True, "hparams": {"schedule": "simultaneous"}}, "SAM"),
        ({"average": "swad", "dataset_options": FEW, "batch_size": 4}, "swad needs holdout images of the training"),
        ({"lr_schedule": "plateau", "dataset_options": FEW, "batch_size": 4}, "lr_schedule plateau needs holdout"),
    ],
)
def test_settings_that_do_not_fit_are_rejected(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(DomainwiseError, match=message) as error:
        tiny_run(tmp_path / "run", **settings)
    assert "\n" not in str(error.value)


def test_checking_options_draws_no_random_numbers() -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    RunConfig(algorithm="erm", average="swad", average_options={"every": 3})
    assert torch.equal(torch.get_rng_state(), state)


def resolve_average(steps: int, **settings: Any) -> tuple[str | None, dict[str, Any]]:
    config = tiny_config(Path("run"), **settings)
    resolved, _ = resolve_config(replace(config, steps=steps), DATASETS.build(config))
    return resolved.average, dict(resolved.average_options)


def test_defaults_fit_the_number_of_steps() -> None:
    assert resolve_average(300) == (None, {})
    assert resolve_average(1, average="sma") == ("sma", {"start": 1})
    assert resolve_average(300, average="sma") == ("sma", {"start": 150})
    assert resolve_average(300, average="sma", average_options={"start": 20}) == ("sma", {"start": 20})
    assert resolve_average(300, average="ema") == ("ema", {"decay": 0.999})
    swad = {"patience": 3, "end_patience": 6, "tolerance": 0.3, "variant": "paper"}
    for steps, every in ((5, 1), (300, 10), (5000, 100)):
        assert resolve_average(steps, average="swad") == ("swad", {"every": every, **swad})
    assert resolve_average(300, average="swad", average_options={"every": 7}) == ("swad", {"every": 7, **swad})


def test_ermplusplus_has_its_own_defaults() -> None:
    method: dict[str, Any] = {"algorithm": "ermplusplus"}
    assert resolve_average(5000, **method) == ("sma", {"start": 600})
    assert resolve_average(300, **method) == ("sma", {"start": 150})
    # What a run sets itself takes precedence, even if it is the same value.
    assert resolve_average(300, **method, average_options={"start": 600}) == ("sma", {"start": 600})
    assert resolve_average(300, **method, average_options={"start": 20}) == ("sma", {"start": 20})
    assert resolve_average(300, **method, average="sma") == ("sma", {"start": 150})
    assert resolve_average(300, **method, average="ema") == ("ema", {"decay": 0.999})
    config = tiny_config(Path("run"), **method)
    assert resolve_config(config, DATASETS.build(config))[0].lr_schedule == "plateau"
    constant = replace(config, lr_schedule="constant")
    assert resolve_config(constant, DATASETS.build(config))[0].lr_schedule == "constant"


NEW = [
    *("average", "average_options", "sam", "sagm", "sam_radius", "sagm_alpha"),
    *("probe_steps", "probe_lr", "shared_start", "lr_schedule", "refit", "soup"),
]


def test_a_run_from_before_these_settings_is_the_same_run(tmp_path: Path) -> None:
    result = tiny_run(tmp_path / "run", stop_after=3)
    file = RunFolder(result.folder).config_file
    content = json.loads(file.read_text())
    for name in NEW:
        del content["config"][name]
    file.write_text(json.dumps(content))
    finished = tiny_run(tmp_path / "run")
    assert finished.records == tiny_run(tmp_path / "run").records
    assert [record["step"] for record in finished.records] == [2, 4, 6]
    assert load_model(result.folder).training is False
    for changes in ({"average": "sma"}, {"sam": True}, {"probe_steps": 3}, {"shared_start": True}):
        with pytest.raises(DomainwiseError, match=rf"a different run: {next(iter(changes))} is"):
            tiny_run(tmp_path / "run", **changes)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"algorithm": "erm"}, "silhouettes-erm-trial0-1d00a877"),
        ({"algorithm": "mat", "trial_seed": 2, "attack_radius": 0.5}, "silhouettes-mat-trial2-6e3a1b5e"),
        ({"algorithm": "erm", "seeding": "domainbed"}, "silhouettes-erm-trial0-33b82ada"),
    ],
)
def test_folders_keep_the_names_that_they_had(settings: dict[str, Any], name: str) -> None:
    options = {"train_count": 40, "test_count": 10, "image_size": 16, "shifts": (0, 8)}
    config = RunConfig(dataset_options=options, steps=4, **settings)
    resolved, _ = resolve_config(config, DATASETS.build(config))
    assert resolved.folder() == Path("runs") / name
    others = [{"average": "sma"}, {"sam": True}, {"probe_steps": 5}, {"shared_start": True}, {"lr_schedule": "plateau"}]
    assert len({replace(resolved, **each).folder() for each in ({}, *others)}) == len(others) + 1


def test_the_holdout_loss_is_the_mean_over_domains(tmp_path: Path) -> None:
    run = Observed(tmp_path / "run", steps=1)
    trainer = run.trainer
    model = load_algorithm(tmp_path / "run", network=batch_norm_network).network
    losses = []
    for name in ("style_0", "style_1"):
        domain = trainer.dataset.domains[trainer.dataset.index(name)]
        indices = split_domains(trainer.dataset, 0)[name].holdout
        assert len(indices) == 8
        with torch.no_grad():
            logits = model(domain.images[indices].float() / 255)
        losses.append(nn.functional.cross_entropy(logits, domain.labels[indices]).item())
    assert run.losses == [pytest.approx(sum(losses) / 2, rel=1e-5)]
