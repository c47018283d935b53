"""Which rows and columns a dataset's table has: all that was run or planned, filled or not."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import polars as pl

from domainwise.selection.planned import Planned
from domainwise.selection.read import Runs

# The paper's: what it starts from, the published baselines, what it proposes.
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
    "uat",
    "mat",
    "ldat",
)


@dataclass(frozen=True)
class Grid:
    """A dataset's methods in the paper's order, its test domains in the dataset's own."""

    dataset: str
    algorithms: tuple[str, ...]
    domains: tuple[str, ...]


def grids(runs: Runs) -> list[Grid]:
    """One grid a dataset, by name."""
    rows = runs.frame.select("dataset", "algorithm", "test_domain", "position", "is_result").unique()
    positions = {(row["dataset"], row["test_domain"]): row["position"] for row in rows.iter_rows(named=True)}
    results = rows.filter("is_result").select("dataset", "algorithm", "test_domain").sort(pl.all())
    cells = [
        *results.iter_rows(),
        *((run.dataset, run.algorithm, domain) for run in reported(runs.planned) for domain in run.test_domains),
    ]
    found = []
    for dataset in sorted({cell[0] for cell in cells}):
        domains = dict.fromkeys(cell[2] for cell in cells if cell[0] == dataset)
        # A domain that no run got to has no place yet; it comes last.
        ordered = sorted(domains, key=lambda domain: positions.get((dataset, domain), len(cells)))
        found.append(Grid(dataset, in_order(cell[1] for cell in cells if cell[0] == dataset), tuple(ordered)))
    return found


def reported(planned: Sequence[Planned]) -> list[Planned]:
    """Planned runs whose accuracies count; those that leave out a pair of domains only help to select."""
    with_single = {run.dataset for run in planned if len(run.test_domains) == 1}
    return [run for run in planned if len(run.test_domains) != 2 or run.dataset not in with_single]


def in_order(algorithms: Iterable[str]) -> tuple[str, ...]:
    """Each method once: known ones in the paper's order, others by name after them."""
    places = {name: place for place, name in enumerate(METHOD_ORDER)}
    return tuple(sorted(set(algorithms), key=lambda name: (places.get(name, len(places)), name)))
