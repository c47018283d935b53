"""Commands that need no torch do not import it, so that help, tables and status appear at once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from domainwise.cli import COMMANDS

OLD_SWEEP = Path(__file__).parents[1] / "fixtures" / "schema_1" / "sweep"
# What no command may import just to print its help.
HEAVY = ("torch", "torchvision", "scipy", "matplotlib", "captum", "ray")


def imported_packages(*args: str) -> set[str]:
    """Run a command, and return the top-level packages that it imported."""
    outcome = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "domainwise", *args],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "100"},
    )
    assert outcome.returncode == 0, outcome.stderr[-2000:]
    assert outcome.stdout
    lines = [line for line in outcome.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip().partition(".")[0] for line in lines}


@pytest.mark.parametrize(
    "args",
    [
        ["--help"],
        ["--version"],
        *([command, "--help"] for command in COMMANDS),
        ["sweep", "status", "--help"],
        *(["data", command, "--help"] for command in ("list", "check", "shift", "prepare", "clear-cache")),
        ["reproduce", "--list"],
    ],
    ids=" ".join,
)
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    assert imported_packages(*args).isdisjoint(HEAVY)


@pytest.mark.parametrize("args", [["report"], ["sweep", "status"]], ids=" ".join)
def test_reading_a_sweep_imports_no_torch(args: list[str]) -> None:
    assert imported_packages(*args, str(OLD_SWEEP)).isdisjoint({"torch", "torchvision"})


def test_torch_would_be_seen() -> None:
    assert "torch" in imported_packages("algorithms")
