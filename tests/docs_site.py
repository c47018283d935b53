"""The docs site, built once per test session, whichever worker needs it first."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Site:
    folder: Path
    log: str
    code: int


def build_site(factory: pytest.TempPathFactory) -> Site:
    pytest.importorskip("mkdocs", reason="needs mkdocs: make test installs it")
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, log = shared / "site", shared / "site.log"
    with FileLock(shared / "site.lock"):
        if not log.exists():
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
            environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
            log.write_text(f"{done.returncode}\n{done.stdout}{done.stderr}")
    code, text = log.read_text().split("\n", 1)
    return Site(folder, text, int(code))
