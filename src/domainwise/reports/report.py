"""From runs to all tables of a report."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from domainwise.errors import DomainwiseError, unknown
from domainwise.reports.cells import Grid, Table, grids, in_order
from domainwise.reports.published import with_paper
from domainwise.reports.significance import versus_table
from domainwise.reports.tables import EXTRA_COLUMNS, averages_table, dataset_table
from domainwise.selection import SELECTIONS
from domainwise.selection.runs import Runs


@dataclass(frozen=True)
class Report:
    tables: tuple[Table, ...]
    notes: tuple[str, ...]


def make_report(
    runs: Runs,
    selections: Sequence[str] = ("training_domain",),
    *,
    columns: Collection[str] = (),
    beside_paper: bool = False,
    versus: str | None = None,
) -> Report:
    """For each selection a table a dataset, their averages, and a comparison with one method.

    Args:
        columns: of `worst`, `gap` and `training`; the last is always there when the test domain selects, because a
            model chosen by it may be worse than chance on what it was trained on.
        beside_paper: whether the paper's numbers stand beside ours.
        versus: the method that all others are compared with.
    """
    for name in selections:
        if name not in SELECTIONS:
            raise unknown("selection", name, SELECTIONS)
    for name in columns:
        if name not in EXTRA_COLUMNS:
            raise unknown("column", name, EXTRA_COLUMNS)
    found = grids(runs)
    if not found:
        raise DomainwiseError(" ".join(("there are no runs to report on", *(f"({note})" for note in runs.notes))))
    tables: list[Table] = []
    for selection in dict.fromkeys(selections):
        tables += _tables(runs, found, selection, columns, beside_paper, versus)
    return Report(tuple(tables), runs.notes)


def _tables(
    runs: Runs,
    found: Sequence[Grid],
    selection: str,
    columns: Collection[str],
    beside_paper: bool,
    versus: str | None,
) -> list[Table]:
    chosen = SELECTIONS[selection](runs.frame)
    extra = {*columns, *(("training",) if selection == "test_domain" else ())}
    tables = [dataset_table(runs, chosen, selection, grid, extra) for grid in found]
    # A single dataset with a single test domain is its own average.
    if len(found) > 1 or len(found[0].domains) > 1:
        tables.append(averages_table(chosen, selection, found, tables, extra))
    if beside_paper:
        domains = {grid.dataset: grid.domains for grid in found}
        tables = [with_paper(table, domains) for table in tables]
    if versus is not None:
        algorithms = in_order(name for grid in found for name in grid.algorithms)
        tables.append(versus_table(chosen, selection, algorithms, versus))
    return tables
