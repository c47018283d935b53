"""Every method on the embedded data: accuracy on the training domains' holdout and under unseen shifts.

Each with its defaults and what suits the data, but for three that stay at chance with those; their settings were chosen
by training-domain holdout on seed 0 alone.

    python benchmarks/all_methods.py
    python benchmarks/all_methods.py --methods erm mmd --seeds 1 -H penalty_weight=0.1

Finished runs are kept: a second call prints at once, and one that was stopped goes on.
"""

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

from domainwise.algorithms import ALGORITHMS
from domainwise.cli.algorithms import as_markdown
from domainwise.cli.words import pairs
from domainwise.runs import RunConfig, RunResult
from domainwise.sweeps.local import run_all

SUITED: dict[str, dict[str, Any]] = {
    "at": {"epsilon": 0.1, "step_size": 0.1, "start": "zero"},
    "mmd": {"penalty_weight": 0.01},
    "rsc": {"feature_drop": 0.1, "sample_drop": 0.1},
}
SHOWN = ("shift_0", "shift_4", "shift_8", "shift_12", "shift_16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=list(ALGORITHMS), choices=list(ALGORITHMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2, help="processes, of one thread each")
    parser.add_argument("--output", type=Path, default=Path("runs/all-methods"))
    parser.add_argument("-H", "--hparam", action="append", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    given = pairs(options.hparam, "--hparam")
    configs = []
    for seed in range(options.seeds):
        for name in options.methods:
            hparams = {**SUITED.get(name, {}), **ALGORITHMS[name].Hparams.parse(given)}
            settings = "".join(f"-{key}={value}" for key, value in hparams.items())
            folder = options.output / f"{name}{settings}-{options.steps}-seed{seed}"
            configs.append(
                RunConfig(
                    algorithm=name,
                    hparams=hparams,
                    trial_seed=seed,
                    steps=options.steps,
                    record_every=options.steps,
                    device="cpu",
                    output=folder,
                )
            )

    def show(number: int, result: RunResult) -> None:
        print(f"{number + 1}/{len(configs)} {result.folder.name}: holdout {holdout(result):.3f}", file=sys.stderr)

    results = run_all(configs, workers=options.workers, on_done=show)
    rows = []
    for name in options.methods:
        of_method = [result for result in results if result.config.algorithm_name == name]
        settings = ", ".join(f"{key} {value}" for key, value in {**SUITED.get(name, {}), **given}.items())
        shifted = [
            statistics.fmean(result.last["accuracy"][domain]["main"] for result in of_method) for domain in SHOWN
        ]
        at_12 = [f"{result.last['accuracy']['shift_12']['main']:.3f}"[1:] for result in of_method]
        held = statistics.fmean(map(holdout, of_method))
        rows.append((f"`{name}`", settings, *(f"{value:.3f}" for value in (held, *shifted)), " ".join(at_12)))
    head = ("method", "settings", "holdout", *(name.replace("_", " ") for name in SHOWN), "shift 12, each seed")
    print(as_markdown(head, rows))


def holdout(result: RunResult) -> float:
    return statistics.fmean(result.last["accuracy"][name]["holdout"] for name in result.last["train_domains"])


if __name__ == "__main__":
    main()
