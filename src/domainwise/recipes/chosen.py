"""Which models a recipe's runs come to, and how good they are."""

from pathlib import Path

import polars as pl

from domainwise.recipes.plan import Part, RecipePlan
from domainwise.selection import SELECTIONS
from domainwise.selection.read import read_runs

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
