"""The command of a run is parsed to the same config."""

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import domainwise.cli
from domainwise.training import RunConfig
from domainwise.training.command import train_command

CONFIG = RunConfig(
    dataset="silhouettes",
    algorithm="mat",
    hparams={"epsilon": 0.1 + 0.2, "count": 3, "weights": "sample", "loss_cap": None},
    dataset_options={"image_size": 16, "shifts": (0, 8.5)},
    test_domains=("shift_0",),
    trial_seed=2,
    hparams_seed=5,
    steps=7,
    batch_size=9,
    dropout=0.1,
    output=Path("a folder/run"),
)


def parse_command(command: str, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """Return the config that the command line makes of a command."""
    configs: list[RunConfig] = []

    def catch(config: RunConfig, **_: object) -> None:
        configs.append(config)
        raise KeyboardInterrupt

    monkeypatch.setattr("domainwise.training.train", catch)
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit):
        domainwise.cli.main()
    return configs[0]


@pytest.mark.parametrize("augment", [None, True, False, "strong"])
def test_the_command_line_parses_it_to_the_same_config(augment: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = replace(CONFIG, augment=augment)
    parsed = parse_command(train_command(config), monkeypatch)
    assert parsed.identity() == config.identity()
    assert parsed.folder() == config.folder()


def test_defaults_are_omitted() -> None:
    assert train_command(RunConfig(dataset="silhouettes", algorithm="erm")) == (
        "domainwise train --dataset silhouettes --algorithm erm"
    )
