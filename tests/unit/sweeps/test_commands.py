"""The command of one run is that very run, and scripts are made of such commands."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from domainwise.cli import train as train_command
from domainwise.sweeps.plan import PlannedRun
from domainwise.sweeps.slurm import command_of, write_slurm_script
from domainwise.training import RunConfig

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
    augment=False,
    output=Path("a folder/run"),
)


def parsed(command: str, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """The config that the command line makes of a command."""
    import domainwise.cli

    caught: list[RunConfig] = []

    def catch(config: RunConfig, **_: object) -> None:
        caught.append(config)
        raise KeyboardInterrupt

    monkeypatch.setattr(train_command.training, "train", catch)
    monkeypatch.setattr(sys, "argv", shlex.split(command))
    with pytest.raises(SystemExit):
        domainwise.cli.main()
    return caught[0]


def test_the_command_line_makes_the_same_config_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    again = parsed(command_of(CONFIG), monkeypatch)
    assert again.identity() == CONFIG.identity()
    assert again.folder() == CONFIG.folder()


def test_defaults_are_left_out() -> None:
    assert command_of(RunConfig(dataset="silhouettes", algorithm="erm")) == (
        "domainwise train --dataset silhouettes --algorithm erm"
    )


def test_a_slurm_script_runs_the_line_of_its_job(tmp_path: Path) -> None:
    names = ["one", "it's two", "three"]
    runs = [PlannedRun(name, RunConfig(algorithm="erm", output=tmp_path / name), "silhouettes") for name in names]
    script = tmp_path / "the jobs.sh"
    commands = write_slurm_script(script, runs, at_once=4)
    assert "#SBATCH --array=1-3%4\n" in script.read_text()
    assert [shlex.split(line)[-1] for line in commands.read_text().splitlines()] == [
        str(tmp_path / name) for name in names
    ]
    # The command itself is replaced by one that shows its words.
    shown = tmp_path / "bin" / "domainwise"
    shown.parent.mkdir()
    shown.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    shown.chmod(0o755)
    environment = {"PATH": f"{shown.parent}:/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "2"}
    out = subprocess.run(["bash", str(script)], env=environment, capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[-1] == str(tmp_path / "it's two")
