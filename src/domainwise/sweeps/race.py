"""Racing: of the draws of a search, those that are clearly behind stop early, and the others are trained to the end.

Draws are compared on the records that runs have anyway, as in Hoeffding races (Maron and Moore 1993): one stops as soon
as its holdout accuracy is behind the leader's by more than chance explains. A run pauses and resumes to the bit, so a
survivor is the run that it would have been without a race.
"""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from domainwise.selection import read_runs
from domainwise.storage.run_folder import RunFolder
from domainwise.storage.sweep_folder import PlannedRun
from domainwise.sweeps.plan import Plan
from domainwise.training.config import RunConfig
from domainwise.training.registry import DatasetCache, resolve_config

# A draw stops if it is this many standard errors of a difference behind the leader. More than a test would ask for,
# because a draw that learns late may end best.
STANDARD_ERRORS = 4.0
# Draws are compared after these shares of the steps; before, networks have hardly learned anything.
_SHARES = tuple(tenth / 10 for tenth in range(2, 10))
# What each rule looks at: the column of the selection frame, and its name in reasons.
_SCORES: Mapping[str, tuple[str, str]] = {
    "training_domain": ("training", "holdout"),
    "one_standard_error": ("training", "holdout"),
    "attacked_holdout": ("attacked", "holdout under attack"),
    "ood_validation": ("validation", "validation"),
}


@dataclass(frozen=True)
class _Score:
    value: float
    error: float


@dataclass(frozen=True)
class Race:
    """The draws of one method on one dataset with the same test domains and trial.

    Args:
        runs: one per draw, with resolved configs.
        rungs: the numbers of updates after which draws are compared; none if all are trained to the end.
        rules: the selection rules; a draw stops if it is behind by all of them.
    """

    runs: Plan
    rungs: tuple[int, ...]
    rules: tuple[str, ...]

    @property
    def steps(self) -> int:
        steps = next(iter(self.runs.values())).steps
        assert steps is not None
        return steps

    @property
    def expected_steps(self) -> list[int]:
        """A guess of the number of steps of each draw, the most first.

        As in the races that were measured, about half of the draws stop at the first comparison, half of the others a
        fifth of the steps later, and the rest is trained to the end.
        """
        count = len(self.runs)
        rungs = [rung for rung in self.rungs if rung >= self._blind_steps] if self._has_only_radii() else self.rungs
        if not rungs or count < 2:
            return [self.steps] * count
        first = rungs[0]
        second = next((rung for rung in rungs if rung >= first + self.steps / 5 - 1), self.steps)
        half, quarter = (count + 1) // 2, max(1, count // 4)
        return [*[self.steps] * quarter, *[second] * (half - quarter), *[first] * (count - half)]

    def expect_configs(self, ended: Collection[PlannedRun]) -> list[RunConfig]:
        """Return the configs that are left to run, each with the steps at which it is expected to stop.

        Which draws will be stopped is not known; the first ones are expected to survive.

        Args:
            ended: runs that are done or stopped.
        """
        left = [config for run, config in self.runs.items() if run not in ended]
        done = sum(RunFolder(run.folder).is_done for run in self.runs)
        steps = self.expected_steps[done:][: len(left)]
        return [replace(config, stop_after=end) for config, end in zip(left, steps, strict=True)]

    def describe(self) -> str:
        """Return the plan of the race in one line; empty for a single draw."""
        if len(self.runs) == 1:
            return ""
        run = next(iter(self.runs))
        name = f"{run.algorithm} on {run.dataset}"
        if not self.rungs:
            return f"no race for {name}: no record between {_SHARES[0]:.0%} and the end of the {self.steps} steps"
        rungs = ", ".join(map(str, self.rungs))
        share = sum(self.expected_steps) / (self.steps * len(self.runs))
        return (
            f"race for {name}: {len(self.runs)} draws, compared after {rungs} of {self.steps} steps (expected: "
            f"{share:.0%} of a full search)"
        )

    def find_losers(self, rung: int, entrants: Sequence[PlannedRun]) -> dict[PlannedRun, str]:
        """Return the draws that stop at a rung, each with the reason, by the records up to it.

        No draw stops if the accuracies that a rule looks at were not measured.

        Args:
            entrants: the runs that have reached the rung.
        """
        if len(entrants) < 2:
            return {}
        frame = read_runs([run.folder for run in entrants], unfinished=True, keep_duplicates=True).frame
        frame = frame.filter(pl.col("step") < rung)
        losers = list(entrants)
        reasons: dict[PlannedRun, str] = {}
        for rule in reversed(self.rules):  # the reason is that of the first
            scores = self._score(frame, rule, entrants, rung)
            leader = max(scores.values(), key=lambda score: score.value, default=None)
            if leader is None:
                return {}
            bar = leader.value - STANDARD_ERRORS * math.sqrt(2) * leader.error
            losers = [run for run in losers if run in scores and scores[run].value < bar]
            when, label = f"after {rung} of {self.steps} steps", _SCORES[rule][1]
            for run in losers:
                behind = f"{100 * scores[run].value:.1f}, clearly behind {100 * leader.value:.1f}"
                reasons[run] = f"{when}: {label} {behind}"
        return {run: reasons[run] for run in losers}

    def _score(
        self, frame: pl.DataFrame, rule: str, entrants: Sequence[PlannedRun], rung: int
    ) -> dict[PlannedRun, _Score]:
        """Return the best score so far of each run that has one.

        Until the radius has grown to epsilon, draws that differ only in it have the score of the best of them.
        """
        column = _SCORES[rule][0]
        best = (
            frame.drop_nulls([column, "training_error"])
            .sort(column, descending=True, maintain_order=True)
            .group_by("run", maintain_order=True)
            .agg(pl.col(column, "training_error").first())
        )
        by_name = {name: _Score(value, error) for name, value, error in best.iter_rows()}
        scores = {run: by_name[str(run.folder)] for run in entrants if str(run.folder) in by_name}
        if rung >= self._blind_steps:
            return scores
        groups = self._group_by_radius()
        return {
            run: max((scores[each] for each in groups[run] if each in scores), key=lambda score: score.value)
            for run in scores
        }

    @property
    def _blind_steps(self) -> int:
        """The number of updates before a record has seen the full radius."""
        shares = [config.hparams.get("warmup") for config in self.runs.values()]
        return max((round(share * self.steps) for share in shares if isinstance(share, float)), default=0)

    def _has_only_radii(self) -> bool:
        """Return whether all draws differ only in the radius."""
        return len({tuple(group) for group in self._group_by_radius().values()}) == 1

    def _group_by_radius(self) -> dict[PlannedRun, list[PlannedRun]]:
        """Return for each run those that differ from it only in the radius, with itself."""
        groups: dict[str, list[PlannedRun]] = {}
        keys = {}
        for run, config in self.runs.items():
            hparams = {name: value for name, value in config.hparams.items() if name != "epsilon"}
            keys[run] = json.dumps([hparams, config.batch_size, config.dropout], sort_keys=True, default=str)
            groups.setdefault(keys[run], []).append(run)
        return {run: groups[key] for run, key in keys.items()}


