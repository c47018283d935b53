"""`run_sweep`: plans a sweep and runs it with an engine, skips finished runs, and records why a run failed."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.errors import DomainwiseError, RunInterrupted, unknown_choice
from domainwise.selection import SELECTIONS, read_runs
from domainwise.storage.run_folder import RunFolder, RunStatus
from domainwise.storage.sweep_folder import PlannedRun, SweepFolder
from domainwise.sweeps import local_engine, ray_engine
from domainwise.sweeps.engine import Engine, EngineCallbacks
from domainwise.sweeps.fork_server import start_fork_server
from domainwise.sweeps.plan import Plan, check_plan_size, plan_sweep
from domainwise.sweeps.race import Race, plan_races
from domainwise.sweeps.spec import SweepSpec
from domainwise.training import RunResult
from domainwise.training.loading import check_config
from domainwise.training.registry import DatasetCache

ENGINES = ("local", "ray")
OnStatus = Callable[[PlannedRun, RunStatus], None]


@dataclass(frozen=True)
class SweepOutcome:
    """How many runs are done, how many failed and how many were stopped early by a race, now or before."""

    done: int
    failed: int
    stopped: int = 0


@dataclass(frozen=True)
class SweepCallbacks:
    """Callbacks of a sweep.

    Args:
        on_data: called while images are read and decoded.
        on_plan: called with the plan before anything runs.
        on_status: called with the status of every run at the start, and whenever it changes.
        should_stop: asked several times per second; True lets every run save and raises `RunInterrupted`.
        on_race: called with the races after the plan, if draws race.
        on_note: called with a line for the user.
    """

    on_data: OnProgress = ignore_progress
    on_plan: Callable[[Plan], None] = lambda plan: None
    on_status: OnStatus = lambda run, status: None
    should_stop: Callable[[], bool] = lambda: False
    on_race: Callable[[Sequence[Race]], None] = lambda races: None
    on_note: Callable[[str], None] = lambda note: None


def run_sweep(
    spec: SweepSpec,
    folder: str | Path,
    *,
    engine: Engine | None = None,
    placement: Mapping[str, Any] | None = None,
    retry_failed: bool = False,
    callbacks: SweepCallbacks | None = None,
) -> SweepOutcome:
    """Plan a sweep, and run everything that is not done yet; call it again to resume.

    The folder also takes a larger sweep later: more draws (unless they race), trials, methods or datasets.

    Args:
        engine: see `make_engine` (default: two worker processes).
        placement: where and how runs compute, see `plan_sweep`.
        retry_failed: also run what failed before.
    """
    callbacks = callbacks or SweepCallbacks()
    engine = engine or make_engine()
    sweep = SweepFolder(folder)
    datasets = DatasetCache()
    plan = plan_sweep(spec, sweep.path, placement=placement, on_data=callbacks.on_data, datasets=datasets)
    with sweep.lock():
        return run_in_folder(sweep, spec, plan, engine, callbacks, retry_failed=retry_failed, datasets=datasets)


def repeat_best(
    spec: SweepSpec,
    folder: str | Path,
    seeds: Sequence[int],
    *,
    engine: Engine | None = None,
    placement: Mapping[str, Any] | None = None,
    callbacks: SweepCallbacks | None = None,
) -> dict[Path, SweepOutcome]:
    """Repeat what each selection rule chose with new seeds, in folders next to the sweep's; return their outcomes."""
    callbacks = callbacks or SweepCallbacks()
    engine = engine or make_engine()
    sweep = SweepFolder(folder)
    plan = plan_sweep(spec, sweep.path, placement=placement, on_data=callbacks.on_data)
    outcomes = {}
    for selection in spec.selection:
        repeated = SweepFolder(sweep.path.with_name(f"{sweep.path.name}-best-{selection}"))
        with repeated.lock():
            best = plan_best_runs(sweep.path, plan, selection, seeds, repeated.path)
            repeated_spec = replace(spec, selection=(selection,), draws=1, trials=len(seeds), search="random")
            outcomes[repeated.path] = run_in_folder(repeated, repeated_spec, best, engine, callbacks)
    return outcomes


