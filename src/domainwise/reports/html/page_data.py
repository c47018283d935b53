"""The runs on a page: status, settings, losses and classes, and the rows that page.js lists them by."""

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl
from markupsafe import Markup

from domainwise.errors import DomainwiseError
from domainwise.reports.methods import Variant, flatten_settings, read_settings, read_variants
from domainwise.selection.runs import Runs
from domainwise.storage.discovery import StoredRun
from domainwise.storage.run_folder import Record, RunStatus
from domainwise.storage.sweep_folder import PlannedRun
from domainwise.training.command import stored_command


@dataclass(frozen=True)
class PageRun:
    """A run on the page, done or only planned.

    Args:
        planned: its folder, and its place in the tables.
        is_counted: its records are in the tables.
        settings: as of `read_settings`.
        classes: number of classes of the data, if known.
        losses: by step.
    """

    planned: PlannedRun
    status: RunStatus
    is_counted: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    classes: int | None = None
    losses: Mapping[int, float] = field(default_factory=dict)

    @property
    def is_searched(self) -> bool:
        """Whether models were selected from this run: also if a race has stopped it early."""
        return self.is_counted or self.status.state == "stopped"

    @property
    def hparams(self) -> Mapping[str, Any]:
        return self.settings.get("hparams") or {}


@dataclass(frozen=True)
class PageData:
    """The records, every run by its folder, and the variants by their names in tables."""

    runs: Runs
    page_runs: Mapping[str, PageRun]
    variants: Mapping[str, Variant] = field(default_factory=dict)


def read_page_data(
    paths: Sequence[str | Path],
    *,
    unfinished: bool = False,
    split_variants: bool = False,
    metric: str = "accuracy",
) -> PageData:
    """Read everything a page is about; arguments as of `read_variants`."""
    runs, variants = read_variants(paths, unfinished=unfinished, split_variants=split_variants, metric=metric)
    return PageData(runs, collect_page_runs(runs), variants)


def collect_page_runs(runs: Runs) -> dict[str, PageRun]:
    """Return every stored and every planned run by its folder; what could not be read is left empty."""
    rows = {
        row["run"]: row
        for row in runs.frame.select("run", "dataset", "algorithm", "test_domains", "trial", "draw")
        .unique("run", maintain_order=True)
        .iter_rows(named=True)
    }
    planned = {str(run.folder): run for run in runs.planned}
    page_runs = {
        str(run.path): _collect(run, rows.get(str(run.path)), planned.get(str(run.path))) for run in runs.stored
    }
    for run, status in runs.planned.items():
        page_runs.setdefault(str(run.folder), PageRun(run, status))
    return page_runs


def build_run_rows(data: PageData, selected: Mapping[str, pl.DataFrame]) -> list[dict[str, Any]]:
    """Return one object per run, with accuracies in percent: at the last step, and per selection that selected it."""
    last = (
        data.runs.frame.filter(pl.col("step") == pl.col("step").max().over("run"))
        .group_by("run")
        .agg(pl.col("main").mean())
    )
    last_accuracies = dict(last.drop_nulls().iter_rows())
    selected_accuracies: dict[str, dict[str, float]] = {}
    for selection, rows in selected.items():
        for run, accuracy in rows.group_by("run").agg(pl.col("accuracy").mean()).iter_rows():
            selected_accuracies.setdefault(run, {})[selection] = _to_percent(accuracy)
    root = _common_folder(list(data.page_runs))
    return [
        {
            "folder": os.path.relpath(folder, root),
            "method": run.planned.algorithm,
            "dataset": run.planned.dataset,
            "test_domains": ", ".join(run.planned.test_domains),
            "trial": run.planned.trial,
            "draw": run.planned.draw,
            "state": run.status.state,
            "error": run.status.error,
            "reason": run.status.reason,
            "last": _to_percent(last_accuracies[folder]) if folder in last_accuracies else None,
            "selected": selected_accuracies.get(folder, {}),
            "settings": _format_settings(run.settings),
            "command": stored_command(run.settings),
        }
        for folder, run in data.page_runs.items()
    ]


def format_script_json(rows: Sequence[Mapping[str, Any]]) -> Markup:
    """Return the rows as JSON that cannot end the script element it is in."""
    return Markup(json.dumps(rows, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"))


def _collect(run: StoredRun, row: Mapping[str, Any] | None, planned: PlannedRun | None) -> PageRun:
    config, classes = run.config["config"], run.config["data"].get("classes")
    try:
        records = run.read_records()[0]
    except DomainwiseError:  # the notes report it
        records = []
    is_counted = row is not None
    if row is None and planned is None:
        row = {
            "dataset": config.get("dataset", ""),
            "algorithm": config.get("algorithm", ""),
            "test_domains": config.get("test_domains") or (),
            "trial": config.get("trial_seed", 0),
            "draw": config.get("hparams_seed", 0),
        }
    if row is not None:
        planned = PlannedRun(
            folder=run.path,
            name=run.path.name,
            dataset=str(row["dataset"]),
            algorithm=str(row["algorithm"]),
            test_domains=tuple(map(str, row["test_domains"])),
            trial=int(row["trial"]),
            draw=int(row["draw"]),
        )
    assert planned is not None
    return PageRun(
        planned,
        run.status,
        is_counted=is_counted,
        settings=read_settings(run),
        classes=len(classes) if isinstance(classes, list) and classes else None,
        losses={record["step"]: record["loss"] for record in records if _has_loss(record)},
    )


def _has_loss(record: Record) -> bool:
    loss, step = record.get("loss"), record.get("step")
    return isinstance(step, int) and isinstance(loss, int | float) and math.isfinite(loss)


def _format_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Return settings by name, without those that are not set."""
    return {
        name: ", ".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in flatten_settings(settings).items()
        if value not in (None, [], "")
    }


def _to_percent(accuracy: float) -> float:
    return round(100 * accuracy, 2)


def _common_folder(folders: Sequence[str]) -> str:
    """Return the common parent of all run folders: the page need not repeat it, nor reveal where it is."""
    if len(folders) < 2:
        return str(Path(folders[0]).parent) if folders else "."
    return os.path.commonpath([os.path.abspath(Path(folder).parent) for folder in folders])
