"""`run_sweep`: plans a sweep and runs it with an engine, skips finished runs, and records why a run failed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.errors import DomainwiseError, unknown_choice
from domainwise.selection import SELECTIONS, read_runs
from domainwise.storage.run_folder import RunFolder, RunStatus
from domainwise.storage.sweep_folder import PlannedRun, SweepFolder
from domainwise.sweeps import local_engine, ray_engine
from domainwise.sweeps.engine import Engine, EngineCallbacks
from domainwise.sweeps.fork_server import start_fork_server
from domainwise.sweeps.plan import Plan, plan_sweep
from domainwise.sweeps.spec import SweepSpec
from domainwise.training import RunResult

ENGINES = ("local", "ray")
OnStatus = Callable[[PlannedRun, RunStatus], None]


@dataclass(frozen=True)
class SweepOutcome:
    """How many runs are done and how many failed, now or before."""

    done: int
    failed: int


@dataclass(frozen=True)
class SweepCallbacks:
    """Callbacks of a sweep.

    Args:
        on_data: called while images are read and decoded.
        on_plan: called with the plan before anything runs.
        on_status: called with the status of every run at the start, and whenever it changes.
        should_stop: asked several times per second; True lets every run save and raises `RunInterrupted`.
    """

    on_data: OnProgress = ignore_progress
    on_plan: Callable[[Plan], None] = lambda plan: None
    on_status: OnStatus = lambda run, status: None
    should_stop: Callable[[], bool] = lambda: False


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

    The folder also takes a larger sweep later: more draws, trials, methods or datasets.

    Args:
        engine: see `make_engine` (default: two worker processes).
        placement: where and how runs compute, see `plan_sweep`.
        retry_failed: also run what failed before.
    """
    callbacks = callbacks or SweepCallbacks()
    engine = engine or make_engine()
    sweep = SweepFolder(folder)
    plan = plan_sweep(spec, sweep.path, placement=placement, on_data=callbacks.on_data)
    with sweep.lock():
        return _run_in(sweep, spec, plan, engine, callbacks, retry_failed)


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
            repeated_spec = replace(spec, selection=(selection,), draws=1, trials=len(seeds))
            outcomes[repeated.path] = _run_in(repeated, repeated_spec, best, engine, callbacks)
    return outcomes


def _run_in(
    sweep: SweepFolder,
    spec: SweepSpec,
    plan: Plan,
    engine: Engine,
    callbacks: SweepCallbacks,
    retry_failed: bool = False,
) -> SweepOutcome:
    """Run the plan in a locked folder."""
    check_seedings(plan)
    spec.claim(sweep)
    sweep.write_plan(plan)
    callbacks.on_plan(plan)
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


def run_plan(
    plan: Plan,
    engine: Engine,
    *,
    retry_failed: bool = False,
    on_status: OnStatus = lambda run, status: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> SweepOutcome:
    """Run everything in the plan that is not done.

    Args:
        retry_failed: also run what failed before.
        on_status: called with the status of every run at the start, and whenever it changes.
        should_stop: asked several times per second; True lets every run save and raises `RunInterrupted`.
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
        if status.state not in ("done", "failed"):
            pending.append(run)
        update(run, status)

    def on_progress(index: int, step: int) -> None:
        update(pending[index], RunStatus("running", step))

    def on_done(index: int, result: RunResult) -> None:
        RunFolder(result.folder).clear_failure()
        update(pending[index], RunStatus("done", result.last["step"] + 1))

    def on_failed(index: int, error: str) -> None:
        RunFolder(pending[index].folder).write_failure(error)
        update(pending[index], RunStatus("failed", error=error.splitlines()[-1].strip()))

    if pending:
        engine([plan[run] for run in pending], EngineCallbacks(on_progress, on_done, on_failed, should_stop))
    states = [status.state for status in statuses.values()]
    return SweepOutcome(states.count("done"), states.count("failed"))


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