def run_in_folder(
    sweep: SweepFolder,
    spec: SweepSpec,
    plan: Plan,
    engine: Engine,
    callbacks: SweepCallbacks,
    *,
    retry_failed: bool = False,
    planned: Collection[PlannedRun] = (),
    datasets: DatasetCache | None = None,
) -> SweepOutcome:
    """Run the plan in a locked folder.

    Args:
        planned: all runs of the sweep, if the plan is only a part of it.
        datasets: where the datasets come from.
    """
    check_seedings(plan)
    if not sweep.has_begun:
        # Of a sweep that was refused, or whose runs all failed before they began.
        sweep.spec_file.unlink(missing_ok=True)
    if not sweep.spec_file.exists():
        check_runs(sweep, planned or plan)
        if spec.hparams or spec.grid:
            check_methods(plan, spec, datasets or DatasetCache())
    spec.claim(sweep)
    sweep.write_plan(planned or plan)
    callbacks.on_plan(plan)
    if spec.search == "race":
        races = plan_races(plan, spec.selection, datasets)
        callbacks.on_race(races)
        return run_races(races, plan, engine, callbacks, retry_failed=retry_failed)
    return run_plan(
        plan,
        engine,
        retry_failed=retry_failed,
        on_status=callbacks.on_status,
        should_stop=callbacks.should_stop,
    )


def make_engine(
    name: str = "local",
    *,
    workers: int = 2,
    address: str | None = None,
    gpus_per_run: float = 0.0,
    results: str = "auto",
) -> Engine:
    """Return the engine `local` (worker processes on this machine) or `ray`.

    Args:
        workers: number of runs at a time.
        address, gpus_per_run, results: for Ray, see `domainwise.sweeps.ray_engine.run_all`.
    """
    if name not in ENGINES:
        raise unknown_choice("engine", name, ENGINES)
    if workers < 1:
        raise DomainwiseError(f"workers must be at least 1, got {workers}")
    if name == "local":
        start_fork_server()  # it imports torch while the caller plans
        return partial(local_engine.run_all, workers=workers)
    if results not in get_args(ray_engine.Results):
        raise unknown_choice("results mode", results, get_args(ray_engine.Results))
    return partial(
        ray_engine.run_all, workers=workers, address=address, gpus_per_run=gpus_per_run, results=cast(Any, results)
    )


def check_seedings(plan: Plan) -> None:
    """Raise an error if a planned run already exists with another seeding."""
    for run, config in plan.items():
        RunFolder(run.folder).check_seeding(config.seeding)


def check_runs(sweep: SweepFolder, planned: Collection[PlannedRun]) -> None:
    """Raise an error if the folder has runs that are not planned: the sweep's selection would count them."""
    folders = {run.folder for run in planned}
    if foreign := [folder.name for folder in sweep.find_runs() if folder not in folders]:
        raise DomainwiseError(
            f"{sweep.path} contains runs that are not of this sweep ({min(foreign)}); choose another --output"
        )


def check_methods(plan: Plan, spec: SweepSpec, datasets: DatasetCache) -> None:
    """Raise the error of a method that cannot be built with the given hyperparameters.

    Otherwise all its runs would fail, and the folder would not accept the corrected hyperparameters.
    """
    checked = set()
    for run, config in plan.items():
        key = (run.dataset, run.algorithm, run.draw if spec.grid else 0)
        if key not in checked:
            checked.add(key)
            check_config(config, datasets.build(config))


def run_plan(
    plan: Plan,
    engine: Engine,
    *,
    retry_failed: bool = False,
    on_status: OnStatus = lambda run, status: None,
    should_stop: Callable[[], bool] = lambda: False,
    total: int | None = None,
) -> SweepOutcome:
    """Run everything in the plan that is not done.

    Args:
        retry_failed: also run what failed before.
        on_status: called with the status of every run at the start, and whenever it changes.
        should_stop: asked several times per second; True lets every run save and raises `RunInterrupted`.
        total: number of runs in the whole sweep, if the plan is only a part of it.
    """
    statuses: dict[PlannedRun, RunStatus] = {}

    def update(run: PlannedRun, status: RunStatus) -> None:
        statuses[run] = status
        on_status(run, status)

    pending: list[PlannedRun] = []
    for run in plan:
        folder = RunFolder(run.folder)
        status = folder.read_status()
        if status.state == "failed" and retry_failed:
            folder.clear_failure()
            status = replace(status, state="pending", error="")
        is_paused = status.step >= (plan[run].stop_after or math.inf)
        if status.state not in ("done", "failed", "stopped") and not is_paused:
            pending.append(run)
        update(run, status)

    def on_progress(index: int, step: int) -> None:
        update(pending[index], RunStatus("running", step))

    def on_done(index: int, result: RunResult) -> None:
        folder = RunFolder(result.folder)
        folder.clear_failure()
        update(pending[index], RunStatus("done" if folder.is_done else "unfinished", result.last["step"] + 1))

    def on_failed(index: int, error: str) -> None:
        RunFolder(pending[index].folder).write_failure(error)
        update(pending[index], RunStatus("failed", error=error.splitlines()[-1].strip()))

    if pending:
        callbacks = EngineCallbacks(on_progress, on_done, on_failed, should_stop, total=total or len(plan))
        engine([plan[run] for run in pending], callbacks)
    states = [status.state for status in statuses.values()]
    return SweepOutcome(states.count("done"), states.count("failed"), states.count("stopped"))


