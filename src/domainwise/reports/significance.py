"""Paired comparison of every method with one of them: is it better, or was it luck?"""

from collections.abc import Sequence

import polars as pl

from domainwise.errors import unknown_choice
from domainwise.reports.cells import Cell, Column, Row, Table
from domainwise.reports.footnotes import describe_selection, pluralize
from domainwise.selection.statistics import compare_pairs, smallest_p_value


def build_comparison(selected: pl.DataFrame, selection: str, algorithms: Sequence[str], baseline: str) -> Table:
    """Compare every method with `baseline` over all datasets, test domains and trials that both have."""
    if baseline not in algorithms:
        raise unknown_choice("method to compare to", baseline, algorithms)
    columns = (
        Column(f"difference to {baseline}", "difference"),
        Column("pairs", "pairs"),
        Column("wins", "wins"),
        Column("p", "p"),
    )
    reference = selected.filter(pl.col("algorithm") == baseline)
    differences = {
        algorithm: _pair_differences(selected.filter(pl.col("algorithm") == algorithm), reference)
        for algorithm in algorithms
        if algorithm != baseline
    }
    rows = tuple(Row(algorithm, _compare(points, baseline)) for algorithm, points in differences.items())
    sizes = sorted({len(points) for points in differences.values()} - {0})
    notes = (
        f"Difference in accuracy to {baseline} in points, ± standard error over pairs: every dataset, test domain and "
        "trial that both methods have. wins: pairs in which the method is better.",
        "p: two-sided sign-flip permutation test of the mean difference. The test domains of a trial share training "
        "data, so pairs are not independent and p is optimistic.",
        *(f"The smallest possible p with {pluralize(size, 'pair')} is {smallest_p_value(size):.2g}." for size in sizes),
        *([] if rows else ["There is no other method."]),
        *(f"{row.algorithm}: {row.cells[0].reason}." for row in rows if row.cells[0].reason),
        describe_selection(selection),
    )
    return Table(f"Compared to {baseline}", selection, columns, rows, notes)


def _pair_differences(ours: pl.DataFrame, reference: pl.DataFrame) -> list[float]:
    """Return one difference in points per pair, sorted, so that the order of runs changes nothing."""
    both = ours.join(reference, on=["dataset", "test_domain", "trial"], how="inner", suffix="_reference")
    points = both.select(100 * (pl.col("accuracy") - pl.col("accuracy_reference"))).to_series()
    return points.sort().to_list()


def _compare(differences: Sequence[float], baseline: str) -> tuple[Cell, ...]:
    if not differences:
        return (Cell(None, reason=f"no test domain and trial in common with {baseline}"),) * 4
    comparison = compare_pairs(differences)
    return (
        Cell(comparison.difference, comparison.error, comparison.pairs),
        Cell(float(comparison.pairs)),
        Cell(float(comparison.wins)),
        Cell(comparison.p_value),
    )
