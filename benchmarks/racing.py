"""Racing against the full random search, in pairs: how many steps it takes, and what the selected models lose.

Runs the full search, and simulates the race on its records: a paused run is the same run, so a real race stops the same
draws for the same reasons (`tests/unit/sweeps/test_race.py`). Rerun a command to resume; `--report-only` prints the
table of what is finished.

    python benchmarks/racing.py --dataset silhouettes --steps 300 --trials 10 -o runs/racing
    python benchmarks/racing.py --dataset silhouettes --steps 300 --trials 30 --skip-trials 10 -o runs/racing
    python benchmarks/racing.py --dataset DATA/OfficeCaltech10 --image-size 64 --network mobilenet_v2 --weights FILE \
        --steps 200 --trials 5 -o runs/racing-office
"""

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import polars as pl

from domainwise.cli.console import interruptible
from domainwise.reports.formats import format_markdown_table
from domainwise.selection import SELECTIONS, read_runs
from domainwise.selection.verdicts import Judgement, judge_differences
from domainwise.storage.files import write_atomic
from domainwise.storage.run_folder import RunFolder, RunStatus
from domainwise.storage.sweep_folder import PlannedRun
from domainwise.sweeps.plan import plan_sweep
from domainwise.sweeps.race import Race, count_raced_steps, plan_races, simulate_race
from domainwise.sweeps.runner import SweepCallbacks, make_engine, run_sweep
from domainwise.sweeps.spec import SweepSpec

METHODS = ("erm", "mat", "coral", "mixup")
RULE = "training_domain"
ALL = "all"


@dataclass(frozen=True)
class Pair:
    """What the full search and the race select for one method, trial and test domains.

    Args:
        share: steps of the race, as a share of those of the full search.
        full, raced: accuracy of the selected model on the test domains, in percent.
        draws: the draws that they select.
    """

    algorithm: str
    test_domains: tuple[str, ...]
    trial: int
    share: float
    full: float
    raced: float
    draws: tuple[int, int]


def main() -> None:
    options = parse_options()
    spec = make_spec(options)
    placement = {"device": "cpu"}
    if not options.report_only:
        with interruptible() as is_interrupted:
            engine = make_engine("local", workers=options.workers)
            callbacks = SweepCallbacks(on_status=show_status, should_stop=is_interrupted)
            run_sweep(spec, options.output, engine=engine, placement=placement, callbacks=callbacks)
    races = plan_races(plan_sweep(spec, options.output, placement=placement), spec.selection)
    races = [race for race in races if next(iter(race.runs)).trial >= options.skip_trials]
    pairs = [pair for race in races if (pair := compare(race)) is not None]
    lines = "".join(f"{json.dumps(asdict(pair))}\n" for pair in pairs)
    write_atomic(options.output / "pairs.jsonl", lines.encode())
    print(f"{len(pairs)} of {len(races)} races; {races[0].describe()}\n")
    print(format_pairs(pairs, options.margin))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="silhouettes")
    parser.add_argument("--algorithm", action="append", help=f"repeatable (default: {', '.join(METHODS)})")
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--skip-trials", type=int, default=0, help="judge by the trials after the first ones only")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--records", type=int, default=10, help="number of records per run")
    parser.add_argument("--batch-size", type=int, help="(default: drawn)")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--network")
    parser.add_argument("--weights")
    parser.add_argument("--test-domain", action="append", default=[])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--margin", type=float, default=1.0, help="points without practical importance")
    parser.add_argument("--report-only", action="store_true")
    parser.add_argument("-o", "--output", type=Path, required=True)
    return parser.parse_args()


def make_spec(options: argparse.Namespace) -> SweepSpec:
    settings = {
        "steps": options.steps,
        "record_every": max(1, options.steps // options.records),
        "batch_size": options.batch_size,
        "network": options.network,
        "weights": options.weights,
    }
    settings = {name: value for name, value in settings.items() if value is not None}
    if options.image_size:
        settings["dataset_options"] = {"image_size": options.image_size}
    return SweepSpec(
        (options.dataset,),
        tuple(options.algorithm or METHODS),
        selection=(RULE,),
        draws=options.draws,
        trials=options.trials,
        test_domains=tuple(options.test_domain),
        settings=settings,
    )


def show_status(run: PlannedRun, status: RunStatus) -> None:
    if status.state in ("done", "failed"):
        print(f"{run.name}: {status.state} {status.error}".strip(), file=sys.stderr, flush=True)


def compare(race: Race) -> Pair | None:
    """Compare a full search with the race of its draws; None unless all its runs are done."""
    if not all(RunFolder(run.folder).is_done for run in race.runs):
        return None
    stopped = {str(run.folder): run for run in simulate_race(race)}
    frame = read_runs([run.folder for run in race.runs]).frame
    full, raced = SELECTIONS[RULE](frame), SELECTIONS[RULE](frame.filter(~pl.col("run").is_in(list(stopped))))
    run = next(iter(race.runs))
    return Pair(
        algorithm=run.algorithm,
        test_domains=run.test_domains,
        trial=run.trial,
        share=count_raced_steps(race) / (race.steps * len(race.runs)),
        full=100 * statistics.fmean(full["accuracy"].to_list()),
        raced=100 * statistics.fmean(raced["accuracy"].to_list()),
        draws=(full["draw"][0], raced["draw"][0]),
    )


def format_pairs(pairs: Sequence[Pair], margin: float) -> str:
    """Return the table: one row per method, and one of all methods together."""
    methods = [*dict.fromkeys(pair.algorithm for pair in pairs)]
    groups = {name: [pair for pair in pairs if pair.algorithm == name] for name in methods}
    if len(methods) > 1:
        groups[ALL] = list(pairs)
    # Together, the methods are one claim; method by method, as many as there are.
    judgements = judge_differences({name: average_over_domains(groups[name]) for name in methods}, margin=margin)
    judgements |= judge_differences({ALL: average_over_domains(pairs)}, margin=margin)
    rows = [format_row(name, groups[name], judgements[name]) for name in groups]
    header = ("method", "trials", "steps", "full search", "race", "race - full", "same draw", "verdict")
    return format_markdown_table(header, rows, 0)


def format_row(name: str, pairs: Sequence[Pair], judgement: Judgement) -> tuple[str, ...]:
    full, raced, share = (statistics.fmean(getattr(pair, key) for pair in pairs) for key in ("full", "raced", "share"))
    interval = "" if judgement.interval is None else " [{:+.2f}, {:+.2f}]".format(*judgement.interval)
    same = sum(pair.draws[0] == pair.draws[1] for pair in pairs)
    needed = f", {judgement.trials_needed} trials needed" if judgement.trials_needed else ""
    return (
        *(name, str(judgement.trials), f"{share:.0%}", f"{full:.1f}", f"{raced:.1f}"),
        *(f"{raced - full:+.2f}{interval}", f"{same} of {len(pairs)}", f"{judgement.verdict}{needed}"),
    )


def average_over_domains(pairs: Sequence[Pair]) -> list[float]:
    """Return the mean difference race - full per trial, over methods and test domains."""
    by_trial: dict[int, list[float]] = {}
    for pair in pairs:
        by_trial.setdefault(pair.trial, []).append(pair.raced - pair.full)
    return [statistics.fmean(differences) for differences in by_trial.values()]


if __name__ == "__main__":
    main()
