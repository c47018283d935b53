"""Methods as rows of tables: their order, and runs of one method told apart by their settings."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from domainwise.errors import DomainwiseError
from domainwise.selection.runs import DuplicateRuns, Runs, check_no_duplicates, find_duplicates, read_runs
from domainwise.storage.discovery import StoredRun

# The paper's order: what it starts from, the published baselines, what it proposes.
METHOD_ORDER = (
    "erm",
    "at",
    "irm",
    "vrex",
    "groupdro",
    "mixup",
    "mldg",
    "mmd",
    "coral",
    "dann",
    "mtl",
    "sagnet",
    "rsc",
    "andmask",
    "gut",
    "ncdg",
    "ermplusplus",
    "sam",
    "sagm",
    "sd",
    "iberm",
    "ibirm",
    "fishr",
    "eqrm",
    "rdm",
    "cad",
    "condcad",
    "causirlcoral",
    "causirlmmd",
    "miro",
    "cdann",
    "transfer",
    "urm",
    "adrmx",
    "fish",
    "sandmask",
    "iga",
    "trm",
    "arm",
    "selfreg",
    "randconv",
    "mixstyle",
    "dsu",
    "uat",
    "mat",
    "ldat",
)
_NESTED = ("hparams", "dataset_options")
# These settings say which cell of a table a run fills; all others may tell variants apart.
_CELL_SETTINGS = ("dataset", "algorithm", "train_domains", "test_domains", "trial_seed", "hparams_seed")


@dataclass(frozen=True)
class Variant:
    """A method with the settings that tell its variants apart."""

    method: str
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        return ", ".join((self.method, *(f"{key} {_format_value(value)}" for key, value in self.settings)))

    def name_without(self, key: str) -> str:
        """Return the name shared by all variants that differ only in the setting `key`."""
        return Variant(self.method, tuple(each for each in self.settings if each[0] != key)).name


def sort_methods(names: Iterable[str], variants: Mapping[str, Variant] | None = None) -> tuple[str, ...]:
    """Return each name once: known methods in the paper's order, then others by name; variants by their values."""
    order = {name: index for index, name in enumerate(METHOD_ORDER)}

    def sort_key(name: str) -> tuple[Any, ...]:
        variant = (variants or {}).get(name, Variant(name))
        values = [_value_key(value) for _, value in variant.settings]
        return order.get(variant.method, len(order)), variant.method, values

    return tuple(sorted(dict.fromkeys(names), key=sort_key))


def read_variants(
    paths: Sequence[str | Path],
    *,
    unfinished: bool = False,
    split_variants: bool = False,
    metric: str = "accuracy",
) -> tuple[Runs, dict[str, Variant]]:
    """Read runs, and name variants of a method apart if asked to.

    Args:
        unfinished: include runs that are not done.
        split_variants: tell runs that would fill the same cell apart by the settings in which they differ, instead of
            raising `DuplicateRuns`.
        metric: what the runs are compared by.

    Returns:
        The runs, and the variants by the names that `algorithm` has in the frame for them.
    """
    folders = [Path(path) for path in paths]
    if split_variants:
        return name_variants(read_runs(folders, unfinished=unfinished, keep_duplicates=True, metric=metric))
    try:
        return read_runs(folders, unfinished=unfinished, metric=metric), {}
    except DuplicateRuns as error:
        raise DuplicateRuns(f"{error}, or tell them apart by their settings with --split-variants") from error


def name_variants(runs: Runs) -> tuple[Runs, dict[str, Variant]]:
    """Name each variant of a method that has several on a dataset; return the runs and the variants by name."""
    settings = {
        str(run.path): flatten_settings(
            {name: value for name, value in read_settings(run).items() if name not in _CELL_SETTINGS}
        )
        for run in runs.stored
    }
    names: dict[str, str] = {}
    variants: dict[str, Variant] = {}
    for (dataset, algorithm), keys in _distinguishing_keys(find_duplicates(runs.frame), settings).items():
        rows = runs.frame.filter(pl.col("dataset") == dataset, pl.col("algorithm") == algorithm)
        for run in rows["run"].unique(maintain_order=True):
            variant = Variant(algorithm, tuple((key, settings.get(run, {}).get(key)) for key in keys))
            names[run], variants[variant.name] = variant.name, variant
    renamed = pl.col("run").replace_strict(names, default=pl.col("algorithm"), return_dtype=pl.String)
    frame = runs.frame.with_columns(algorithm=renamed) if names else runs.frame
    check_no_duplicates(frame, "they have the same settings; leave one of them out")
    planned = {
        replace(run, algorithm=names.get(str(run.folder), run.algorithm)): status
        for run, status in runs.planned.items()
    }
    return replace(runs, frame=frame, planned=planned), variants


def read_settings(run: StoredRun) -> Mapping[str, Any]:
    """Return the settings in a run's config.json; without it, as in DomainBed's runs, only the hyperparameters."""
    config = run.config["config"]
    if config:
        return config
    try:
        records = run.read_records()[0]
    except DomainwiseError:  # the notes below the tables report it
        records = []
    return {"hparams": records[-1].get("hparams", {})} if records else {}


def flatten_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return hyperparameters, dataset options and run settings in one; on a clash, the run's is named `run NAME`."""
    flat: dict[str, Any] = {}
    for part in _NESTED:
        flat.update(settings.get(part) or {})
    others = {name: value for name, value in settings.items() if name not in _NESTED}
    return flat | {f"run {name}" if name in flat else name: value for name, value in others.items()}


def _distinguishing_keys(
    duplicates: pl.DataFrame, settings: Mapping[str, Mapping[str, Any]]
) -> dict[tuple[str, str], list[str]]:
    """Return, per dataset and method with duplicates, a minimal list of settings that tells the runs apart."""
    groups: dict[tuple[str, str], list[list[Mapping[str, Any]]]] = {}
    for row in duplicates.iter_rows(named=True):
        groups.setdefault((row["dataset"], row["algorithm"]), []).append([settings.get(run, {}) for run in row["run"]])
    keys_by_task = {}
    for task, cells in groups.items():
        keys: list[str] = []
        for key in dict.fromkeys(key for cell in cells for values in cell for key in values):
            if any(_count_distinct(cell, [*keys, key]) > _count_distinct(cell, keys) for cell in cells):
                keys.append(key)
        keys_by_task[task] = keys
    return {task: keys for task, keys in keys_by_task.items() if keys}


def _count_distinct(cell: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> int:
    return len({tuple(repr(values.get(key)) for key in keys) for values in cell})


def _value_key(value: Any) -> tuple[int, float, str]:
    return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value))


def _format_value(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    short = f"{value:g}"
    return short if float(short) == value else repr(value)
