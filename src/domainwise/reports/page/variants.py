"""Runs of one method that differ only in their settings, named apart so that a table can show them side by side."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from domainwise.reports.grid import METHOD_ORDER
from domainwise.reports.page.facts import flat_settings
from domainwise.selection.read import Runs, clashes, refuse_duplicates

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
    for (dataset, algorithm), keys in _telling(clashes(runs.frame), flat).items():
        own = runs.frame.filter(pl.col("dataset") == dataset, pl.col("algorithm") == algorithm)
        for run in own["run"].unique(maintain_order=True):
            variant = Variant(algorithm, tuple((key, flat.get(run, {}).get(key)) for key in keys))
            names[run], variants[variant.name] = variant.name, variant
    renamed = pl.col("run").replace_strict(names, default=pl.col("algorithm"), return_dtype=pl.String)
    frame = runs.frame.with_columns(algorithm=renamed) if names else runs.frame
    refuse_duplicates(frame, "they have the same settings: leave one of them out")
    planned = tuple(replace(run, algorithm=names.get(run.run, run.algorithm)) for run in runs.planned)
    return Runs(frame, planned, runs.notes), variants


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
