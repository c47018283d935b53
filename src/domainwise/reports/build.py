"""From run folders to all tables of a report."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

from domainwise.errors import DomainwiseError, unknown_choice
from domainwise.reports.cells import Grid, Report, Table, build_grids
from domainwise.reports.methods import Variant, read_variants, sort_methods
from domainwise.reports.published import add_paper_columns
from domainwise.reports.significance import build_comparison
from domainwise.reports.tables import EXTRA_COLUMNS, build_averages_table, build_dataset_table
from domainwise.selection import SELECTIONS, select_models
from domainwise.selection.metrics import find_metric
from domainwise.selection.runs import Runs, find_failures
from domainwise.selection.verdicts import MARGIN
from domainwise.storage.sweep_folder import SweepFolder


def report(
    paths: Sequence[str | Path],
    *,
    selections: Sequence[str] = (),
    columns: Collection[str] = (),
    paper: bool = False,
    compare_to: str | None = None,
    margin: float = MARGIN,
    unfinished: bool = False,
    split_variants: bool = False,
    metric: str = "accuracy",
) -> Report:
    """Read runs and return their tables: methods by test domains, averages over datasets, and comparisons.

    Args:
        paths: folders of sweeps or runs, ours or DomainBed's.
        selections: model selection rules, names of `domainwise.selection.SELECTIONS` (default: what the sweeps'
            sweep.toml says, or `training_domain`).
        columns: extra columns: `worst`, `gap`, `training`.
        paper: add the paper's numbers next to ours.
        compare_to: the method to compare all others with, trial by trial.
        margin: largest difference without practical importance, in points, for `compare_to`.
        unfinished: include runs that are not done.
        split_variants: tell runs that would fill the same cell apart by their settings, instead of raising an error.
        metric: name of `domainwise.selection.METRICS` that models are selected and compared by. Runs need the setting
            `metrics` for all but `accuracy`.

    Raises:
        DuplicateRuns: two runs would fill the same cell.
        DomainwiseError: there are no runs, or none with the metric, or an argument is not one of its choices.
    """
    selections = selections or read_selections(paths)
    check_choices(selections, columns, metric=metric, paper=paper)
    runs, variants = read_variants(paths, unfinished=unfinished, split_variants=split_variants, metric=metric)
    return build_report(
        runs, selections, columns=columns, paper=paper, compare_to=compare_to, margin=margin, variants=variants
    )


def build_report(
    runs: Runs,
    selections: Sequence[str] = ("training_domain",),
    *,
    columns: Collection[str] = (),
    paper: bool = False,
    compare_to: str | None = None,
    margin: float = MARGIN,
    variants: Mapping[str, Variant] | None = None,
) -> Report:
    """Return the report about runs that were already read; arguments as of `report`.

    Selection by the test domain always has the column `training`: a model selected that way can be worse than chance
    on the domains it was trained on.
    """
    check_choices(selections, columns, metric=runs.metric.name, paper=paper)
    grids = build_grids(runs, variants)
    if not grids:
        raise DomainwiseError(" ".join(("no runs to report on", *(f"({note})" for note in runs.notes))))
    algorithms = sort_methods((name for grid in grids for name in grid.algorithms), variants)
    tables: list[Table] = []
    for selection in dict.fromkeys(selections):
        tables += _build_tables(runs, grids, algorithms, selection, columns, paper, compare_to, margin)
    return Report(tuple(tables), runs.notes)


def read_selections(paths: Iterable[str | Path]) -> list[str]:
    """Return the model selection rules that the sweeps at `paths` ask for, in order; else `training_domain`."""
    selections: dict[str, None] = {}
    for sweep in map(SweepFolder, paths):
        if sweep.spec_file.is_file():
            selections.update(dict.fromkeys(sweep.read_spec().get("selection", [])))
    return list(selections) or ["training_domain"]


def check_choices(
    selections: Iterable[str], columns: Iterable[str] = (), *, metric: str = "accuracy", paper: bool = False
) -> None:
    """Raise an error that lists the choices if a selection rule, an extra column or the metric is unknown."""
    find_metric(metric)
    if paper and metric != "accuracy":
        raise DomainwiseError(f"the paper has accuracies only; leave out --paper or --metric {metric}")
    for kind, names, choices in (("selection", selections, SELECTIONS), ("column", columns, EXTRA_COLUMNS)):
        for name in names:
            if name not in choices:
                raise unknown_choice(kind, name, choices)


def _build_tables(
    runs: Runs,
    grids: Sequence[Grid],
    algorithms: tuple[str, ...],
    selection: str,
    columns: Collection[str],
    paper: bool,
    compare_to: str | None,
    margin: float,
) -> list[Table]:
    selected = select_models(runs.frame, selection, runs.metric)
    extra = {*columns, *(("training",) if selection == "test_domain" else ())}
    tables = [build_dataset_table(runs, selected, selection, grid, extra) for grid in grids]
    # A single dataset with a single test domain is its own average.
    if len(grids) > 1 or len(grids[0].domains) > 1:
        tables.append(build_averages_table(selected, selection, grids, tables, algorithms, extra, runs.metric))
    if paper:
        domains = {grid.dataset: grid.domains for grid in grids}
        tables = [add_paper_columns(table, domains) for table in tables]
    if compare_to is not None:
        tables.append(
            build_comparison(
                *(selected, selection, algorithms, compare_to, margin),
                failures=find_failures(runs.planned),
                is_sequential=runs.is_sequential,
                metric=runs.metric,
            )
        )
    return tables
