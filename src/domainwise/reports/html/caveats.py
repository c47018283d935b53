"""Caveats of a page, one sentence each, and the summary of what was run."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl

import domainwise
from domainwise.reports import footnotes
from domainwise.reports.cells import Grid, Table
from domainwise.reports.footnotes import OPEN_STATES
from domainwise.reports.html.page_data import PageData, PageRun
from domainwise.reports.methods import Variant, sort_methods
from domainwise.selection.statistics import pluralize

MIN_TRIALS = 3
_MAX_LISTED = 4
_MAX_LENGTH = 240
Kind = Literal["trials", "oracle", "chance", "missing", "steps", "budget", "variants"]


@dataclass(frozen=True)
class Caveat:
    kind: Kind
    text: str


def find_caveats(
    data: PageData, grids: Sequence[Grid], selected: Mapping[str, pl.DataFrame], tables: Iterable[Table]
) -> list[Caveat]:
    """Return every caveat about the tables.

    Args:
        selected: by selection, what it returned.
        tables: those of all selections.
    """
    frame = data.runs.frame.filter("is_result")
    page_runs = data.page_runs
    return [
        *_check_trials(frame, grids),
        *_check_oracle(selected),
        *(
            caveat
            for name, models in selected.items()
            for caveat in (_check_chance(models, name) if data.runs.metric.has_chance_level else [])
        ),
        *_check_missing(tables, grids),
        *_check_equal("steps", "were trained for different numbers of steps", _collect_steps(page_runs.values())),
        *_check_equal("budget", "were selected from different numbers of hyperparameter draws", _count_draws(data)),
        *_check_variants(data),
    ]


def summarize_runs(data: PageData) -> list[tuple[str, str]]:
    """Return what was run as pairs of a name and a value; empty values are left out."""
    page_runs = list(data.page_runs.values())
    counted = [run for run in page_runs if run.is_counted]
    algorithms = sort_methods((run.planned.algorithm for run in page_runs), data.variants)
    methods = Counter(data.variants.get(name, Variant(name)).method for name in algorithms)
    states = [run.status.state for run in page_runs]
    pairs = [
        ("Datasets", ", ".join(sorted({run.planned.dataset for run in page_runs}))),
        ("Methods", ", ".join(name if count == 1 else f"{name} ({count} settings)" for name, count in methods.items())),
        ("Trials", _format_counts(counted, "trial")),
        ("Hyperparameter draws", _format_counts([run for run in page_runs if run.is_searched], "draw")),
        ("Steps", _format_distinct(run.settings.get("steps") for run in counted)),
        ("Networks", _format_distinct(map(str, data.runs.backbones.values()))),
        (
            "Runs",
            ", ".join(
                f"{states.count(state)} {state}" for state in ("done", "stopped", *OPEN_STATES) if state in states
            ),
        ),
        ("Made with", f"domainwise {domainwise.__version__}"),
    ]
    return [(name, value) for name, value in pairs if value]


def _check_trials(frame: pl.DataFrame, grids: Sequence[Grid]) -> list[Caveat]:
    counts = dict(frame.group_by("dataset").agg(pl.col("trial").n_unique()).iter_rows())
    few = [
        f"{grid.dataset} ({pluralize(counts[grid.dataset], 'trial')})"
        for grid in grids
        if 0 < counts.get(grid.dataset, 0) < MIN_TRIALS
    ]
    if not few:
        return []
    text = (
        f"Fewer than {MIN_TRIALS} trials on {', '.join(few)}: standard errors are missing or imprecise, and "
        "differences may be due to chance."
    )
    return [Caveat("trials", text)]


def _check_oracle(selections: Collection[str]) -> list[Caveat]:
    if "test_domain" not in selections:
        return []
    text = (
        "Selection by test_domain uses the test domain to select models. Its numbers are optimistic, not what to "
        "expect in an unseen domain."
    )
    return [Caveat("oracle", text)]


def _check_chance(selected: pl.DataFrame, selection: str) -> list[Caveat]:
    examples: dict[str, list[str]] = {}
    # A model that is tested on several domains counts once.
    collapsed = selected.filter("is_collapsed", pl.col("training").is_not_null())
    models = collapsed.group_by("dataset", "algorithm", "run", "trial", "step", "training", maintain_order=True)
    for row in models.agg(pl.col("test_domain")).iter_rows(named=True):
        tested = f" tested on {row['test_domain'][0]}" if len(row["test_domain"]) == 1 else ""
        example = f"{row['algorithm']}{tested}, trial {row['trial']}: {100 * row['training']:.1f} %"
        examples.setdefault(row["dataset"], []).append(example)
    return [
        Caveat(
            "chance",
            f"{pluralize(len(cases), 'model')} selected by {selection} on {dataset} "
            f"{'is' if len(cases) == 1 else 'are'} at chance level on the training domains ({_shorten_list(cases)}).",
        )
        for dataset, cases in examples.items()
    ]


def _check_missing(tables: Iterable[Table], grids: Sequence[Grid]) -> list[Caveat]:
    by_dataset = {grid.dataset: grid for grid in grids}
    selections: dict[str, list[str]] = {}
    for table in tables:
        reasons = {
            (row.algorithm, column.domain): cell.reason or "no number"
            for row in table.rows
            for column, cell in zip(table.columns, row.cells, strict=True)
            if column.kind == "domain" and (cell.reason or cell.mean is None)
        }
        if table.title in by_dataset and reasons:
            lines = " ".join(footnotes.format_reasons(reasons, by_dataset[table.title]))
            verb = "has" if len(reasons) == 1 else "have"
            text = (
                f"{pluralize(len(reasons), 'cell')} of {table.title} {verb} missing runs or trials: {_shorten(lines)}"
            )
            selections.setdefault(text, []).append(table.selection)
    return [Caveat("missing", f"Selected by {' or '.join(names)}, {text}") for text, names in selections.items()]


def _check_equal(kind: Kind, problem: str, by_dataset: Mapping[str, Mapping[str, set[int]]]) -> list[Caveat]:
    """Return one caveat per dataset on which the methods do not all have the same values."""
    caveats = []
    for dataset, methods in sorted(by_dataset.items()):
        if len({frozenset(values) for values in methods.values()}) > 1:
            parts = [f"{name} {', '.join(map(str, sorted(values)))}" for name, values in methods.items()]
            caveats.append(Caveat(kind, f"Methods on {dataset} {problem}: {'; '.join(parts)}."))
    return caveats


def _collect_steps(page_runs: Iterable[PageRun]) -> dict[str, dict[str, set[int]]]:
    by_dataset: dict[str, dict[str, set[int]]] = {}
    for run in page_runs:
        steps: Any = run.settings.get("steps")
        if run.is_counted and isinstance(steps, int):
            by_dataset.setdefault(run.planned.dataset, {}).setdefault(run.planned.algorithm, set()).add(steps)
    return by_dataset


def _count_draws(data: PageData) -> dict[str, dict[str, set[int]]]:
    draws: dict[str, dict[str, set[int]]] = {}
    for run in data.page_runs.values():
        if run.is_searched:
            draws.setdefault(run.planned.dataset, {}).setdefault(run.planned.algorithm, set()).add(run.planned.draw)
    return {dataset: {name: {len(each)} for name, each in methods.items()} for dataset, methods in draws.items()}


def _check_variants(data: PageData) -> list[Caveat]:
    methods = sorted({variant.method for variant in data.variants.values()})
    if not methods:
        return []
    text = (
        f"Several settings of {', '.join(methods)} are shown side by side. Picking the best one from the tables is "
        "selection by the test domain."
    )
    return [Caveat("variants", text)]


def _shorten_list(parts: Sequence[str]) -> str:
    more = len(parts) - _MAX_LISTED
    return "; ".join([*parts[:_MAX_LISTED], *([f"{more} more"] if more > 0 else [])])


def _shorten(text: str) -> str:
    """Cut a long list; the footnotes of the table have all of it."""
    return text if len(text) <= _MAX_LENGTH else f"{text[:_MAX_LENGTH].rsplit(' ', 1)[0]} … (see below the table)"


def _format_counts(runs: Sequence[PageRun], attribute: Literal["trial", "draw"]) -> str:
    """Return how many trials or draws there are per method and dataset, from the fewest to the most."""
    values: dict[tuple[str, str], set[int]] = {}
    for run in runs:
        key = (run.planned.dataset, run.planned.algorithm)
        values.setdefault(key, set()).add(getattr(run.planned, attribute))
    counts = sorted(map(len, values.values()))
    if not counts:
        return ""
    return str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"


def _format_distinct(values: Iterable[Any]) -> str:
    """Return each value once, numbers before strings."""
    distinct = {value for value in values if value is not None}
    return ", ".join(map(str, sorted(distinct, key=lambda value: (isinstance(value, str), value))))
