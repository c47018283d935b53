"""A planned sweep, carried out by an engine: what is finished is left alone, what fails is written down."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from domainwise.errors import DomainwiseError
from domainwise.selection import SELECTIONS
from domainwise.selection.runs import read_runs
from domainwise.storage.sweep_folder import Standing, clear_failure, standing, write_failure
from domainwise.sweeps.engine import Watch
from domainwise.sweeps.plan import PlannedRun
from domainwise.training import RunConfig, RunResult

Engine = Callable[[Sequence[RunConfig], Watch], object]


@dataclass(frozen=True)
class Outcome:
    """How many runs are done, of which some were before, and how many failed, now or before."""

    done: int
    failed: int


def carry_out(
    runs: Sequence[PlannedRun],
    engine: Engine,
    *,
    retry_failed: bool = False,
    on_stand: Callable[[PlannedRun, Standing], None] = lambda run, standing: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Carry out what is not done.

    Args:
        retry_failed: whether runs that failed before are to be tried again.
        on_stand: called for each run at first, and again as it goes on.
    """
    states: dict[str, str] = {}

    def stands(run: PlannedRun, now: Standing) -> None:
        states[run.name] = now.state
        on_stand(run, now)

    to_do: list[PlannedRun] = []
    for run in runs:
        now = standing(_folder(run))
        if now.state == "failed" and retry_failed:
            clear_failure(_folder(run))
            now = replace(now, state="to do", error="")
        if now.state not in ("done", "failed"):
            to_do.append(run)
        stands(run, now)

    def on_progress(number: int, step: int) -> None:
        stands(to_do[number], Standing(to_do[number].name, "running", step))

    def on_done(number: int, result: RunResult) -> None:
        clear_failure(result.folder)
        stands(to_do[number], Standing(to_do[number].name, "done", result.last["step"] + 1))

    def on_failed(number: int, error: str) -> None:
        write_failure(_folder(to_do[number]), error)
        stands(to_do[number], Standing(to_do[number].name, "failed", error=error.splitlines()[-1].strip()))

    if to_do:
        engine([run.config for run in to_do], Watch(on_progress, on_done, on_failed, should_stop))
    return Outcome(*(sum(state == which for state in states.values()) for which in ("done", "failed")))


def _folder(run: PlannedRun) -> Path:
    return Path(run.config.folder())


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
