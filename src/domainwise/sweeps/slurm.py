"""Writes a sweep as a SLURM job array."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from domainwise.storage.discovery import check_output
from domainwise.storage.files import write_atomic
from domainwise.training import RunConfig
from domainwise.training.command import train_command


def write_slurm_script(script: Path, configs: Sequence[RunConfig], *, max_jobs: int) -> Path:
    """Write a script for `sbatch`, an array with one job per run, and next to it the file with their commands."""
    check_output(script)
    commands = script.with_name(f"{script.stem}.commands")
    write_atomic(commands, "".join(f"{train_command(config)}\n" for config in configs).encode())
    lines = [
        "#!/bin/bash",
        "# One job per run. Submit again to resume jobs that were cut off.",
        f"#SBATCH --array=1-{len(configs)}%{max_jobs}",
        "#SBATCH --job-name=domainwise",
        "#SBATCH --output=slurm-%A_%a.log",
        "#SBATCH --signal=B:INT@60",
        "# Add what your cluster requires: --partition, --time, --gres=gpu:1, --cpus-per-task, a module.",
        "set -eu",
        f"cd {shlex.quote(str(Path.cwd()))}",
        f'command=$(sed -n "${{SLURM_ARRAY_TASK_ID}}p" {shlex.quote(str(commands.resolve()))})',
        'eval "exec $command"',
    ]
    write_atomic(script, ("\n".join(lines) + "\n").encode())
    return commands
