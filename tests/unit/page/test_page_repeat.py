"""The command that the page gives for a run is that very run."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import domainwise.cli
from domainwise.cli import train as train_command
from domainwise.reports.html.runs_table import command_from
from domainwise.training import RunConfig
from domainwise.training.config import build_dataset, resolved


def parsed(command: str, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """The config that the command line makes of a command."""
    caught: list[RunConfig] = []

    def catch(config: RunConfig, **_: object) -> None:
        caught.append(config)
        raise KeyboardInterrupt

    monkeypatch.setattr(train_command.training, "train", catch)
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit):
        domainwise.cli.main()
    return caught[0]


def stored(config: RunConfig) -> Any:
    """What a run folder keeps of a config: all settings, written out."""
    full, _ = resolved(config, build_dataset(config))
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
    ],
    ids=["defaults", "everything", "backbone"],
)
def test_the_command_line_makes_the_same_run_of_it(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = stored(config)
    again = parsed(command_from(settings), monkeypatch)
    assert json.loads(json.dumps(again.identity())) == settings


def test_weights_from_a_file_are_called_by_its_name() -> None:
    settings = {"dataset": "pacs", "algorithm": "erm", "weights": "my net.pth sha256:0123", "test_domains": ["a b"]}
    assert command_from(settings) == (
        "domainwise train --dataset pacs --algorithm erm --weights 'my net.pth' --test-domain 'a b'"
    )


def test_what_a_folder_does_not_tell_has_no_command() -> None:
    assert command_from({"hparams": {"lr": 1}}) == ""


def test_a_shell_finds_nothing_to_run_in_names() -> None:
    command = command_from({"dataset": "$(rm -rf x)", "algorithm": "erm; ls", "test_domains": ["`id`"]})
    assert shlex.split(command)[2:] == [
        *("--dataset", "$(rm -rf x)", "--algorithm", "erm; ls", "--test-domain", "`id`"),
    ]


def test_a_report_does_not_wait_for_torch(tmp_path: Path) -> None:
    code = "import sys, domainwise.reports.html, domainwise.cli.report; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
