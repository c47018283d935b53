"""What is known of every run beside its accuracies: how it stands, its settings, its losses."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from domainwise.errors import DomainwiseError
from domainwise.records import Record, read_lines
from domainwise.selection.folders import Folder
from domainwise.selection.planned import Planned, State, state_of

_NESTED = ("hparams", "dataset_options")


@dataclass(frozen=True)
class RunFacts:
    """One run that was made or planned.

    Args:
        run: its folder.
        is_counted: whether its records are in the tables.
        settings: the `config` of its config.json; of DomainBed's runs only the hyperparameters.
        classes: how many the data has; None where it is not written down.
        losses: by step.
    """

    run: str
    dataset: str
    algorithm: str
    test_domains: tuple[str, ...]
    trial: int
    draw: int
    state: State
    error: str = ""
    is_counted: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    classes: int | None = None
    losses: Mapping[int, float] = field(default_factory=dict)

    @property
    def hparams(self) -> Mapping[str, Any]:
        return self.settings.get("hparams") or {}


def flat_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Hyperparameters, options of the dataset and settings of the run in one; where names meet, the run's has `run`."""
    flat: dict[str, Any] = {}
    for part in _NESTED:
        flat.update(settings.get(part) or {})
    others = {name: value for name, value in settings.items() if name not in _NESTED}
    return flat | {f"run {name}" if name in flat else name: value for name, value in others.items()}


def read_facts(folders: Sequence[Folder], planned: Sequence[Planned], frame: pl.DataFrame) -> dict[str, RunFacts]:
    """Every run in the folders and the plans, by its folder; what cannot be read of it is left empty."""
    places = {
        row["run"]: row
        for row in frame.select("run", "dataset", "algorithm", "test_domains", "trial", "draw")
        .unique("run", maintain_order=True)
        .iter_rows(named=True)
    }
    plans = {run.run: run for run in planned}
    found = {str(folder.path): _facts(folder, places, plans) for folder in folders if _is_run(folder)}
    for run in planned:
        if run.run not in found:
            found[run.run] = RunFacts(
                run.run, run.dataset, run.algorithm, run.test_domains, run.trial, run.draw, run.state, run.error
            )
    return found


def _is_run(folder: Folder) -> bool:
    return folder.is_ours or folder.is_domainbeds


def _facts(folder: Folder, places: Mapping[str, Mapping[str, Any]], plans: Mapping[str, Planned]) -> RunFacts:
    name = str(folder.path)
    config, data = _read_config(folder)
    records = _read_records(folder)
    settings = config or {"hparams": records[-1].get("hparams", {})} if records else config
    state: State
    state, error = state_of(folder.path) if folder.is_ours else ("done", "")
    place = places.get(name) or _place(plans.get(name), config)
    classes = data.get("classes")
    return RunFacts(
        run=name,
        dataset=str(place["dataset"]),
        algorithm=str(place["algorithm"]),
        test_domains=tuple(map(str, place["test_domains"])),
        trial=int(place["trial"]),
        draw=int(place["draw"]),
        state=state,
        error=error,
        is_counted=name in places,
        settings=settings,
        classes=len(classes) if isinstance(classes, list) and classes else None,
        losses={record["step"]: record["loss"] for record in records if _has_loss(record)},
    )


def _place(planned: Planned | None, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Where a run without records belongs: what the plan says, or its own settings."""
    if planned is not None:
        return vars(planned)
    return {
        "dataset": config.get("dataset", ""),
        "algorithm": config.get("algorithm", ""),
        "test_domains": config.get("test_domains") or (),
        "trial": config.get("trial_seed", 0),
        "draw": config.get("hparams_seed", 0),
    }


def _read_config(folder: Folder) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        content = json.loads((folder.path / "config.json").read_bytes())
        return dict(content["config"]), dict(content.get("data") or {})
    except (OSError, LookupError, TypeError, ValueError):
        return {}, {}


def _read_records(folder: Folder) -> list[Record]:
    try:
        return read_lines(Path(folder.path) / ("records.jsonl" if folder.is_ours else "results.jsonl"))[0]
    except DomainwiseError:
        # The tables' own notes say that this run is damaged.
        return []


def _has_loss(record: Record) -> bool:
    loss, step = record.get("loss"), record.get("step")
    return isinstance(step, int) and isinstance(loss, int | float) and math.isfinite(loss)
