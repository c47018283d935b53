"""The folder of a sweep: its spec, its plan, and a run folder a run."""

import json
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from domainwise.atomic import write_atomically
from domainwise.errors import DomainwiseError
from domainwise.locks import LockedError, locked
from domainwise.runs import RunFolder
from domainwise.runs.store import RunIsBusy
from domainwise.selection import planned
from domainwise.selection.planned import Planned, read_plan, state_of
from domainwise.sweeps.plan import PlannedRun
from domainwise.sweeps.spec import SweepSpec, read_spec

State = planned.State | Literal["running"]


@dataclass(frozen=True)
class Standing:
    """How a run of a sweep stands: its state, its steps done by the last record, and the last line of its error."""

    run: str
    state: State
    step: int = 0
    error: str = ""


class SweepFolder:
    """Reads and writes what a sweep has beside its runs."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.spec_file = self.path / "sweep.toml"
        self.plan_file = self.path / "plan.jsonl"
        self.holder_file = self.path / ".holder"

    def claim(self, spec: SweepSpec) -> None:
        """Begin the sweep here, or find that the one begun here is this or a part of it."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DomainwiseError(f"the folder {self.path} cannot be made: {error.strerror}") from error
        spec.claim(self.spec_file)

    def write_plan(self, runs: Sequence[PlannedRun]) -> None:
        lines = [json.dumps(run.as_line()) + "\n" for run in runs]
        write_atomically(self.plan_file, "".join(lines).encode())

    def read_plan(self) -> list[Planned]:
        read_spec(self.spec_file)  # says clearly where there is no sweep
        return read_plan(self.path) if self.plan_file.exists() else []

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep a second sweep from the same runs; the system lets go when this process dies."""
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            with locked(self.path / ".lock"):
                write_atomically(self.holder_file, f"process {os.getpid()} on {socket.gethostname()}".encode())
                yield
        except LockedError as error:
            holder = self.holder_file.read_text() if self.holder_file.exists() else "another process"
            raise DomainwiseError(f"a sweep is at work in {self.path}: {holder}") from error

    def standings(self) -> list[Standing]:
        """How each run of the plan stands."""
        return [standing(Path(run.run)) for run in self.read_plan()]


def standing(run: Path) -> Standing:
    folder = RunFolder(run)
    records = []
    with suppress(DomainwiseError):  # what is damaged is told by whoever reads it
        records = folder.read_records()
    step = records[-1]["step"] + 1 if records else 0
    state, error = state_of(run)
    if state != "done" and is_busy(folder):
        return Standing(run.name, "running", step)
    return Standing(run.name, state, step, error)


def is_busy(folder: RunFolder) -> bool:
    if not folder.path.is_dir():
        return False
    try:
        with folder.locked():
            return False
    except RunIsBusy:
        return True


def write_failure(run: Path, error: str) -> None:
    """Keep why a run failed beside it."""
    with suppress(OSError):  # a full disk is often the reason itself
        run.mkdir(parents=True, exist_ok=True)
        write_atomically(run / "failed.txt", f"{error}\n".encode())


def clear_failure(run: Path) -> None:
    (run / "failed.txt").unlink(missing_ok=True)
