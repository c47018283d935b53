"""What common random numbers are worth: the spread of method - ERM over trials, with and without them.

Both seedings get the same number of runs. A difference is that of a trial: the mean over its test domains. Photographs
have the settings of `domainwise reproduce --scale cpu`: the paper's hyperparameters and solvers.

    python benchmarks/pairing.py silhouettes --trials 10 -o runs/pairing
    python benchmarks/pairing.py pacs --test-domain sketch --trials 8 --data-dir DATA --weights FILE -o runs/pairing
    python benchmarks/pairing.py DATA/OfficeCaltech10 --test-domain amazon --trials 8 --weights FILE -o runs/pairing

Rerun a command to continue it.
"""

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from scipy.stats import f

from domainwise import SweepSpec, run_sweep
from domainwise.reports.formats import format_markdown_table
from domainwise.reproduction.recipe import find_scale
from domainwise.selection import SELECTIONS, read_runs
from domainwise.selection.statistics import estimate_mean, pair_trials
from domainwise.sweeps.runner import SweepCallbacks, make_engine
from domainwise.training.registry import dataset_name

SEEDINGS = ("domainbed", "common")
SYNTHETIC: dict[str, Any] = {"steps": 300, "record_every": 300}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--method", action="append", default=[], help="default: mat and ldat")
    parser.add_argument("--epsilon", default="0.1", help="radius, the paper's by default")
    parser.add_argument("--test-domain", action="append", default=[])
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--data-dir")
    parser.add_argument("--weights")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", "-o", type=Path, default=Path("runs/pairing"))
    options = parser.parse_args()
    methods = options.method or ["mat", "ldat"]
    name = dataset_name(options.dataset)
    is_synthetic = name.startswith("silhouettes")
    differences = {}
    for seeding in SEEDINGS:
        settings = {**(SYNTHETIC if is_synthetic else get_photo_settings()), "seeding": seeding}
        if options.weights:
            settings["weights"] = options.weights
        spec = SweepSpec(
            (options.dataset,),
            ("erm", *methods),
            trials=options.trials,
            test_domains=tuple(options.test_domain),
            hparams={"epsilon": float(options.epsilon)},
            settings=settings,
            space="domainbed" if is_synthetic else "paper:pacs",
        )
        folder = options.output / f"{name}-{seeding}"
        run_sweep(
            spec,
            folder,
            engine=make_engine(workers=options.workers),
            placement={"device": "cpu", **({"data_dir": options.data_dir} if options.data_dir else {})},
            callbacks=SweepCallbacks(on_status=print_status),
        )
        selected = SELECTIONS["training_domain"](read_runs([folder]).frame)
        own = {each: selected.filter(pl.col("algorithm") == each) for each in ("erm", *methods)}
        differences[seeding] = {method: pair_trials(own[method], own["erm"]).differences for method in methods}
    rows = []
    for method in methods:
        apart, paired = (differences[seeding][method] for seeding in SEEDINGS)
        ratio = statistics.variance(apart) / statistics.variance(paired)
        # The ratio of two variances of Gaussian samples has an F distribution.
        low, high = (ratio / f.ppf(level, len(apart) - 1, len(paired) - 1) for level in (0.975, 0.025))
        cells = [text for points in (apart, paired) for text in describe(points)]
        rows.append((f"{method} - erm", str(len(paired)), *cells, f"{ratio:.1f} ({low:.1f} to {high:.1f})"))
    header = ("", "trials", "own numbers", "std", "common numbers", "std", "variance ratio (95 % interval)")
    print(f"{name}, radius {options.epsilon}, points\n\n{format_markdown_table(header, rows)}")


def get_photo_settings() -> dict[str, Any]:
    settings = find_scale("cpu").get_settings("pacs")
    image_size = settings.pop("image_size")
    return {**settings, "dataset_options": {"image_size": image_size}}


def describe(points: Sequence[float]) -> tuple[str, str]:
    """Return the mean with its standard error, and the standard deviation of one trial."""
    estimate = estimate_mean(points)
    return f"{estimate.mean:+.2f} ± {estimate.error or 0.0:.2f}", f"{statistics.stdev(points):.2f}"


def print_status(run: Any, status: Any) -> None:
    if status.state in ("done", "failed"):
        print(f"{run.name}: {status.state} {status.error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
