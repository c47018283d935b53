"""What stands under a table: what it rests on, how it was chosen, and why cells are empty."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import polars as pl

from domainwise.reports.cells import Row
from domainwise.reports.grid import Grid
from domainwise.selection import SELECTIONS
from domainwise.selection.planned import Planned

Place = tuple[str, str]


def chosen_by(selection: str) -> str:
    """The selection in a sentence: its function's own."""
    sentence = (SELECTIONS[selection].__doc__ or "").strip().splitlines()[0]
    return f"Chosen by {selection}: {sentence[:1].lower()}{sentence[1:]}"


def rests_on(frame: pl.DataFrame, selection: str, planned: Sequence[Planned]) -> str:
    """How many runs a table was made from, and how many more there should be."""
    used = frame if selection == "leave_one_out" else frame.filter("is_result")
    trials = used["trial"].n_unique()
    text = f"Rests on {counted(used['run'].n_unique(), 'run')} of {counted(trials, 'trial')}."
    states = [run.state for run in planned]
    open_ = [
        f"{states.count(state)} {words}"
        for state, words in (("failed", "failed"), ("unfinished", "not finished"), ("to do", "not started"))
        if state in states
    ]
    return f"{text} Of {counted(len(states), 'planned run')}: {', '.join(open_)}." if open_ else text


def what_errors_are(rows: Sequence[Row]) -> str:
    """What stands after a mean; nothing to say of a table without numbers."""
    cells = [cell for row in rows for cell in row.cells if cell.mean is not None]
    if any(cell.error is not None for cell in cells):
        return "± is the standard error over trials: their standard deviation over the root of their number."
    return "No ±: each cell is of one trial." if cells else ""


def draws(chosen: pl.DataFrame, grid: Grid) -> str:
    """From how many draws of the hyperparameters the models were chosen, and where from fewer."""
    fewest = chosen.group_by("algorithm", "test_domain").agg(pl.col("draws").min())
    counts: dict[Place, int] = {(row[0], row[1]): row[2] for row in fewest.iter_rows()}
    most = max(counts.values(), default=0)
    if not most:
        return ""
    text = f"Each trial's model was chosen from {counted(most, 'draw')} of the hyperparameters"
    fewer: dict[str, list[Place]] = {}
    for place, count in counts.items():
        if count < most:
            fewer.setdefault(f"from {count}", []).append(place)
    less = "; ".join(f"{words}: {where(places, grid)}" for words, places in sorted(fewer.items()))
    return f"{text}; {less}." if less else f"{text}."


def reasons(found: Mapping[Place, str], grid: Grid) -> list[str]:
    """One line a reason, with the cells it holds for."""
    by_reason: dict[str, list[Place]] = {}
    for place, reason in found.items():
        by_reason.setdefault(reason, []).append(place)
    return [f"{where(places, grid)}: {reason}." for reason, places in by_reason.items()]


def where(places: Iterable[Place], grid: Grid) -> str:
    """Cells in words, as few as will do: `mat on photo, sketch; ldat`, a method alone for all its domains."""
    there = set(places)
    if there >= {(algorithm, domain) for algorithm in grid.algorithms for domain in grid.domains}:
        return "all cells"
    parts = []
    for algorithm in grid.algorithms:
        domains = [domain for domain in grid.domains if (algorithm, domain) in there]
        if domains:
            parts.append(algorithm if _is_all(domains, grid.domains) else f"{algorithm} on {', '.join(domains)}")
    return "; ".join(parts)


def _is_all(some: Collection[str], domains: Collection[str]) -> bool:
    return len(some) == len(domains) > 1


def counted(number: int, thing: str) -> str:
    """`1 trial`, `3 trials`."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
