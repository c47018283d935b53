"""Accuracy under attack in records: lower than the clean one, and without any effect on the run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from domainwise.data import silhouettes
from domainwise.errors import DomainwiseError, RunInterrupted
from domainwise.training import RunConfig, RunResult, train
from domainwise.training.registry import resolve_config

OPTIONS = {"train_count": 40, "test_count": 10, "shifts": [0, 8], "image_size": 16}


def train_run(output: Path, algorithm: str = "mat", steps: int = 6, **settings: Any) -> RunResult:
    shared: dict[str, Any] = {
        "dataset_options": OPTIONS,
        "batch_size": 8,
        "record_every": 2,
        "device": "cpu",
        "threads": 1,
    }
    return train(RunConfig(algorithm=algorithm, steps=steps, output=output, **{**shared, **settings}))


def without(record: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in keys}


@pytest.mark.parametrize("algorithm", ["mat", "at"])
def test_the_attack_changes_nothing_else(tmp_path: Path, algorithm: str) -> None:
    """No random stream advances: weights, checkpoints and all other numbers stay the same. AT draws at every step."""
    plain, attacked = (
        train_run(tmp_path / str(radius), algorithm, dropout=0.5, attack_radius=radius) for radius in (None, 0.5)
    )
    for which in ("best.safetensors", "last.safetensors"):
        assert (plain.folder / which).read_bytes() == (attacked.folder / which).read_bytes()
    for one, other in zip(plain.records, attacked.records, strict=True):
        assert without(one, "accuracy", "seconds_per_step") == without(other, "accuracy", "seconds_per_step")
        for name, parts in other["accuracy"].items():
            assert without(parts, "attacked") == one["accuracy"][name]
            assert ("attacked" in parts) == (name in other["train_domains"])


def test_a_trained_network_loses_accuracy_under_attack(tmp_path: Path) -> None:
    """More at a larger radius; a radius in root mean square per pixel means the same as its l2 norm."""
    # The backgrounds predict the classes of the training domains: learned in a few steps, with nothing left to chance.
    settings: dict[str, Any] = {
        "dataset": "silhouettes_spurious",
        "dataset_options": {"train_count": 120, "test_count": 4, "image_size": 16},
        "record_every": 30,
        "hparams": {"lr": 0.003},
    }
    accuracies = []
    for index, radius in enumerate((0.2, 4.0, f"{4.0 / 768**0.5} rms")):
        record = train_run(tmp_path / str(index), "erm", 30, attack_radius=radius, **settings).last
        accuracies.append([record["accuracy"][name] for name in record["train_domains"]])
    small, large, in_rms = accuracies
    assert all(each["holdout"] > 0.8 for each in small)  # better than chance, so that there is accuracy to lose
    assert all(each["attacked"] <= each["holdout"] for each in large)
    assert sum(each["attacked"] for each in large) < sum(each["attacked"] for each in small) - 0.5
    assert in_rms == large


def test_a_resumed_run_records_the_same(tmp_path: Path) -> None:
    whole = train_run(tmp_path / "whole", attack_radius=0.5)
    steps: list[int] = []
    config = replace(whole.config, output=tmp_path / "resumed")
    with pytest.raises(RunInterrupted):
        train(config, on_step=lambda step, loss: steps.append(step), should_stop=lambda: len(steps) >= 4)
    with pytest.raises(DomainwiseError, match=r"attack_radius is 0\.5 there and null here"):
        train(replace(config, attack_radius=None))
    resumed = train(config)
    assert [without(record, "seconds_per_step") for record in resumed.records] == [
        without(record, "seconds_per_step") for record in whole.records
    ]


@pytest.mark.parametrize("radius", [-1.0, float("nan"), float("inf"), True, "rms", "2/0", "2 pixels", "-1 rms"])
def test_invalid_radii(radius: Any) -> None:
    with pytest.raises(
        DomainwiseError, match=r"^attack_radius must be a number of at least 0, such as 0.5 or '2/255 rms', got "
    ):
        RunConfig(attack_radius=radius)


def test_default_folders_keep_their_names() -> None:
    """A run without the setting is found where it was before there was one."""
    config, _ = resolve_config(
        RunConfig(algorithm="erm", seeding="domainbed"), silhouettes(0, train_count=4, test_count=4)
    )
    assert config.folder() == Path("runs/silhouettes-erm-trial0-6f747b94")
    assert replace(config, attack_radius=0.5).folder() != config.folder()
    assert replace(config, metrics=("ece",)).folder() != config.folder()
    assert replace(config, metrics="ece,macro_f1").folder() == replace(config, metrics=("macro_f1", "ece")).folder()
    assert replace(config, seeding="common").folder() != config.folder()
