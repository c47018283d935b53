"""Commands that need no torch do not import it, so that help, tables and status appear at once."""

import json
import os
import subprocess
import sys
from pathlib import Path

from domainwise.cli import COMMANDS

OLD_SWEEP = Path(__file__).parents[1] / "fixtures" / "schema_1" / "sweep"
# What no command may import just to print its help.
HEAVY = {"torch", "torchvision", "scipy", "matplotlib", "captum", "ray"}
# Runs command lines one after the other; after each, prints what is imported by then.
COMMAND_LINES = """
import contextlib, io, json, runpy, sys
imported = []
for words in json.loads(sys.argv[1]):
    sys.argv[1:] = words
    with contextlib.redirect_stdout(io.StringIO()) as out:
        try:
            runpy.run_module("domainwise", run_name="__main__", alter_sys=True)
        except SystemExit as end:
            assert not end.code, words
    assert out.getvalue(), words
    imported.append(sorted({name.partition(".")[0] for name in sys.modules}))
print(json.dumps(imported))
"""


def imported_packages(*command_lines: list[str]) -> list[set[str]]:
    """Run commands in a fresh process, and return the top-level packages that are imported after each."""
    outcome = subprocess.run(
        [sys.executable, "-c", COMMAND_LINES, json.dumps(command_lines)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "COLUMNS": "100"},
    )
    assert outcome.returncode == 0, outcome.stderr[-2000:]
    return list(map(set, json.loads(outcome.stdout)))


def test_help_imports_nothing_heavy() -> None:
    lines = [
        ["--help"],
        ["--version"],
        *([command, "--help"] for command in COMMANDS),
        ["sweep", "status", "--help"],
        *(["data", command, "--help"] for command in ("list", "check", "shift", "prepare", "clear-cache")),
        ["reproduce", "--list"],
    ]
    heavy = [packages & HEAVY for packages in imported_packages(*lines)]
    assert dict(zip(map(" ".join, lines), heavy, strict=True)) == {" ".join(line): set() for line in lines}


def test_reading_a_sweep_imports_no_torch_and_tables_of_methods_do() -> None:
    lines = (["report", str(OLD_SWEEP)], ["sweep", "status", str(OLD_SWEEP)], ["algorithms"])
    report, status, algorithms = imported_packages(*lines)
    assert {"torch", "torchvision"}.isdisjoint(report | status)
    assert "torch" in algorithms
