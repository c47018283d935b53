"""What is known of every run beside its accuracies: how it stands, its settings, its losses."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import polars as pl

from domainwise.errors import DomainwiseError
from domainwise.reports.cells import METHOD_ORDER
from domainwise.selection.runs import Runs, check_no_duplicates, find_duplicates, read_runs
from domainwise.storage.discovery import StoredRun
from domainwise.storage.run_folder import Record, RunStatus
from domainwise.storage.sweep_folder import PlannedRun

_NESTED = ("hparams", "dataset_options")


@dataclass(frozen=True)
class PageRun:
    """A run on the page, done or only planned.

    Args:
        planned: its folder, and its place in the tables.
        is_counted: its records are in the tables.
        settings: the settings in its config.json; for DomainBed's runs, only the hyperparameters.
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
    def hparams(self) -> Mapping[str, Any]:
        return self.settings.get("hparams") or {}


def flat_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Hyperparameters, options of the dataset and settings of the run in one; where names meet, the run's has `run`."""
    flat: dict[str, Any] = {}
    for part in _NESTED:
        flat.update(settings.get(part) or {})
    others = {name: value for name, value in settings.items() if name not in _NESTED}
    return flat | {f"run {name}" if name in flat else name: value for name, value in others.items()}


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


def _collect(run: StoredRun, row: Mapping[str, Any] | None, planned: PlannedRun | None) -> PageRun:
    config, data = run.config["config"], run.config["data"]
    try:
        records = run.records[0]
    except DomainwiseError:  # the notes under the tables report it
        records = []
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
    classes = data.get("classes")
    return PageRun(
        planned,
        run.status,
        is_counted=row is not None and "run" in row,
        settings=config or ({"hparams": records[-1].get("hparams", {})} if records else {}),
        classes=len(classes) if isinstance(classes, list) and classes else None,
        losses={record["step"]: record["loss"] for record in records if _has_loss(record)},
    )


def _has_loss(record: Record) -> bool:
    loss, step = record.get("loss"), record.get("step")
    return isinstance(step, int) and isinstance(loss, int | float) and math.isfinite(loss)


# What says where in a table a run belongs; everything else may tell variants apart.
_PLACE = ("dataset", "algorithm", "train_domains", "test_domains", "trial_seed", "hparams_seed")


@dataclass(frozen=True)
class Variant:
    """A method with the settings that tell its variants apart."""

    method: str
    parts: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        return ", ".join((self.method, *(f"{key} {_shown(value)}" for key, value in self.parts)))

    def without(self, key: str) -> str:
        """The name that all variants share which differ in this setting alone."""
        return Variant(self.method, tuple(part for part in self.parts if part[0] != key)).name


def split_variants(runs: Runs, settings: Mapping[str, Mapping[str, Any]]) -> tuple[Runs, dict[str, Variant]]:
    """The runs, with a name of its own for each variant of a method that has several; and the variants by name.

    Args:
        settings: of every run, by its folder, as config.json has them.
    """
    flat = {
        run: flat_settings({name: value for name, value in values.items() if name not in _PLACE})
        for run, values in settings.items()
    }
    names: dict[str, str] = {}
    variants: dict[str, Variant] = {}
    for (dataset, algorithm), keys in _telling(find_duplicates(runs.frame), flat).items():
        own = runs.frame.filter(pl.col("dataset") == dataset, pl.col("algorithm") == algorithm)
        for run in own["run"].unique(maintain_order=True):
            variant = Variant(algorithm, tuple((key, flat.get(run, {}).get(key)) for key in keys))
            names[run], variants[variant.name] = variant.name, variant
    renamed = pl.col("run").replace_strict(names, default=pl.col("algorithm"), return_dtype=pl.String)
    frame = runs.frame.with_columns(algorithm=renamed) if names else runs.frame
    check_no_duplicates(frame, "they have the same settings: leave one of them out")
    planned = {
        replace(run, algorithm=names.get(str(run.folder), run.algorithm)): status
        for run, status in runs.planned.items()
    }
    return replace(runs, frame=frame, planned=planned), variants


def in_order(names: Iterable[str], variants: Mapping[str, Variant]) -> list[str]:
    """Each name once: methods in the paper's order, variants of one by their values."""
    places = {name: place for place, name in enumerate(METHOD_ORDER)}

    def key(name: str) -> tuple[Any, ...]:
        variant = variants.get(name, Variant(name))
        return places.get(variant.method, len(places)), variant.method, [_rank(value) for _, value in variant.parts]

    return sorted(dict.fromkeys(names), key=key)


def _telling(clashing: pl.DataFrame, flat: Mapping[str, Mapping[str, Any]]) -> dict[tuple[str, str], list[str]]:
    """For each dataset and method that clash, the fewest settings, first ones first, that tell runs apart as all do."""
    groups: dict[tuple[str, str], list[list[Mapping[str, Any]]]] = {}
    for row in clashing.iter_rows(named=True):
        groups.setdefault((row["dataset"], row["algorithm"]), []).append([flat.get(run, {}) for run in row["run"]])
    telling = {}
    for task, places in groups.items():
        keys: list[str] = []
        for key in dict.fromkeys(key for place in places for values in place for key in values):
            if any(_kinds(place, [*keys, key]) > _kinds(place, keys) for place in places):
                keys.append(key)
        telling[task] = keys
    return {task: keys for task, keys in telling.items() if keys}


def _kinds(place: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> int:
    return len({tuple(repr(values.get(key)) for key in keys) for values in place})


def _rank(value: Any) -> tuple[int, float, str]:
    return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value))


def _shown(value: Any) -> str:
    if isinstance(value, float):
        # As short as it can be without becoming another number.
        return next(text for text in (f"{value:g}", repr(value)) if float(text) == value or text == repr(value))
    return str(value)


Variants = Literal["refuse", "split"]


@dataclass(frozen=True)
class Material:
    """Records, facts by run folder, and the variants by the names that tables have for them."""

    runs: Runs
    facts: Mapping[str, PageRun] = field(default_factory=dict)
    variants: Mapping[str, Variant] = field(default_factory=dict)


def read_material(paths: Sequence[Path], *, variants: Variants = "refuse", unfinished: bool = False) -> Material:
    """What is at or below `paths`.

    Args:
        variants: what to do with runs that would fill the same place of a table: refuse them, or name them apart by the
            settings in which they differ.
        unfinished: whether runs that are not done count, too.
    """
    runs = read_runs(paths, unfinished=unfinished, keep_duplicates=variants == "split")
    facts = collect_page_runs(runs)
    if variants == "refuse":
        return Material(runs, facts)
    runs, named = split_variants(runs, {run: each.settings for run, each in facts.items()})
    names = dict(runs.frame.select("run", "algorithm").unique().iter_rows())
    facts = {
        run: replace(each, planned=replace(each.planned, algorithm=names.get(run, each.planned.algorithm)))
        for run, each in facts.items()
    }
    return Material(runs, facts, named)
