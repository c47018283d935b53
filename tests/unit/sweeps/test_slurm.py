"""A SLURM script runs the command of its job."""

import shlex
import subprocess
from pathlib import Path

from domainwise.sweeps.slurm import write_slurm_script
from domainwise.training import RunConfig


def test_a_job_runs_the_line_of_its_index(tmp_path: Path) -> None:
    names = ["one", "it's two", "three"]
    configs = [RunConfig(algorithm="erm", output=tmp_path / name) for name in names]
    script = tmp_path / "the jobs.sh"
    commands = write_slurm_script(script, configs, max_jobs=4)
    assert "#SBATCH --array=1-3%4\n" in script.read_text()
    assert [shlex.split(line)[-1] for line in commands.read_text().splitlines()] == [
        str(tmp_path / name) for name in names
    ]
    # A stand-in for the command that prints its arguments.
    stand_in = tmp_path / "bin" / "domainwise"
    stand_in.parent.mkdir()
    stand_in.write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
    stand_in.chmod(0o755)
    environment = {"PATH": f"{stand_in.parent}:/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "2"}
    output = subprocess.run(
        ["bash", str(script)], env=environment, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    assert output.splitlines()[-1] == str(tmp_path / "it's two")
