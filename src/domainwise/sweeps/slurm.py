"""The command that does one run by hand, and scripts made of such commands."""

import shlex
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from domainwise.storage.files import write_atomically
from domainwise.sweeps.plan import PlannedRun
from domainwise.training import RunConfig
from domainwise.training.command import train_command
from domainwise.training.registry import name_of


def command_of(config: RunConfig) -> str:
    """What to type for this very run: `domainwise train` with every setting that is not the default."""
    changed = {
        item.name: value
        for item in fields(config)
        if (value := getattr(config, item.name)) != item.default or item.name in ("dataset", "algorithm")
    }
    return train_command({name: name_of(value) if callable(value) else value for name, value in changed.items()})


def write_slurm_script(script: Path, runs: Sequence[PlannedRun], *, at_once: int) -> Path:
    """A script for `sbatch`: an array with a job a run, and beside it the file with their commands."""
    commands = script.with_name(f"{script.stem}.commands")
    write_atomically(commands, "".join(f"{command_of(run.config)}\n" for run in runs).encode())
    lines = [
        "#!/bin/bash",
        "# One job a run. A job that is cut off goes on from its last checkpoint when this is submitted again.",
        f"#SBATCH --array=1-{len(runs)}%{at_once}",
        "#SBATCH --job-name=domainwise",
        "#SBATCH --output=slurm-%A_%a.log",
        "#SBATCH --signal=B:INT@60",
        "# Add what your cluster asks for: --partition, --time, --gres=gpu:1, --cpus-per-task, a module.",
        "set -eu",
        f"cd {shlex.quote(str(Path.cwd()))}",
        f'command=$(sed -n "${{SLURM_ARRAY_TASK_ID}}p" {shlex.quote(str(commands.resolve()))})',
        'eval "exec $command"',
    ]
    write_atomically(script, ("\n".join(lines) + "\n").encode())
    return commands
