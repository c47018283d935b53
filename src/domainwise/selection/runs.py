"""Reads folders into one frame of all their records, and into what a sweep is still missing."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from domainwise.errors import DomainwiseError
from domainwise.selection.frame import Row, frame_from_rows, record_rows
from domainwise.selection.metrics import ACCURACY, Metric, find_metric
from domainwise.storage.discovery import BackboneSettings, StoredRun, discover
from domainwise.storage.run_folder import RunFolder, RunStatus
from domainwise.storage.sweep_folder import PlannedRun

_MAX_FOLDERS = 3


class DuplicateRuns(DomainwiseError):
    """Two runs would fill the same cell of a table."""


@dataclass(frozen=True)
class Runs:
    """The runs in some folders.

    Args:
        frame: one row per record and test domain, see `domainwise.selection.frame.build_frame`; `run` is the folder.
        planned: the status of every run in the plans of sweeps.
        stored: every run folder, also those that are not in the frame.
        notes: one line per thing that is missing from the frame, for the reader of a table.
        is_sequential: whether a sweep has added trials until its claims were decided.
        backbones: by run, for those in the frame that recorded theirs.
        metric: what the numbers in the frame are.
    """

    frame: pl.DataFrame
    planned: Mapping[PlannedRun, RunStatus] = field(default_factory=dict)
    stored: tuple[StoredRun, ...] = ()
    notes: tuple[str, ...] = ()
    is_sequential: bool = False
    backbones: Mapping[str, BackboneSettings] = field(default_factory=dict)
    metric: Metric = ACCURACY


def read_runs(
    paths: Sequence[Path], *, unfinished: bool = False, keep_duplicates: bool = False, metric: str = "accuracy"
) -> Runs:
    """Read every run at or below `paths`: sweeps, our runs and DomainBed's, or folders that contain them.

    Args:
        unfinished: include our runs that are not done; DomainBed's are always included.
        keep_duplicates: include runs that would fill the same cell of a table, for a caller that tells them apart.
        metric: name of `domainwise.selection.METRICS` that the frame has the values of.

    Raises:
        DomainwiseError: there are runs, and none has recorded the metric.
    """
    reader = _Reader(find_metric(metric))
    discovery = discover(paths)
    for run in discovery.runs:
        if run.status.state == "done" or unfinished:
            reader.add(run)
        elif run.status.state != "stopped":
            reader.skip(run)
    frame = frame_from_rows(reader.rows)
    if len(reader.seedings) > 1:
        counts = ", ".join(f"{count} {seeding}" for seeding, count in sorted(reader.seedings.items()))
        reader.notes.append(f"runs have different seedings ({counts}), so their methods did not see the same batches")
    reader.notes += _describe_mixtures(frame, reader.backbones)
    if not keep_duplicates:
        check_no_duplicates(frame)
    if metric != "accuracy" and not frame.is_empty() and frame["main"].is_null().all():
        raise DomainwiseError(f"no run has recorded {metric}; train with --metrics {metric}")
    planned = {
        run: RunFolder(run.folder).read_stored_status() for sweep in discovery.sweeps for run in sweep.read_plan()
    }
    is_sequential = any(each.read_spec().get("until_decided") for each in discovery.sweeps if each.spec_file.is_file())
    return Runs(
        *(frame, planned, tuple(discovery.runs), reader.all_notes()),
        *(is_sequential, reader.backbones, reader.metric),
    )


@dataclass
class _Reader:
    metric: Metric
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    seedings: Counter[str] = field(default_factory=Counter)
    backbones: dict[str, BackboneSettings] = field(default_factory=dict)
    skipped: int = 0
    failed: int = 0

    def skip(self, run: StoredRun) -> None:
        self.skipped += 1
        self.failed += run.status.state == "failed"

    def add(self, run: StoredRun) -> None:
        """Add all rows of a run, or none. If a step was recorded twice, its later records count."""
        try:
            records, is_truncated = run.read_records()
        except DomainwiseError as error:
            self.notes.append(f"{run.path} skipped: {error}")
            return
        rows: dict[int, list[Row]] = {}
        facts = _read_facts(run)
        for record in records:
            rows[record["step"]] = record_rows(str(run.path), record, metric=self.metric.name, **facts)
        if run.last_step is not None and run.last_step not in rows:
            self.notes.append(
                f"{run.path} skipped: it is done, but {run.records_file} does not reach step {run.last_step}"
            )
            return
        self.rows += [row for step in rows.values() for row in step]
        self.seedings[run.seeding] += 1
        backbone = run.find_backbone(records)
        if records and backbone is not None:
            self.backbones[str(run.path)] = backbone
        if not run.is_domainbed and run.config_error:
            self.notes.append(f"the settings of {run.path} are not known: {run.config_error}")
        if is_truncated:
            self.notes.append(f"{run.records_file}: ignored an incomplete last line")
        if not records:
            self.notes.append(f"{run.path} has no records yet")
        if len(rows) < len(records):
            self.notes.append(
                f"{run.records_file} has {len(records) - len(rows)} steps twice; their later records count"
            )

    def all_notes(self) -> tuple[str, ...]:
        if not self.skipped:
            return tuple(self.notes)
        runs = "1 unfinished run" if self.skipped == 1 else f"{self.skipped} unfinished runs"
        failed = f" ({self.failed} failed)" if self.failed else ""
        return (*self.notes, f"{runs} skipped{failed}")


def _read_facts(run: StoredRun) -> dict[str, Any]:
    """Return what the config says about a run's records: the keyword arguments of `record_rows`."""
    if run.is_domainbed:
        return {}
    data, steps = run.config["data"], run.config["config"].get("steps")
    sizes, classes = data.get("domain_sizes"), data.get("classes")
    return {
        # The sizes of the main parts are stored; a holdout has a quarter of that.
        "holdout_sizes": [size // 4 for size in sizes] if isinstance(sizes, list) else [],
        "steps": steps if isinstance(steps, int) else None,
        # Runs from before it was stored have only the number of classes.
        "chance": data.get("chance") or (1 / len(classes) if classes else None),
    }


def find_failures(planned: Mapping[PlannedRun, RunStatus]) -> dict[PlannedRun, str]:
    """Return a failed run, with its error, of each cell that has no model because of it.

    Of several hyperparameter draws, one that is done or may still be is enough.
    """
    cells: dict[tuple[object, ...], dict[PlannedRun, RunStatus]] = {}
    for run, status in planned.items():
        cells.setdefault((run.dataset, run.algorithm, run.test_domains, run.trial), {})[run] = status
    failures: dict[PlannedRun, str] = {}
    for cell in cells.values():
        failed = {run: status.error for run, status in cell.items() if status.state == "failed"}
        if failed and all(status.state in ("failed", "stopped") for status in cell.values()):
            failures |= [*failed.items()][:1]
    return failures


def _describe_mixtures(frame: pl.DataFrame, backbones: Mapping[str, BackboneSettings]) -> list[str]:
    """Return one line per dataset whose runs differ in backbone or batch norm mode, with the methods of each."""
    datasets: dict[str, dict[BackboneSettings, dict[Path, str]]] = {}
    for dataset, algorithm, run in frame.select("dataset", "algorithm", "run").unique(maintain_order=True).iter_rows():
        if run in backbones:
            datasets.setdefault(dataset, {}).setdefault(backbones[run], {})[Path(run)] = algorithm
    return [
        f"runs on {dataset} have different {_name_differences(groups)}, so their numbers are not comparable: "
        + "; ".join(
            f"{', '.join(dict.fromkeys(methods.values()))} in {_list_folders(methods, groups)} with {backbone}"
            for backbone, methods in groups.items()
        )
        for dataset, groups in datasets.items()
        if len(groups) > 1
    ]


def _name_differences(backbones: Collection[BackboneSettings]) -> str:
    values: dict[str, set[object]] = {
        "backbones": {(backbone.network, backbone.weights) for backbone in backbones},
        "batch norm modes": {backbone.batch_norm for backbone in backbones},
    }
    return " and ".join(name for name, distinct in values.items() if len(distinct) > 1)


def _list_folders(runs: Iterable[Path], groups: Mapping[BackboneSettings, Iterable[Path]]) -> str:
    """Return the parent folders of the runs, or the runs themselves where a parent has runs of several groups."""
    shares = Counter(parent for group in groups.values() for parent in {run.parent for run in group})
    folders = [*dict.fromkeys(str(run if shares[run.parent] > 1 else run.parent) for run in runs)]
    more = len(folders) - _MAX_FOLDERS
    return ", ".join(folders[:_MAX_FOLDERS]) + (f" (+{more} more)" if more > 0 else "")


def find_duplicates(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the cells of a table that several runs would fill, and their runs.

    Columns: dataset, algorithm, trial, draw, `tested` (the test domain or domains) and `run`, a list.
    """
    place = ("dataset", "algorithm", "trial", "draw", "tested")
    tested = pl.when("is_result").then("test_domain").otherwise(pl.col("test_domains").list.sort().list.join(" and "))
    return (
        frame.with_columns(tested=tested)
        .group_by(place, maintain_order=True)
        .agg(pl.col("run").unique(maintain_order=True))
        .filter(pl.col("run").list.len() > 1)
    )


def check_no_duplicates(frame: pl.DataFrame, advice: str = "leave one of them out") -> None:
    """Raise `DuplicateRuns` if two runs would fill the same cell: no table could say which one it shows."""
    for row in find_duplicates(frame).head(1).iter_rows(named=True):
        one, other = row["run"][:2]
        raise DuplicateRuns(
            f"{one} and {other} are both {row['algorithm']} on {row['dataset']}, tested on {row['tested']}, trial "
            f"{row['trial']}, draw {row['draw']}, and would be counted twice: {advice}"
        )
