"""A verdict on each claim of the paper: whether it holds, does not, or cannot be told."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import polars as pl

from domainwise.reports.footnotes import pluralize
from domainwise.reproduction.recipe import Claim, Recipe
from domainwise.selection.statistics import PairedComparison, compare_pairs, smallest_p_value

Verdict = Literal["holds", "does not hold", "cannot be told"]
# A difference is told from luck below this.
LEVEL = 0.05


@dataclass(frozen=True)
class Judged:
    """A claim and what the runs say to it; `why` is for the reader."""

    claim: Claim
    verdict: Verdict
    why: str


def judged(recipe: Recipe, chosen: pl.DataFrame) -> list[Judged]:
    """A verdict a claim, from the pairs of runs that both rows have on the same test domains and trial."""
    every = dict.fromkeys(name for block in recipe.blocks for name in block.datasets)
    return [_judged(claim, claim.datasets or tuple(every), chosen) for claim in recipe.claims]


def _judged(claim: Claim, datasets: Sequence[str], chosen: pl.DataFrame) -> Judged:
    # Trained on some domains only, a dataset has another name in tables.
    plain = pl.col("dataset").str.split(" from ").list.first()
    chosen = chosen.with_columns(plain=plain).filter(pl.col("plain").is_in(list(datasets)))
    better, than = (chosen.filter(pl.col("row") == name) for name in (claim.better, claim.than))
    both = better.join(than, on=["dataset", "test_domain", "trial"], how="inner", suffix="_other")
    # Test domains that share a model are no pairs of their own: what made it good or bad made it so for all of them.
    difference = 100 * (pl.col("accuracy") - pl.col("accuracy_other")).mean()
    points = both.group_by("run", "run_other").agg(points=difference)["points"].sort().to_list()
    if not points:
        return Judged(claim, "cannot be told", "there are no runs of both on the same domain and trial")
    found = compare_pairs(points)
    why = _why(found, claim, both["trial"].n_unique())
    there = [name for name in datasets if name in both["plain"]]
    if len(there) == len(datasets):
        return Judged(claim, verdict_of(found), why)
    verdict = "cannot be told" if claim.needs_all else verdict_of(found)
    return Judged(claim, verdict, f"on {', '.join(there)} alone: {why}")


def verdict_of(found: PairedComparison) -> Verdict:
    """By the sign of the mean difference, where a sign-flip test says that it is no luck."""
    if found.p_value >= LEVEL:
        return "cannot be told"
    return "holds" if found.difference > 0 else "does not hold"


def _why(found: PairedComparison, claim: Claim, trials: int) -> str:
    error = "" if found.error is None else f" ± {found.error:.1f}"
    words = (
        f"{found.difference:+.1f}{error} points over {pluralize(found.pairs, 'pair')} of {pluralize(trials, 'trial')}"
    )
    words += f", {claim.better} ahead in {found.wins}, p = {found.p_value:.2g}"
    if smallest_p_value(found.pairs) >= LEVEL:
        words += f"; {pluralize(found.pairs, 'pair')} cannot give a p below {LEVEL:g}"
    return words
