"""Adds trials to a comparison until its claims are decided or a time budget is spent.

The claims are looked at after every trial, so they are judged by the sequential intervals of
`domainwise.selection.verdicts`, which allow that.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from domainwise.errors import DomainwiseError, RunInterrupted, unknown_choice
from domainwise.selection import SELECTIONS, read_runs
from domainwise.selection.runs import find_failures
from domainwise.selection.statistics import pair_trials, pluralize
from domainwise.selection.verdicts import MARGIN, Judgement, PairedTrials, judge_differences
from domainwise.storage.run_folder import RunFolder
from domainwise.storage.sweep_folder import PlannedRun, SweepFolder
from domainwise.sweeps.engine import Engine
from domainwise.sweeps.plan import Plan, plan_sweep
from domainwise.sweeps.runner import SweepCallbacks, make_engine, run_in_folder
from domainwise.sweeps.spec import SweepSpec
from domainwise.sweeps.time_estimate import RunCosts, estimate_seconds
from domainwise.training.config import lower_method
from domainwise.training.registry import DatasetCache, algorithm_name

# More trials of one comparison are hardly ever worth their time.
MAX_TRIALS = 100
_UNITS = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
# How far an estimate may be corrected by the time that runs really took.
_MAX_CORRECTION = 4.0


def parse_budget(budget: str | float) -> float:
    """Return the seconds of a budget such as `90s`, `20min`, `3h` or `1h30min`."""
    if isinstance(budget, int | float):
        seconds = float(budget)
    else:
        parts = re.findall(r"(\d+(?:\.\d+)?)\s*([a-z]+)", budget.strip().lower())
        is_complete = "".join(number + unit for number, unit in parts) == re.sub(r"\s", "", budget.lower())
        if not parts or not is_complete or any(unit not in _UNITS for _, unit in parts):
            raise DomainwiseError(f"a budget is a duration such as 90s, 20min, 3h or 1h30min, got {budget!r}")
        seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not seconds > 0:
        raise DomainwiseError(f"a budget must be longer than 0 seconds, got {budget!r}")
    return seconds


@dataclass(frozen=True)
class Contest:
    """A comparison to which trials can be added.

    Args:
        plan_trial: returns the runs of a claim in a trial.
        judge: returns what the finished trials say about every claim.
        run: trains a plan to the end; its second argument is asked whether to save and stop.
    """

    plan_trial: Callable[[str, int], Plan]
    judge: Callable[[], Mapping[str, Judgement]]
    run: Callable[[Plan, Callable[[], bool]], object]


@dataclass(frozen=True)
class Decision:
    """How a contest ended: what is known about each claim, and why no more trials were added."""

    judgements: Mapping[str, Judgement]
    reason: str

    @property
    def is_complete(self) -> bool:
        return all(each.verdict != "inconclusive" for each in self.judgements.values())


@dataclass
class _Clock:
    """The budget, and how long runs take on this machine."""

    budget: float | None
    workers: int
    datasets: DatasetCache
    on_measure: Callable[[str], None]

    def __post_init__(self) -> None:
        self.start = time.monotonic()
        self.costs: RunCosts = {}
        self.correction = 1.0

    @property
    def seconds_left(self) -> float:
        return float("inf") if self.budget is None else self.start + self.budget - time.monotonic()

    def estimate(self, plan: Plan) -> float:
        if not plan or self.budget is None:
            return 0.0
        return self.correction * estimate_seconds(
            list(plan.values()), self.workers, self.on_measure, self.costs, self.datasets
        )

    def learn(self, estimated: float, started: float) -> None:
        """Correct later estimates by the time that runs took since `started`."""
        if estimated > 0:
            ratio = self.correction * (time.monotonic() - started) / estimated
            self.correction = min(max(ratio, 1 / _MAX_CORRECTION), _MAX_CORRECTION)


def run_contest(
    contest: Contest,
    *,
    budget: float | None = None,
    workers: int = 2,
    max_trials: int = MAX_TRIALS,
    rank: Callable[[Mapping[str, Judgement], int], list[str]] | None = None,
    on_round: Callable[[str], None] = lambda reason: None,
    should_stop: Callable[[], bool] = lambda: False,
    datasets: DatasetCache | None = None,
) -> Decision:
    """Add trials to the claims that are still open, the most uncertain first, until all are decided.

    Which claims get more trials may depend on the results in any way: the sequential intervals allow for it.

    Args:
        budget: seconds; runs that would not fit are not started, and those that take longer than estimated are saved
            and stopped. Call again to continue.
        workers: number of runs at a time, for estimates.
        max_trials: per claim.
        rank: returns the claims that get another trial, in order, from what is known about each and `max_trials`
            (default: `rank_open_claims`).
        on_round: called with what is going to run next, and why, and with what is measured for an estimate.
        datasets: where the datasets come from.
    """
    clock = _Clock(
        budget, workers, datasets or DatasetCache(), lambda task: on_round(f"measuring a few steps of {task}")
    )
    is_first = True
    while True:
        judgements = contest.judge()
        open_claims = (rank or rank_open_claims)(judgements, max_trials)
        if not open_claims:
            return Decision(judgements, _explain_end(judgements, max_trials))
        jobs = _list_jobs(contest, open_claims, max_trials)
        if not jobs:
            return Decision(
                judgements, "nothing left to run for the open claims: their data is missing, or runs failed"
            )
        chosen: Plan = {}
        estimated = 0.0
        for job in jobs:
            seconds = clock.estimate({**chosen, **job})
            if seconds > clock.seconds_left:
                if is_first and not chosen:
                    raise DomainwiseError(
                        f"the budget is too small: the next run takes about {seconds:.0f} s, and "
                        f"{max(0.0, clock.seconds_left):.0f} s are left"
                    )
                break
            chosen, estimated = {**chosen, **job}, seconds
        if not chosen:
            return Decision(judgements, "the budget is spent")
        on_round(_describe_round(judgements, open_claims, chosen, estimated))
        started, is_first = time.monotonic(), False
        try:
            contest.run(chosen, lambda: should_stop() or clock.seconds_left <= 0)
        except RunInterrupted:
            if should_stop():
                raise
            return Decision(contest.judge(), "the budget is spent")
        clock.learn(estimated, started)


def _explain_end(judgements: Mapping[str, Judgement], max_trials: int) -> str:
    """Return why no claim gets another trial."""
    undecided = {claim: each for claim, each in judgements.items() if each.verdict == "inconclusive"}
    if not undecided:
        return "all decided"
    if not any(each.is_open for each in undecided.values()):
        return f"no verdict on {', '.join(undecided)}, as runs collapsed or failed; the others are decided"
    return f"undecided after {pluralize(max_trials, 'trial')}"


def rank_open_claims(judgements: Mapping[str, Judgement], max_trials: int = MAX_TRIALS) -> list[str]:
    """Return the claims that more trials may decide: those without an interval first, then by the width of it."""

    def uncertainty(claim: str) -> tuple[int, float]:
        judgement = judgements[claim]
        if judgement.interval is None:
            return judgement.trials, 0.0
        return max_trials, judgement.interval[0] - judgement.interval[1]

    open_claims = (
        claim for claim, each in judgements.items() if each.is_open and each.trials + each.paired.failed < max_trials
    )
    return sorted(open_claims, key=uncertainty)


def _list_jobs(contest: Contest, claims: Sequence[str], max_trials: int) -> list[Plan]:
    """Return what is left of the next trial of each claim, without repetition: runs that only make sense together.

    These are all draws of a method with the same test domains: one of them is selected.
    """
    jobs: dict[tuple[object, ...], Plan] = {}
    for claim in claims:
        trials = (contest.plan_trial(claim, trial) for trial in range(max_trials))
        left = ({run: config for run, config in plan.items() if not _has_ended(run)} for plan in trials)
        for run, config in next(filter(None, left), {}).items():
            key = (run.folder.parent, run.dataset, run.algorithm, run.test_domains, run.trial)
            jobs.setdefault(key, {})[run] = config
    return list(jobs.values())


def _has_ended(run: PlannedRun) -> bool:
    return RunFolder(run.folder).read_stored_status().state in ("done", "stopped", "failed")


def _describe_round(judgements: Mapping[str, Judgement], claims: Sequence[str], chosen: Plan, estimated: float) -> str:
    trials = sorted({run.trial for run in chosen})
    first, *others = claims
    judgement = judgements[first]
    width = "no interval yet" if judgement.interval is None else f"interval {judgement.format_interval()}"
    also = f" and {len(others)} more" if others else ""
    time_text = f", about {estimated / 60:.0f} min" if estimated >= 30 else ""
    return (
        f"trial {', '.join(map(str, trials))}: {len(chosen)} runs{time_text}; open: {first} "
        f"({pluralize(judgement.trials, 'trial')}, {width}){also}"
    )


def run_sweep_until_decided(
    spec: SweepSpec,
    folder: str | Path,
    *,
    baseline: str = "erm",
    budget: str | float | None = None,
    margin: float = MARGIN,
    engine: Engine | None = None,
    workers: int = 2,
    placement: Mapping[str, Any] | None = None,
    max_trials: int = MAX_TRIALS,
    retry_failed: bool = False,
    callbacks: SweepCallbacks | None = None,
) -> Decision:
    """Add trials to a sweep until the budget is spent or every method is decided: is it above `baseline`?

    A method that is decided gets no more trials. Call again to continue. The claims are named after the methods.

    Args:
        spec: the sweep; its number of trials does not matter. The first of its selection rules counts.
        budget: a duration such as `3h`, or seconds (default: no limit).
        margin: largest difference without practical importance, in points.
        engine: see `make_engine` (default: two worker processes).
        workers: number of runs at a time, for estimates.
        placement: where and how runs compute, see `plan_sweep`.
        max_trials: per method.
        retry_failed: also run what failed before.
        callbacks: `on_plan` is called with the runs of every round, `on_note` with the reason for it.
    """
    baseline = lower_method(baseline)
    if baseline not in spec.algorithms:
        raise unknown_choice("method to compare to", baseline, spec.algorithms)
    methods = [algorithm_name(name) for name in spec.algorithms if name != baseline]
    baseline = algorithm_name(baseline)
    seconds = None if budget is None else parse_budget(budget)
    callbacks, engine = callbacks or SweepCallbacks(), engine or make_engine(workers=workers)
    spec = replace(spec, until_decided=True)
    sweep, datasets = SweepFolder(folder), DatasetCache()
    trials: dict[int, Plan] = {}
    planned: dict[PlannedRun, None] = {}

    def plan_trial(method: str, trial: int) -> Plan:
        if trial not in trials:
            trials[trial] = plan_sweep(
                replace(spec, trials=trial + 1),
                sweep.path,
                first_trial=trial,
                placement=placement,
                on_data=callbacks.on_data,
                datasets=datasets,
            )
        return {run: config for run, config in trials[trial].items() if run.algorithm in (method, baseline)}

    def judge() -> Mapping[str, Judgement]:
        paired = dict.fromkeys(methods, PairedTrials(()))
        if planned:
            selected = SELECTIONS[spec.selection[0]](read_runs([sweep.path]).frame)
            own = {name: selected.filter(pl.col("algorithm") == name) for name in (*methods, baseline)}
            begun = range(1 + max(run.trial for run in planned))
            for method in methods:
                ended = [trial for trial in begun if all(map(_has_ended, plan_trial(method, trial)))]
                better, worse = (own[name].filter(pl.col("trial").is_in(ended)) for name in (method, baseline))
                runs = (run for trial in ended for run in plan_trial(method, trial))
                statuses = {run: RunFolder(run.folder).read_stored_status() for run in runs}
                paired[method] = pair_trials(better, worse, find_failures(statuses))
        return judge_differences(paired, margin=margin, is_sequential=True)

    def run(chosen: Plan, stop: Callable[[], bool]) -> None:
        planned.update(dict.fromkeys(chosen))
        sweep_spec = replace(spec, trials=1 + max(run.trial for run in planned))
        run_in_folder(
            sweep, sweep_spec, chosen, engine, replace(callbacks, should_stop=stop), planned=planned, datasets=datasets
        )

    with sweep.lock():
        if sweep.spec_file.exists():
            planned.update(dict.fromkeys(sweep.read_plan()))
        if retry_failed:
            for each in planned:
                RunFolder(each.folder).clear_failure()
        return run_contest(
            Contest(plan_trial, judge, run),
            budget=seconds,
            workers=workers,
            max_trials=max_trials,
            on_round=callbacks.on_note,
            should_stop=callbacks.should_stop,
            datasets=datasets,
        )
