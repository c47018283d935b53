"""The sweep folder: the spec it was started with, its plan, and one folder per run.

sweep.toml      what the sweep compares
plan.jsonl      one JSON line per planned run
RUN/            run folders
"""

import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from domainwise.errors import DomainwiseError
from domainwise.storage.files import LockedError, hold_lock, read_regular, remove_partial_files, write_atomic
from domainwise.storage.run_folder import (
    RunFolder,
    RunStatus,
    create_folder,
    read_json_lines,
    write_json_lines,
)
from domainwise.storage.schemas import parse_plan_line, parse_spec

PLAN_FILE = "plan.jsonl"
_HOLDER_FILE = ".holder"
SWEEP_FILES = (PLAN_FILE, "sweep.toml", _HOLDER_FILE, ".lock")


def place_derived_run(run: str | Path, suffix: str, group: str) -> Path:
    """Return the folder of a run that is made from another: next to it, its name with a suffix.

    A folder within a sweep would be taken for one of its runs, so it is put next to the sweep, in SWEEP-`group`.
    """
    path = Path(run).resolve()
    parent = path.parent
    if (parent / PLAN_FILE).exists():
        parent = parent.with_name(f"{parent.name}-{group}")
    return parent / f"{path.name}-{suffix}"


def find_owner(path: Path) -> Path | None:
    """Return the folder of the sweep, study or reproduction whose runs are next to `path` or around it, if any."""
    path = path.resolve()
    for folder in (path, *path.parents):
        # A study and a reproduction have their runs in `runs`.
        if (folder.parent / PLAN_FILE).exists() or (folder.name == "runs" and (folder.parent / _HOLDER_FILE).exists()):
            return folder.parent
    return None


def check_new_run(folder: Path) -> None:
    """Raise an error if a new run in `folder` would be counted among those of a sweep that has not planned it."""
    owner = find_owner(folder)
    if owner is None or RunFolder(folder).config_file.exists():
        return
    if folder.resolve() not in (run.folder for run in SweepFolder(owner).read_plan()):
        raise DomainwiseError(
            f"{folder} is among the runs of {owner}, which has not planned it; choose another --output"
        )


@dataclass(frozen=True)
class PlannedRun:
    """A run that a plan lists: its folder, and its place in a table.

    Args:
        name: the folder's name below the sweep folder.
        dataset: the dataset's name in tables.
    """

    folder: Path
    name: str
    dataset: str
    algorithm: str
    test_domains: tuple[str, ...]
    trial: int
    draw: int


class SweepFolder:
    """Reads and writes the files of a sweep next to its run folders."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.spec_file = self.path / "sweep.toml"
        self.plan_file = self.path / PLAN_FILE
        self.holder_file = self.path / _HOLDER_FILE

    def check_place(self) -> None:
        """Raise an error if the folder is among the runs of another sweep, study or reproduction."""
        if (owner := find_owner(self.path)) is not None:
            raise DomainwiseError(f"{self.path} is among the runs of {owner}; choose another --output")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep a second sweep out of the folder; the operating system releases it if this process dies."""
        self.check_place()
        create_folder(self.path)
        try:
            with hold_lock(self.path / ".lock"):
                remove_partial_files(self.path)
                write_atomic(self.holder_file, f"process {os.getpid()} on {socket.gethostname()}".encode())
                yield
        except LockedError as error:
            holder = self.holder_file.read_text() if self.holder_file.exists() else "another process"
            raise DomainwiseError(f"a sweep is already running in {self.path}: {holder}") from error

    def find_runs(self) -> Iterator[Path]:
        """Yield the folders of all runs that have begun, at any depth."""
        return (file.parent for file in self.path.rglob("config.json"))

    @property
    def has_begun(self) -> bool:
        return any(True for _ in self.find_runs())

    def write_spec(self, spec: Mapping[str, Any]) -> None:
        import tomli_w

        write_atomic(self.spec_file, tomli_w.dumps(spec).encode())

    def read_spec(self) -> dict[str, Any]:
        """Return what the sweep was started with, as plain values."""
        try:
            spec = parse_spec(read_regular(self.spec_file))
            # A sweep from before there was a choice has DomainBed's seeding.
            return {**spec, "settings": {"seeding": "domainbed", **spec.get("settings", {})}}
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DomainwiseError(f"no sweep in {self.path}: {self.spec_file.name} not found") from error
        except (OSError, ValueError) as error:
            raise DomainwiseError(f"{self.spec_file} is damaged: {error}; restore it") from error

    def write_plan(self, runs: Iterable[PlannedRun]) -> None:
        write_json_lines(
            self.plan_file,
            [
                {
                    "run": run.name,
                    "dataset": run.dataset,
                    "algorithm": run.algorithm,
                    "test_domains": list(run.test_domains),
                    "trial_seed": run.trial,
                    "hparams_seed": run.draw,
                }
                for run in runs
            ],
        )

    def read_plan(self) -> list[PlannedRun]:
        """Return every planned run in order; none before the plan is written."""
        lines, is_truncated = read_json_lines(self.plan_file, parse_plan_line)
        if is_truncated:
            raise DomainwiseError(f"{self.plan_file} is truncated after line {len(lines)}; restore it")
        return [
            PlannedRun(
                folder=self.path / line["run"],
                name=line["run"],
                dataset=line["dataset"],
                algorithm=line["algorithm"],
                test_domains=tuple(line["test_domains"]),
                trial=line["trial_seed"],
                draw=line["hparams_seed"],
            )
            for line in lines
        ]

    def read_statuses(self) -> dict[PlannedRun, RunStatus]:
        """Return how far each planned run is."""
        self.read_spec()  # the clearer error if there is no sweep
        return {run: RunFolder(run.folder).read_status() for run in self.read_plan()}
