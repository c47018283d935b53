"""What a sweep was to run, and how far it came."""

import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from domainwise.errors import DomainwiseError
from domainwise.storage.files import LockedError, locked, write_atomically
from domainwise.storage.run_folder import RunIsBusy, read_lines
from domainwise.sweeps.plan import PlannedRun
from domainwise.sweeps.spec import SweepSpec, read_spec
from domainwise.training import RunFolder

State = Literal["done", "failed", "unfinished", "to do"]


@dataclass(frozen=True)
class Planned:
    """A run that a sweep's plan lists, and how it stands; `run` is its folder, and `error` what it failed of."""

    run: str
    dataset: str
    algorithm: str
    test_domains: tuple[str, ...]
    trial: int
    draw: int
    state: State
    error: str = ""


def read_plan(sweep: Path) -> list[Planned]:
    """Every run of `plan.jsonl`, in its order."""
    file = sweep / "plan.jsonl"
    lines, is_cut = read_lines(file)
    if is_cut:
        raise DomainwiseError(f"{file} is cut off after line {len(lines)}; restore it")
    return [_planned(file, number, line) for number, line in enumerate(lines, start=1)]


def _planned(file: Path, number: int, line: Mapping[str, Any]) -> Planned:
    try:
        folder = file.parent / line["run"]
        state, error = state_of(folder)
        return Planned(
            run=str(folder),
            dataset=str(line["dataset"]),
            algorithm=str(line["algorithm"]),
            test_domains=tuple(line["test_domains"]),
            trial=int(line["trial_seed"]),
            draw=int(line["hparams_seed"]),
            state=state,
            error=error,
        )
    except (KeyError, TypeError, ValueError) as problem:
        said = f"it has no {problem}" if isinstance(problem, KeyError) else problem
        raise DomainwiseError(f"{file} is damaged at line {number}: {said}; restore it") from problem


def state_of(folder: Path) -> tuple[State, str]:
    """How a run stands by the files in its folder, and the last line of its error."""
    if (folder / "done").exists():
        return "done", ""
    if (folder / "failed.txt").exists():
        lines = (folder / "failed.txt").read_text(errors="replace").split("\n")
        return "failed", next((line.strip() for line in reversed(lines) if line.strip()), "")
    return ("unfinished" if (folder / "config.json").exists() else "to do"), ""


RunState = State | Literal["running"]


@dataclass(frozen=True)
class Standing:
    """How a run of a sweep stands: its state, its steps done by the last record, and the last line of its error."""

    run: str
    state: RunState
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
