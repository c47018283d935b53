"""The hyperparameters that a sweep chose, once more with new seeds: a score that no search has looked at."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

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
    # A run that tests on several domains may be the choice for some of them only, and counts for those alone.
    domains: dict[str, list[str]] = {}
    for run, domain in best.select("run", "test_domain").iter_rows():
        domains.setdefault(Path(run).name, []).append(domain)
    of_name = {run.name: run for run in planned}
    return [_again(of_name[name], tests, seed, folder) for seed in seeds for name, tests in domains.items()]


def _again(run: PlannedRun, tests: Sequence[str], seed: int, folder: Path) -> PlannedRun:
    name = f"{run.name}-again{seed}"
    config = replace(run.config, trial_seed=seed, test_domains=tuple(tests), output=folder / name)
    return replace(run, name=name, config=config)
