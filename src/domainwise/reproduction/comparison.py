"""Accuracies of the chosen models beside the paper's."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from domainwise.reports.published import OWN_RUNS, PublishedValue, load_published_tables
from domainwise.reproduction.plan import Part, RecipePlan
from domainwise.reproduction.recipe import Recipe, Row
from domainwise.selection import SELECTIONS
from domainwise.selection.runs import read_runs
from domainwise.storage.run_folder import RunFolder


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
    return {} if recipe.published is None else load_published_tables()[recipe.published].mean_of


def _compared(
    row: Row, dataset: str, by_trial: Sequence[float], theirs: PublishedValue | None, training: Any = None
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


def published_value(recipe: Recipe, row: Row, dataset: str) -> PublishedValue | None:
    """The paper's mean over the dataset's test domains, or of its column of that name; its own runs come first."""
    if recipe.published is None:
        return None
    table = load_published_tables()[recipe.published]
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


def ordered(rows: Sequence[Compared]) -> list[str]:
    """The datasets of a comparison, in the order that they come in."""
    return list(dict.fromkeys(row.dataset for row in rows))


_SCHEMA = {
    "row": pl.String,
    "dataset": pl.String,
    "test_domain": pl.String,
    "trial": pl.Int64,
    "accuracy": pl.Float64,
    "training": pl.Float64,
    "run": pl.String,
}


def chosen_of(plan: RecipePlan) -> pl.DataFrame:
    """A row a table's row, dataset, test domain and trial: the `accuracy` of the model that was chosen, and its `run`.

    `training`, its accuracy on training domains, is there only if the test domain chose it. A trial counts when it has
    every test domain: a mean over those that happen to be done would be of something else.
    """
    frames = [found for part in plan.parts for found in [_chosen(part)] if found.height]
    return pl.concat([pl.DataFrame(schema=_SCHEMA), *frames]).unique(maintain_order=True)


def _chosen(part: Part) -> pl.DataFrame:
    finished = [run.folder for run in part.runs if RunFolder(run.folder).is_done]
    frame = SELECTIONS[part.selection](read_runs(finished).frame) if finished else pl.DataFrame()
    if frame.is_empty():
        return frame
    planned = {name for run in part.runs for name in run.test_domains}
    there = frame.group_by("trial").agg("test_domain").iter_rows()
    complete = [trial for trial, names in there if planned <= set(names)]
    training = pl.col("training") if part.selection == "test_domain" else pl.lit(None, pl.Float64).alias("training")
    return (
        frame.filter(pl.col("trial").is_in(complete))
        .with_columns(training, row=pl.lit(part.row.name))
        .select(_SCHEMA.keys())
    )
