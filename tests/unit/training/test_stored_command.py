"""The command that the page gives for a run is that very run."""

import json
import shlex
import sys
from typing import Any

import pytest

import domainwise.cli
import domainwise.training
from domainwise.training import RunConfig
from domainwise.training.command import stored_command
from domainwise.training.registry import DatasetCache, resolve_config


def parsed(command: str, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """The config that the command line makes of a command."""
    caught: list[RunConfig] = []

    def catch(config: RunConfig, **_: object) -> None:
        caught.append(config)
        raise KeyboardInterrupt

    monkeypatch.setattr(domainwise.training, "train", catch, raising=False)
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit):
        domainwise.cli.main()
    return caught[0]


def stored(config: RunConfig) -> Any:
    """What a run folder keeps of a config: all settings, written out."""
    full, _ = resolve_config(config, DatasetCache().build(config))
    return json.loads(json.dumps(full.identity()))


@pytest.mark.parametrize(
    "config",
    [
        RunConfig(algorithm="erm"),
        RunConfig(
            algorithm="mat",
            hparams={"epsilon": 0.1 + 0.2, "count": 3, "weights": "sample", "loss_cap": None},
            dataset_options={"image_size": 16, "shifts": [0, 8.5], "train_count": 20, "test_count": 20},
            test_domains=("shift_0",),
            trial_seed=2,
            hparams_seed=5,
            steps=7,
            batch_size=9,
            dropout=0.1,
            augment=True,
            evaluate="all",
            precision="bf16",
        ),
        RunConfig(algorithm="ldat", network="resnet18", weights="none", batch_norm="live"),
        RunConfig(algorithm="erm", augment="strong"),
    ],
    ids=["defaults", "everything", "backbone", "strong augmentation"],
)
def test_the_command_line_makes_the_same_run_of_it(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = stored(config)
    again = parsed(stored_command(settings), monkeypatch)
    assert json.loads(json.dumps(again.identity())) == settings


def test_weights_from_a_file_are_called_by_its_name() -> None:
    settings = {"dataset": "pacs", "algorithm": "erm", "weights": "my net.pth sha256:0123", "test_domains": ["a b"]}
    assert stored_command(settings) == (
        "domainwise train --dataset pacs --algorithm erm --weights 'my net.pth' --test-domain 'a b'"
    )


def test_what_a_folder_does_not_tell_has_no_command() -> None:
    assert stored_command({"hparams": {"lr": 1}}) == ""


def test_a_shell_finds_nothing_to_run_in_names() -> None:
    command = stored_command({"dataset": "$(rm -rf x)", "algorithm": "erm; ls", "test_domains": ["`id`"]})
    assert shlex.split(command)[2:] == [
        *("--dataset", "$(rm -rf x)", "--algorithm", "erm; ls", "--test-domain", "`id`"),
    ]
