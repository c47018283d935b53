"""The hyperparameters that a sweep chose, once more with new seeds: a score that no search has looked at."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from domainwise.errors import DomainwiseError
from domainwise.selection import SELECTIONS
from domainwise.selection.read import read_runs
from domainwise.sweeps.plan import PlannedRun


def best_runs(
    sweep: Path, planned: Sequence[PlannedRun], selection: str, seeds: Sequence[int], folder: Path
) -> list[PlannedRun]:
    """Runs of what `selection` chose for each dataset, method and test domain, with each of `seeds` as trial.

    A trial draws its own hyperparameters; of those that the trials chose, the one with the highest score is taken.
    """
    chosen = SELECTIONS[selection](read_runs([sweep]).frame)
    if chosen.is_empty():
        raise DomainwiseError(f"{selection} has nothing to choose from in {sweep}: no run is finished")
    best = chosen.sort("score", descending=True, maintain_order=True).unique(
        ["dataset", "algorithm", "test_domain"], keep="first", maintain_order=True
    )
    names = best.select(pl.col("run").str.split("/").list.last()).to_series().unique(maintain_order=True)
    of_name = {run.name: run for run in planned}
    return [_again(of_name[name], seed, folder) for seed in seeds for name in names if name in of_name]


def _again(run: PlannedRun, seed: int, folder: Path) -> PlannedRun:
    name = f"{run.name}-again{seed}"
    return replace(run, name=name, config=replace(run.config, trial_seed=seed, output=folder / name))
