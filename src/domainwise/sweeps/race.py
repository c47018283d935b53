"""Racing: of the draws of a search, those that fall behind early are stopped, and the others are trained to the end.

Successive halving (Jamieson and Talwalkar, 2016) on the records that runs have anyway. A run pauses at a rung and
resumes to the bit, so a survivor is the run that it would have been without a race.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, zip_longest

import polars as pl

from domainwise.selection import SELECTIONS, read_runs
from domainwise.storage.run_folder import RunFolder
from domainwise.storage.sweep_folder import PlannedRun
from domainwise.sweeps.plan import Plan
from domainwise.training.config import RunConfig
from domainwise.training.registry import DatasetCache, resolve_config

# A race of eight or more draws takes at most this share of the steps of the full search.
MAX_SHARE = 0.45
# All draws are trained to about a fifth of the steps, half of them to two fifths, a quarter to the end: that share.
_RUNGS = (0.2, 0.4)
# Earlier records are of networks that have hardly learned anything.
_EARLIEST = 0.1
# What each rule looks at, for the reasons.
_SCORES: Mapping[str, str] = {"attacked_holdout": "holdout under attack", "ood_validation": "validation"}


@dataclass(frozen=True)
class Rung:
    """A point at which a race stops draws.

    Args:
        step: number of updates, all draws have a record there.
        keep: number of draws that go on.
        is_warmup: the radius is still growing, so draws that differ only in it are kept or stopped together.
    """

    step: int
    keep: int
    is_warmup: bool = False


@dataclass(frozen=True)
class Race:
    """The draws of one method on one dataset with the same test domains and trial.

    Args:
        runs: one per draw, with resolved configs.
        rungs: none if the draws are all trained to the end.
        rules: the selection rules that take turns to choose who goes on.
    """

    runs: Plan
    rungs: tuple[Rung, ...]
    rules: tuple[str, ...]

    @property
    def steps(self) -> int:
        steps = next(iter(self.runs.values())).steps
        assert steps is not None
        return steps

    @property
    def expected_steps(self) -> list[int]:
        """The number of steps of each draw, the most first, if no run fails."""
        keeps = [min(rung.keep, len(self.runs)) for rung in self.rungs]
        ends = [*(rung.step for rung in self.rungs), self.steps]
        counts = [before - after for before, after in zip([len(self.runs), *keeps], [*keeps, 0], strict=True)]
        return [end for end, count in reversed([*zip(ends, counts, strict=True)]) for _ in range(count)]

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
            return f"no race for {name}: no record between {_EARLIEST:.0%} and about a third of the {self.steps} steps"
        rungs = ", ".join(f"{rung.keep} after {rung.step}" for rung in self.rungs)
        share = sum(self.expected_steps) / (self.steps * len(self.runs))
        return f"race for {name}: {len(self.runs)} draws, {rungs} of {self.steps} steps ({share:.0%} of a full search)"

    def find_losers(self, rung: Rung, entrants: Sequence[PlannedRun]) -> dict[PlannedRun, str]:
        """Return the draws that are stopped at a rung, each with the reason, by the records up to it.

        No draw is stopped if none has the accuracies that the rules look at.

        Args:
            entrants: the runs that have reached the rung.
        """
        if len(entrants) <= rung.keep:
            return {}
        runs = {str(run.folder): run for run in entrants}
        records = read_runs([run.folder for run in entrants], unfinished=True, keep_duplicates=True).frame
        frame = records.filter(pl.col("step") < rung.step)
        scores = _rank(frame, self.rules[0])
        orders = [scores, *(_rank(frame, rule) for rule in self.rules[1:])]
        # Each rule in turn names its best of those that are left.
        in_turn = [name for name in chain.from_iterable(zip_longest(*orders)) if name is not None]
        groups = self._group_by_radius()
        survivors: dict[str, None] = {}
        for name in in_turn:
            if len(survivors) < rung.keep and name not in survivors:
                group = groups[runs[name]] if rung.is_warmup else [runs[name]]
                survivors |= dict.fromkeys(str(run.folder) for run in group if str(run.folder) in runs)
        if not survivors:
            return {}
        losers = [name for name in runs if name not in survivors]
        highest = max((scores[name] for name in losers if name in scores), default=0.0)
        # A survivor with a lower score owes that to another rule, or to a draw that differs only in the radius.
        lowest = min((scores[name] for name in survivors if scores.get(name, -1.0) >= highest), default=highest)
        label = _SCORES.get(self.rules[0], "holdout")
        reasons = {}
        for name in losers:
            score = f"{label} {100 * scores[name]:.1f}" if name in scores else f"no {label} accuracy"
            text = f"after {rung.step} of {self.steps} steps: {score}, survivors from {100 * lowest:.1f}"
            reasons[runs[name]] = text
        return reasons

    def _group_by_radius(self) -> dict[PlannedRun, list[PlannedRun]]:
        """Return for each run those that differ from it only in the radius, with itself."""
        groups: dict[str, list[PlannedRun]] = {}
        keys = {}
        for run, config in self.runs.items():
            hparams = {name: value for name, value in config.hparams.items() if name != "epsilon"}
            keys[run] = json.dumps([hparams, config.batch_size, config.dropout], sort_keys=True, default=str)
            groups.setdefault(keys[run], []).append(run)
        return {run: groups[key] for run, key in keys.items()}

    def _add_warmup(self) -> "Race":
        """Return the race with the rungs that the warm-up of the radius calls for."""
        shares = [config.hparams.get("warmup") for config in self.runs.values()]
        warmup = max((round(share * self.steps) for share in shares if isinstance(share, float)), default=0)
        has_radii = any(len(group) > 1 for group in self._group_by_radius().values())
        if not self.rungs or not has_radii or warmup <= self.rungs[0].step:
            return self
        rungs = [replace(rung, is_warmup=rung.step < warmup) for rung in self.rungs]
        if rungs[-1].is_warmup:
            config = next(iter(self.runs.values()))
            later = [step + 1 for step in config.record_steps() if warmup <= step + 1 < self.steps]
            rungs += [Rung(step, rungs[-1].keep) for step in later[:1]]
        return replace(self, rungs=tuple(rungs))


def plan_races(plan: Plan, selection: Sequence[str], datasets: DatasetCache | None = None) -> list[Race]:
    """Return the races of a sweep, one per dataset, method, test domains and trial.

    Args:
        selection: the sweep's selection rules. `one_standard_error` also needs the best draw by `training_domain`,
            which its threshold is measured from.
    """
    cache = datasets or DatasetCache()
    rules: dict[str, None] = {}
    for rule in selection:
        rules |= dict.fromkeys(("training_domain", rule) if rule == "one_standard_error" else (rule,))
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
        races.append(Race(runs, plan_rungs(records, len(runs)), tuple(rules))._add_warmup())
    return races


def plan_rungs(records: Sequence[int], draws: int) -> tuple[Rung, ...]:
    """Return the rungs of a race without regard to the radius.

    Of the records of a run, those closest to 1/5 and 2/5 of the steps with which the race keeps to its share. If there
    is no such pair, a single rung, as late as possible.

    Args:
        records: the numbers of updates after which a run has a record; the last is its end.
    """
    steps = records[-1]
    half, quarter = (draws + 1) // 2, max(1, draws // 4)
    limit = max(MAX_SHARE * draws, 0.2 * (draws + half) + 0.6 * quarter) * steps + 1e-6
    candidates = [step for step in records if _EARLIEST * steps <= step < steps]

    def count_steps(rungs: tuple[Rung, ...]) -> int:
        total, before, entrants = 0, 0, draws
        for rung in (*rungs, Rung(steps, 0)):
            total, before, entrants = total + entrants * (rung.step - before), rung.step, rung.keep
        return total

    def distance(rungs: tuple[Rung, ...]) -> float:
        return sum(abs(rung.step - share * steps) for rung, share in zip(rungs, _RUNGS, strict=True))

    if draws < 2:
        return ()
    near = {step for share in _RUNGS for step in sorted(candidates, key=lambda step: abs(step - share * steps))[:8]}
    pairs = [(Rung(one, half), Rung(two, quarter)) for one, two in combinations(sorted(near), 2)] if draws > 2 else []
    if pairs := [rungs for rungs in pairs if count_steps(rungs) <= limit]:
        return min(reversed(pairs), key=distance)
    for keep in dict.fromkeys((quarter, 1)):
        if single := [step for step in candidates if count_steps((Rung(step, keep),)) <= limit]:
            return (Rung(single[-1], keep),)
    return ()


def simulate_race(race: Race) -> dict[PlannedRun, str]:
    """Return the draws that the race would stop, each with the reason, from the records of runs that were not raced."""
    entrants = [run for run in race.runs if RunFolder(run.folder).is_done]
    stopped: dict[PlannedRun, str] = {}
    for rung in race.rungs:
        stopped |= race.find_losers(rung, [run for run in entrants if run not in stopped])
    return stopped


def _rank(frame: pl.DataFrame, rule: str) -> dict[str, float]:
    """Return the score of every run by which the rule would select it, in the order in which it would."""
    scores: dict[str, float] = {}
    while not (selected := SELECTIONS[rule](frame)).is_empty():
        scores[selected["run"][0]] = selected["score"][0]
        frame = frame.filter(pl.col("run") != selected["run"][0])
    return scores
