"""Where a reader could be misled, in a sentence each."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl

import domainwise
from domainwise.reports import footnotes
from domainwise.reports.cells import Grid, Table
from domainwise.reports.footnotes import counted
from domainwise.reports.html.page_data import Material, PageRun, Variant, in_order

FEWEST_TRIALS = 3
_MOST_NAMED = 4
_LONGEST = 240
Kind = Literal["trials", "oracle", "chance", "missing", "steps", "budget", "variants"]


@dataclass(frozen=True)
class Caution:
    kind: Kind
    text: str


def cautions_of(
    material: Material, grids: Sequence[Grid], chosen: Mapping[str, pl.DataFrame], tables: Iterable[Table]
) -> list[Caution]:
    """All of them.

    Args:
        chosen: by selection, what it chose.
        tables: of all selections.
    """
    frame = material.runs.frame.filter("is_result")
    return [
        *_few_trials(frame, grids),
        *_oracle(chosen),
        *(caution for selection in chosen for caution in _below_chance(chosen[selection], selection, material.facts)),
        *_missing(tables, grids),
        *_different("steps", "were trained for different numbers of steps", _steps(material.facts.values())),
        *_different("budget", "had different numbers of hyperparameter draws to choose from", _draws(frame)),
        *_variants(material),
    ]


def _few_trials(frame: pl.DataFrame, grids: Sequence[Grid]) -> list[Caution]:
    counts = dict(frame.group_by("dataset").agg(pl.col("trial").n_unique()).iter_rows())
    few = [
        f"{grid.dataset} ({counted(counts[grid.dataset], 'trial')})"
        for grid in grids
        if 0 < counts.get(grid.dataset, 0) < FEWEST_TRIALS
    ]
    if not few:
        return []
    where = ", ".join(few)
    text = f"Fewer than {FEWEST_TRIALS} trials on {where}: errors are unknown or rough, and differences may be luck."
    return [Caution("trials", text)]


def _oracle(selections: Collection[str]) -> list[Caution]:
    if "test_domain" not in selections:
        return []
    text = (
        "Selection by test_domain is shown: it looks at the test domain to choose, so its numbers say what could be "
        "reached at best, not what to expect in a domain that nobody has seen."
    )
    return [Caution("oracle", text)]


def _below_chance(chosen: pl.DataFrame, selection: str, facts: Mapping[str, PageRun]) -> list[Caution]:
    found: dict[tuple[str, int], list[str]] = {}
    # A model that tests on several domains is one model.
    models = chosen.group_by("dataset", "algorithm", "run", "trial", "step", "training", maintain_order=True)
    for row in models.agg(pl.col("test_domain")).iter_rows(named=True):
        classes = facts[row["run"]].classes if row["run"] in facts else None
        if classes and row["training"] is not None and row["training"] < 1 / classes:
            tested = f" tested on {row['test_domain'][0]}" if len(row["test_domain"]) == 1 else ""
            place = f"{row['algorithm']}{tested}, trial {row['trial']}: {100 * row['training']:.1f} %"
            found.setdefault((row["dataset"], classes), []).append(place)
    return [
        Caution(
            "chance",
            f"Chosen by {selection}, {counted(len(places), 'model')} on {dataset} "
            f"{'is' if len(places) == 1 else 'are'} worse than chance ({100 / classes:.1f} %) on the domains "
            f"that trained {'it' if len(places) == 1 else 'them'} ({_some(places)}).",
        )
        for (dataset, classes), places in found.items()
    ]


def _missing(tables: Iterable[Table], grids: Sequence[Grid]) -> list[Caution]:
    by_dataset = {grid.dataset: grid for grid in grids}
    found: dict[str, list[str]] = {}
    for table in tables:
        reasons = {
            (row.algorithm, column.domain): cell.reason or "no number"
            for row in table.rows
            for column, cell in zip(table.columns, row.cells, strict=True)
            if column.kind == "domain" and (cell.reason or cell.mean is None)
        }
        if table.title in by_dataset and reasons:
            lines = " ".join(footnotes.reasons(reasons, by_dataset[table.title]))
            verb = "lacks" if len(reasons) == 1 else "lack"
            text = f"{counted(len(reasons), 'cell')} of {table.title} {verb} runs or trials: {_cut(lines)}"
            found.setdefault(text, []).append(table.selection)
    return [Caution("missing", f"Chosen by {' or '.join(by)}, {text}") for text, by in found.items()]


def _different(kind: Kind, words: str, by_dataset: Mapping[str, Mapping[str, set[int]]]) -> list[Caution]:
    """Where the methods of a dataset do not all have the same."""
    found = []
    for dataset, methods in sorted(by_dataset.items()):
        if len({frozenset(values) for values in methods.values()}) > 1:
            each = [f"{name} {', '.join(map(str, sorted(values)))}" for name, values in methods.items()]
            found.append(Caution(kind, f"Methods on {dataset} {words}: {'; '.join(each)}."))
    return found


def _steps(facts: Iterable[PageRun]) -> dict[str, dict[str, set[int]]]:
    found: dict[str, dict[str, set[int]]] = {}
    for run in facts:
        steps: Any = run.settings.get("steps")
        if run.is_counted and isinstance(steps, int):
            found.setdefault(run.planned.dataset, {}).setdefault(run.planned.algorithm, set()).add(steps)
    return found


def _draws(frame: pl.DataFrame) -> dict[str, dict[str, set[int]]]:
    counts = frame.group_by("dataset", "algorithm", maintain_order=True).agg(pl.col("draw").n_unique())
    found: dict[str, dict[str, set[int]]] = {}
    for dataset, algorithm, draws in counts.iter_rows():
        found.setdefault(dataset, {})[algorithm] = {draws}
    return found


def _variants(material: Material) -> list[Caution]:
    methods = sorted({variant.method for variant in material.variants.values()})
    if not methods:
        return []
    text = (
        f"{', '.join(methods)} {'stands' if len(methods) == 1 else 'stand'} here with several settings side by side. "
        "To pick the best of them by what the tables show is to select by the test domain."
    )
    return [Caution("variants", text)]


def _some(parts: Sequence[str]) -> str:
    more = len(parts) - _MOST_NAMED
    rest = [f"and {more} more"] if more > 0 else []
    return "; ".join([*parts[:_MOST_NAMED], *rest])


def _cut(text: str) -> str:
    """A long list only begins here: all of it stands under the table."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST].rsplit(' ', 1)[0]} … (the rest is under the table)"


