"""What a recipe's runs came to: accuracies beside the paper's, and a verdict on each of its claims."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl

from domainwise.recipes.plan import Part, RecipePlan
from domainwise.recipes.recipe import Claim, Recipe, Row
from domainwise.reports.footnotes import counted
from domainwise.reports.published import OWN_RUNS, Value, published
from domainwise.reports.versus import Comparison, compared, smallest_p
from domainwise.selection import SELECTIONS
from domainwise.selection.read import read_runs

Verdict = Literal["holds", "does not hold", "cannot be told"]
# A difference is told from luck below this.
LEVEL = 0.05
_SCHEMA = {
    "row": pl.String,
    "dataset": pl.String,
    "test_domain": pl.String,
    "trial": pl.Int64,
    "accuracy": pl.Float64,
    "training": pl.Float64,
    "run": pl.String,
}


@dataclass(frozen=True)
class Compared:
    """A row on a dataset, in percent: ours and the paper's, each with its standard error where there is one.

    Args:
        dataset: or the paper's name for a mean over several, like `avg1`.
        training: of the chosen models on their training domains, where the test domain chose them: a model that is
            good there by luck alone gives itself away by it.
    """

    row: str
    dataset: str
    ours: float
    error: float | None
    trials: int
    paper: float | None
    paper_error: float | None
    training: float | None = None

    @property
    def difference(self) -> float | None:
        return None if self.paper is None else self.ours - self.paper

    @property
    def in_errors(self) -> float | None:
        """The difference in standard errors of both together; None where neither is known."""
        together = float(np.hypot(self.error or 0.0, self.paper_error or 0.0))
        return None if self.difference is None or not together else self.difference / together


@dataclass(frozen=True)
class Judged:
    """A claim and what the runs say to it; `why` is for the reader."""

    claim: Claim
    verdict: Verdict
    why: str


def chosen_of(plan: RecipePlan) -> pl.DataFrame:
    """A row a table's row, dataset, test domain and trial: the `accuracy` of the model that was chosen, and its `run`.

    `training`, its accuracy on training domains, is there only if the test domain chose it. A trial counts when it has
    every test domain: a mean over those that happen to be done would be of something else.
    """
    frames = [found for part in plan.parts for found in [_chosen(part)] if found.height]
    return pl.concat([pl.DataFrame(schema=_SCHEMA), *frames]).unique(maintain_order=True)


def _chosen(part: Part) -> pl.DataFrame:
    folders = [Path(run.config.folder()) for run in part.runs]
    finished = [folder for folder in folders if (folder / "done").exists()]
    frame = SELECTIONS[part.selection](read_runs(finished).frame) if finished else pl.DataFrame()
    if frame.is_empty():
        return frame
    planned = {name for run in part.runs for name in run.config.test_domains}
    there = frame.group_by("trial").agg("test_domain").iter_rows()
    complete = [trial for trial, names in there if planned <= set(names)]
    training = pl.col("training") if part.selection == "test_domain" else pl.lit(None, pl.Float64).alias("training")
    return (
        frame.filter(pl.col("trial").is_in(complete))
        .with_columns(training, row=pl.lit(part.row.name))
        .select(_SCHEMA.keys())
    )


def beside_the_paper(recipe: Recipe, chosen: pl.DataFrame) -> list[Compared]:
    """Row by row and dataset by dataset, the mean over test domains; then the paper's means over datasets."""
    found, averages = [], []
    for row in recipe.rows:
        own = chosen.filter(pl.col("row") == row.name)
        by_dataset = {name: _by_trial(own, name) for name in own["dataset"].unique(maintain_order=True)}
        for name, trials in by_dataset.items():
            training = own.filter(pl.col("dataset") == name)["training"].mean()
            theirs = published_value(recipe, row, name)
            found.append(_compared(row, name, list(trials.values()), theirs, training))
        for name, names in _means_over_datasets(recipe).items():
            if all(each in by_dataset for each in names):
                shared = set.intersection(*(set(by_dataset[each]) for each in names))
                means = [statistics.fmean(by_dataset[each][trial] for each in names) for trial in sorted(shared)]
                if means:
                    averages.append(_compared(row, name, means, published_value(recipe, row, name)))
    return [*found, *averages]


