"""What a sweep costs besides training: many runs of one step each with the local engine.

    python benchmarks/sweep_overhead.py --runs 200 --workers 2

Prints the seconds until the first run is done (which starts the fork server and imports torch in it), and the seconds
per run after that: data, network, one step, evaluation of every domain, and six files synced to disk.
"""

import argparse
import tempfile
import time
from pathlib import Path

from domainwise.sweeps.engine import EngineCallbacks
from domainwise.sweeps.local_engine import run_all
from domainwise.training import RunConfig, RunResult


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    times: list[float] = []

    def on_done(run: int, result: RunResult) -> None:
        times.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        # Five trials, as in a sweep: the data is drawn anew for each.
        configs = [
            RunConfig(algorithm="mat", steps=1, trial_seed=5 * run // options.runs, output=Path(folder) / str(run))
            for run in range(options.runs)
        ]
        start = time.perf_counter()
        run_all(configs, EngineCallbacks(on_done=on_done), workers=options.workers)
    first, rest = times[0] - start, times[-1] - times[0]
    print(f"{options.runs} runs of one step, {options.workers} workers")
    print(f"first run done after {first:.1f} s; then {rest / (options.runs - 1):.2f} s per run, wall time")
    print(f"worker time per run: {rest / (options.runs - 1) * options.workers:.2f} s")


if __name__ == "__main__":
    main()
