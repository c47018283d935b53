"""From folders to one frame of all records in them, ours and DomainBed's, and to what a sweep still lacks."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from domainwise.errors import DomainwiseError
from domainwise.selection.frame import Row, frame_of_rows, rows_of
from domainwise.storage.discovery import Folder, find_folders, record_of
from domainwise.storage.run_folder import Record, read_lines, read_records
from domainwise.storage.sweep_folder import Planned, read_plan


class DuplicateRuns(DomainwiseError):
    """Two runs would fill the same place of a table."""


@dataclass(frozen=True)
class Runs:
    """What was found.

    Args:
        frame: a row a record and test domain, as `domainwise.selection.frame.frame_of` says; `run` is the folder.
        planned: what the plans of sweeps list; empty where there is no sweep.
        notes: a line for each thing that is not in the frame, for whoever reads a table made of it.
    """

    frame: pl.DataFrame
    planned: tuple[Planned, ...]
    notes: tuple[str, ...]


def read_runs(paths: Sequence[Path], *, unfinished: bool = False, keep_duplicates: bool = False) -> Runs:
    """Every run at or below `paths`: sweeps, runs of ours and of DomainBed, or folders that hold such.

    Args:
        unfinished: whether runs of ours that are not done count too; DomainBed's always do.
        keep_duplicates: whether runs that would fill the same place of a table are let through, for whoever tells them
            apart.
    """
    planned: list[Planned] = []
    found = _Found()
    for folder in find_folders(paths):
        if folder.is_sweep:
            planned += read_plan(folder.path)
        if folder.is_ours:
            found.add_ours(folder, unfinished)
        if folder.is_domainbeds:
            found.add(folder, "results.jsonl", read_lines, record_of)
    frame = frame_of_rows(found.rows)
    if not keep_duplicates:
        refuse_duplicates(frame)
    return Runs(frame, tuple(planned), found.all_notes())


@dataclass
class _Found:
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    not_done: int = 0
    failed: int = 0

    def add_ours(self, folder: Folder, unfinished: bool) -> None:
        is_done = "done" in folder.files
        if not is_done and not unfinished:
            self.not_done += 1
            self.failed += "failed.txt" in folder.files
            return
        self.add(folder, "records.jsonl", read_records, lambda record: record, _last_step(folder) if is_done else None)

    def add(
        self,
        folder: Folder,
        name: str,
        read: Callable[[Path], tuple[list[Record], bool]],
        to_record: Callable[[Record], Record],
        last_step: int | None = None,
    ) -> None:
        """Add a run's rows, all or none; of a step that is there twice the later ones, from when it ran again."""
        file = folder.path / name
        try:
            lines, is_cut = read(file)
        except DomainwiseError as error:
            self.notes.append(f"{folder.path} is left out: {error}")
            return
        rows: dict[int, list[Row]] = {}
        for number, line in enumerate(lines, start=1):
            try:
                record = to_record(line)
                rows[record["step"]] = rows_of(str(folder.path), record)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                said = f"has no {error}" if isinstance(error, KeyError) else f"is no record: {error}"
                self.notes.append(f"{folder.path} is left out: line {number} of {file} {said}")
                return
        if last_step is not None and last_step not in rows:
            self.notes.append(f"{folder.path} is left out: it is done, but {file} does not reach step {last_step}")
            return
        self.rows += [row for step in rows.values() for row in step]
        if is_cut:
            self.notes.append(f"the last line of {file} is half-written and does not count")
        if not lines:
            self.notes.append(f"{folder.path} has no records yet")
        if len(rows) < len(lines):
            self.notes.append(f"{file} has records of {len(lines) - len(rows)} steps twice; the later ones count")

    def all_notes(self) -> tuple[str, ...]:
        if not self.not_done:
            return tuple(self.notes)
        runs = "1 run is" if self.not_done == 1 else f"{self.not_done} runs are"
        failed = f", {self.failed} of them because of an error" if self.failed else ""
        return (*self.notes, f"{runs} left out because not finished{failed}")


def _last_step(folder: Folder) -> int | None:
    """The step of a finished run's last record, where its config tells."""
    try:
        return int(json.loads((folder.path / "config.json").read_bytes())["config"]["steps"]) - 1
    except (LookupError, TypeError, ValueError):
        return None


def clashes(frame: pl.DataFrame) -> pl.DataFrame:
    """Places of a table with several runs: dataset, algorithm, trial, draw, what is `tested`; and the runs."""
    place = ("dataset", "algorithm", "trial", "draw", "tested")
    tested = pl.when("is_result").then("test_domain").otherwise(pl.col("test_domains").list.sort().list.join(" and "))
    return (
        frame.with_columns(tested=tested)
        .group_by(place, maintain_order=True)
        .agg(pl.col("run").unique(maintain_order=True))
        .filter(pl.col("run").list.len() > 1)
    )


def refuse_duplicates(frame: pl.DataFrame, advice: str = "leave one of them out") -> None:
    """Raise for two runs that would fill the same place: no table could say which one it shows."""
    for row in clashes(frame).head(1).iter_rows(named=True):
        one, other = row["run"][:2]
        raise DuplicateRuns(
            f"{one} and {other} are both {row['algorithm']} on {row['dataset']}, tested on {row['tested']}, trial "
            f"{row['trial']}, draw {row['draw']}; a table would count it twice: {advice}"
        )
