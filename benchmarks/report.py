"""Time of a report on 10,000 records of 500 runs, from the folders to Markdown.

    python benchmarks/report.py

The runs are synthetic, with records as large as real ones of MAT (1.5 kB): 4 datasets, 5 methods, 3 trials, and as many
draws as the number of runs allows. Each part is timed separately, without imports; the fastest round counts.
"""

import argparse
import itertools
import json
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from domainwise.reports import FORMATS, build_report
from domainwise.selection import SELECTIONS
from domainwise.selection.runs import read_runs

T = TypeVar("T")
DATASETS = {
    "pacs": ("art_painting", "cartoon", "photo", "sketch"),
    "vlcs": ("Caltech101", "LabelMe", "SUN09", "VOC2007"),
    "office_home": ("Art", "Clipart", "Product", "Real World"),
    "colored_mnist": ("+90%", "+80%", "-90%"),
}
METHODS = ("erm", "at", "irm", "mat", "ldat")
STEPS = range(0, 6000, 300)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        size = write_runs(Path(folder), options.runs)
        print(f"{options.runs} runs, {options.runs * len(STEPS)} records, {size / 1e6:.1f} MB")
        read, runs = measure(options.rounds, lambda: read_runs([Path(folder)]))
    select, _ = measure(options.rounds, lambda: SELECTIONS["training_domain"](runs.frame))
    build, report = measure(options.rounds, lambda: build_report(runs, compare_to="erm"))
    write, text = measure(options.rounds, lambda: FORMATS["markdown"](report))
    print(f"read {read:.3f} s, select and build tables {build:.3f} s (select {select:.3f} s), markdown {write:.3f} s")
    print(f"total {read + build + write:.3f} s, for {len(report.tables)} tables, {len(text.splitlines())} lines")


def write_runs(folder: Path, count: int) -> int:
    """Write run folders as training does; return the size of their records in bytes."""
    generator = random.Random(0)
    seeds = ((draw, trial) for draw in itertools.count() for trial in range(3))
    all_runs = (
        (dataset, method, tested, draw, trial)
        for draw, trial in seeds
        for dataset, domains in DATASETS.items()
        for method in METHODS
        for tested in domains
    )
    size = 0
    for number, (dataset, method, tested, draw, trial) in enumerate(itertools.islice(all_runs, count)):
        lines = [
            json.dumps(make_record(generator, step, dataset, method, tested, draw, trial)) + "\n" for step in STEPS
        ]
        run = folder / f"run_{number:04d}"
        run.mkdir()
        (run / "records.jsonl").write_text("".join(lines))
        (run / "config.json").write_text(json.dumps({"schema": 1, "config": {"steps": STEPS[-1] + 1}, "data": {}}))
        (run / "done").touch()
        size += sum(map(len, lines))
    return size


def make_record(
    generator: random.Random, step: int, dataset: str, method: str, tested: str, draw: int, trial: int
) -> dict[str, object]:
    domains = DATASETS[dataset]
    trained = [name for name in domains if name != tested]
    return {
        "schema": 1,
        "step": step,
        "dataset": dataset,
        "algorithm": method,
        "trial_seed": trial,
        "hparams_seed": draw,
        "train_domains": trained,
        "validation_domains": [],
        "test_domains": [tested],
        "roles": "left_out",
        "hparams": {"batch_size": 64, "dropout": 0.1, "lr": generator.random() * 1e-4, "epsilon": 0.1, "count": 10},
        "accuracy": {
            name: {"holdout": generator.random(), **({"main": generator.random()} if name == tested else {})}
            for name in domains
        },
        "loss": generator.random(),
        "seconds_per_step": generator.random(),
        "perturbation": {
            name: {
                "norm": generator.random(),
                "weights": [generator.random() for _ in range(10)],
                "singular_values": [generator.random() for _ in range(5)],
            }
            for name in trained
        },
    }


def measure(rounds: int, work: Callable[[], T]) -> tuple[float, T]:
    """Return the seconds of the fastest round, and the result."""
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        result = work()
        seconds.append(time.perf_counter() - start)
    return min(seconds), result


if __name__ == "__main__":
    main()