def plan_races(plan: Plan, selection: Sequence[str], datasets: DatasetCache | None = None) -> list[Race]:
    """Return the races of a sweep, one per dataset, method, test domains and trial.

    Args:
        selection: the sweep's selection rules.
    """
    cache = datasets or DatasetCache()
    # Dataset by dataset, to build each once; its defaults do not depend on the trial.
    resolved = {
        run: resolve_config(config, cache.build(replace(config, trial_seed=0)))[0]
        for run, config in sorted(plan.items(), key=lambda item: item[1].dataset_name)
    }
    by_place: dict[tuple[object, ...], Plan] = {}
    for run in plan:
        by_place.setdefault((run.dataset, run.algorithm, run.test_domains, run.trial), {})[run] = resolved[run]
    races = []
    for runs in by_place.values():
        records = [step + 1 for step in next(iter(runs.values())).record_steps()]
        races.append(Race(runs, plan_rungs(records) if len(runs) > 1 else (), tuple(selection)))
    return races


def plan_rungs(records: Sequence[int]) -> tuple[int, ...]:
    """Return the records after which draws are compared: the first after each tenth of the steps, from 2/10 on.

    Args:
        records: the numbers of updates after which a run has a record; the last is its end.
    """
    steps = records[-1]
    nearest = (next(step for step in records if step >= share * steps - 1e-6) for share in _SHARES)
    return tuple(step for step in dict.fromkeys(nearest) if step < steps)


def simulate_race(race: Race) -> dict[PlannedRun, str]:
    """Return the draws that the race would stop, each with the reason, from the records of runs that were not raced."""
    return {run: reason for run, (_, reason) in _simulate(race).items()}


def count_raced_steps(race: Race) -> int:
    """Return the number of steps that the race would take, from the records of runs that were not raced."""
    stops = _simulate(race)
    return sum(stops[run][0] if run in stops else race.steps for run in race.runs)


def _simulate(race: Race) -> dict[PlannedRun, tuple[int, str]]:
    entrants = [run for run in race.runs if RunFolder(run.folder).is_done]
    stopped: dict[PlannedRun, tuple[int, str]] = {}
    for rung in race.rungs:
        losers = race.find_losers(rung, [run for run in entrants if run not in stopped])
        stopped |= {run: (rung, reason) for run, reason in losers.items()}
    return stopped