def run_races(
    races: Sequence[Race], plan: Plan, engine: Engine, callbacks: SweepCallbacks, *, retry_failed: bool = False
) -> SweepOutcome:
    """Run every race to its end: all draws to their first comparison, then the survivors to the next, and so on.

    Which draws were stopped is written to their folders before the others go on. What is stopped stays stopped, and a
    run beyond a rung is not stopped at it, also if a run that had failed is repeated later.

    Args:
        plan: the runs of all races.
    """
    statuses: dict[PlannedRun, RunStatus] = {}

    def on_status(run: PlannedRun, status: RunStatus) -> None:
        if statuses.get(run) != status:
            statuses[run] = status
            callbacks.on_status(run, status)

    for stage in range(1 + max(len(race.rungs) for race in races)):
        entrants: Plan = {}
        for race in races:
            # The first stage has all runs, to report how far they are.
            left = [run for run in race.runs if stage == 0 or statuses[run].state not in ("stopped", "failed")]
            is_last = stage >= len(race.rungs) or len(left) == 1
            stop_after = None if is_last else race.rungs[stage]
            entrants |= {run: replace(plan[run], stop_after=stop_after) for run in left}
        try:
            run_plan(
                entrants,
                engine,
                retry_failed=retry_failed and stage == 0,
                on_status=on_status,
                should_stop=callbacks.should_stop,
                total=len(plan),
            )
        except RunInterrupted:
            # The engine counts runs that have reached their rung.
            done = sum(status.state == "done" for status in statuses.values())
            raise RunInterrupted(f"{done} of {len(plan)} runs are done") from None
        for race in races:
            if stage < len(race.rungs):
                _stop_losers(race, race.rungs[stage], statuses, on_status)
    states = [status.state for status in statuses.values()]
    return SweepOutcome(states.count("done"), states.count("failed"), states.count("stopped"))


def _stop_losers(race: Race, rung: int, statuses: Mapping[PlannedRun, RunStatus], on_status: OnStatus) -> None:
    # Failed runs are out. One that was stopped at this very rung takes part again: the sweep may have been killed
    # before all decisions were written, and they must come out the same.
    entrants = [run for run in race.runs if statuses[run].state != "failed" and statuses[run].step >= rung]
    for run, reason in race.find_losers(rung, entrants).items():
        if statuses[run].state == "unfinished" and statuses[run].step == rung:
            RunFolder(run.folder).write_stop(rung, reason)
            on_status(run, RunStatus("stopped", rung, reason=reason))


def plan_best_runs(sweep: Path, plan: Plan, selection: str, seeds: Sequence[int], folder: Path) -> Plan:
    """Plan the selected runs once more with new seeds: a score that the search has not seen.

    For each dataset, method and test domain, the run with the highest selection score over all trials is repeated
    with each of `seeds` as its trial.
    """
    chosen = SELECTIONS[selection](read_runs([sweep]).frame)
    if chosen.is_empty():
        raise DomainwiseError(f"{selection} has nothing to choose from in {sweep}: no run is finished")
    best = chosen.sort("score", descending=True, maintain_order=True).unique(
        ["dataset", "algorithm", "test_domain"], keep="first", maintain_order=True
    )
    # A run that tests on several domains may be the choice for some of them only, and counts for those alone.
    test_domains: dict[str, list[str]] = {}
    for run, domain in best.select("run", "test_domain").iter_rows():
        test_domains.setdefault(Path(run).name, []).append(domain)
    check_plan_size(len(seeds) * len(test_domains))
    by_name = {run.name: run for run in plan}
    repeated: Plan = {}
    for seed in seeds:
        for name, domains in test_domains.items():
            run = replace(
                by_name[name],
                folder=folder / f"{name}-again{seed}",
                name=f"{name}-again{seed}",
                test_domains=tuple(domains),
                trial=seed,
            )
            config = plan[by_name[name]]
            repeated[run] = replace(config, trial_seed=seed, test_domains=run.test_domains, output=run.folder)
    return repeated