_STATES = {"done": "done", "failed": "failed", "unfinished": "not finished", "pending": "not started"}


def summary_of(material: Material) -> list[tuple[str, str]]:
    """Pairs of a name and what there is of it; none that is empty."""
    counted = [run for run in material.facts.values() if run.is_counted]
    algorithms = in_order((run.planned.algorithm for run in material.facts.values()), material.variants)
    methods = Counter(material.variants.get(name, Variant(name)).method for name in algorithms)
    states = [run.status.state for run in material.facts.values()]
    runs = [f"{states.count(state)} {words}" for state, words in _STATES.items() if state in states]
    pairs = [
        ("Datasets", ", ".join(sorted({run.planned.dataset for run in material.facts.values()}))),
        ("Methods", ", ".join(name if count == 1 else f"{name} ({count} settings)" for name, count in methods.items())),
        ("Trials", _range(counted, "trial")),
        ("Draws of hyperparameters", _range(counted, "draw")),
        ("Steps", _listed(run.settings.get("steps") for run in counted)),
        ("Networks", _listed(run.settings.get("network") for run in counted)),
        ("Runs", ", ".join(runs)),
        ("Made with", f"domainwise {domainwise.__version__}"),
    ]
    return [(name, value) for name, value in pairs if value]


def _range(runs: Sequence[PageRun], what: str) -> str:
    """How many trials or draws a method has on a dataset: from the fewest to the most."""
    found: dict[tuple[str, str], set[int]] = {}
    for run in runs:
        found.setdefault((run.planned.dataset, run.planned.algorithm), set()).add(getattr(run.planned, what))
    counts = sorted(len(each) for each in found.values())
    if not counts:
        return ""
    return str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"


def _listed(values: Iterable[Any]) -> str:
    """Each once, numbers by size and words by letter."""
    there = {value for value in values if value is not None}
    return ", ".join(map(str, sorted(there, key=lambda value: (isinstance(value, str), value))))