def _by_trial(own: pl.DataFrame, dataset: str) -> dict[int, float]:
    here = own.filter(pl.col("dataset") == dataset)
    return dict(here.group_by("trial").agg(pl.col("accuracy").mean() * 100).sort("trial").iter_rows())


def _means_over_datasets(recipe: Recipe) -> Mapping[str, tuple[str, ...]]:
    return {} if recipe.published is None else published()[recipe.published].mean_of


def _compared(
    row: Row, dataset: str, by_trial: Sequence[float], theirs: Value | None, training: Any = None
) -> Compared:
    return Compared(
        row.name,
        dataset,
        statistics.fmean(by_trial),
        statistics.pstdev(by_trial) / len(by_trial) ** 0.5 if len(by_trial) > 1 else None,
        len(by_trial),
        theirs.mean if theirs else None,
        theirs.error if theirs else None,
        None if training is None else 100 * training,
    )


def published_value(recipe: Recipe, row: Row, dataset: str) -> Value | None:
    """The paper's mean over the dataset's test domains, or of its column of that name; its own runs come first."""
    if recipe.published is None:
        return None
    table = published()[recipe.published]
    fitting = [
        value
        for value in table.values
        if value.algorithm == row.algorithm
        and (value.dataset or value.column) == dataset
        and row.paper in ("", value.setting, value.column)
        and (not value.setting or row.paper == value.setting)
        and (not table.mean_of or value.column in table.mean_of or value.column == dataset)
    ]
    return min(fitting, key=lambda value: value.source != OWN_RUNS, default=None)


def judged(recipe: Recipe, chosen: pl.DataFrame) -> list[Judged]:
    """A verdict a claim, from the pairs of runs that both rows have on the same test domains and trial."""
    return [_judged(claim, chosen) for claim in recipe.claims]


def _judged(claim: Claim, chosen: pl.DataFrame) -> Judged:
    if claim.datasets:
        chosen = chosen.filter(pl.col("dataset").str.split(" from ").list.first().is_in(list(claim.datasets)))
    better, than = (chosen.filter(pl.col("row") == name) for name in (claim.better, claim.than))
    both = better.join(than, on=["dataset", "test_domain", "trial"], how="inner", suffix="_other")
    # Test domains that share a model are no pairs of their own: what made it good or bad made it so for all of them.
    difference = 100 * (pl.col("accuracy") - pl.col("accuracy_other")).mean()
    points = both.group_by("run", "run_other").agg(points=difference)["points"].sort().to_list()
    if not points:
        return Judged(claim, "cannot be told", "there are no runs of both on the same domain and trial")
    found = compared(np.asarray(points, dtype=np.float64))
    trials = both["trial"].n_unique()
    return Judged(claim, verdict_of(found), _why(found, claim, trials))


def verdict_of(found: Comparison) -> Verdict:
    """By the sign of the mean difference, where a sign-flip test says that it is no luck."""
    if found.p >= LEVEL:
        return "cannot be told"
    return "holds" if found.difference > 0 else "does not hold"


def _why(found: Comparison, claim: Claim, trials: int) -> str:
    error = "" if found.error is None else f" ± {found.error:.1f}"
    words = f"{found.difference:+.1f}{error} points over {counted(found.pairs, 'pair')} of {counted(trials, 'trial')}"
    words += f", {claim.better} ahead in {found.ahead}, p = {found.p:.2g}"
    if smallest_p(found.pairs) >= LEVEL:
        words += f"; {counted(found.pairs, 'pair')} cannot give a p below {LEVEL:g}"
    return words


def ordered(rows: Sequence[Compared]) -> list[str]:
    """The datasets of a comparison, in the order that they come in."""
    return list(dict.fromkeys(row.dataset for row in rows))
