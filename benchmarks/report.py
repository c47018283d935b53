"""How long a report takes: 10,000 records of 500 runs, from the folders to markdown.

    python benchmarks/report.py

The runs are made up, each record about as large as a real one of MAT (1.5 kB): 4 datasets, 5 methods, 3 trials, and
draws as far as the runs go. Every part is timed on its own, the best of the rounds counts, and imports do not.
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

from domainwise.reports import FORMATS, make_report
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
        read, runs = best(options.rounds, lambda: read_runs([Path(folder)]))
    select, _ = best(options.rounds, lambda: SELECTIONS["training_domain"](runs.frame))
    make, report = best(options.rounds, lambda: make_report(runs, ["training_domain"], versus="erm"))
    write, text = best(options.rounds, lambda: FORMATS["markdown"](report))
    print(f"read {read:.3f} s, select and make tables {make:.3f} s (select {select:.3f} s), markdown {write:.3f} s")
    print(f"all {read + make + write:.3f} s, for {len(report.tables)} tables, {len(text.splitlines())} lines")


def write_runs(folder: Path, count: int) -> int:
    """Write run folders as training leaves them; returns the bytes of their records."""
    chance = random.Random(0)
    seeds = itertools.product(range(10), range(3))
    all_runs = (
        (dataset, method, tested, draw, trial)
        for draw, trial in seeds
        for dataset, domains in DATASETS.items()
        for method in METHODS
        for tested in domains
    )
    size = 0
    for number, (dataset, method, tested, draw, trial) in enumerate(itertools.islice(all_runs, count)):
        lines = [json.dumps(record(chance, step, dataset, method, tested, draw, trial)) + "\n" for step in STEPS]
        run = folder / f"run_{number:04d}"
        run.mkdir()
        (run / "records.jsonl").write_text("".join(lines))
        (run / "config.json").write_text(json.dumps({"schema": 1, "config": {"steps": STEPS[-1] + 1}, "data": {}}))
        (run / "done").touch()
        size += sum(map(len, lines))
    return size


def record(
    chance: random.Random, step: int, dataset: str, method: str, tested: str, draw: int, trial: int
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
        "hparams": {"batch_size": 64, "dropout": 0.1, "lr": chance.random() * 1e-4, "epsilon": 0.1, "count": 10},
        "accuracy": {
            name: {"holdout": chance.random(), **({"main": chance.random()} if name == tested else {})}
            for name in domains
        },
        "loss": chance.random(),
        "seconds_per_step": chance.random(),
        "perturbation": {
            name: {
                "norm": chance.random(),
                "weights": [chance.random() for _ in range(10)],
                "singular_values": [chance.random() for _ in range(5)],
            }
            for name in trained
        },
    }


def best(rounds: int, work: Callable[[], T]) -> tuple[float, T]:
    """Seconds of the fastest round, and what it gave."""
    seconds = []
    for _ in range(rounds):
        start = time.perf_counter()
        outcome = work()
        seconds.append(time.perf_counter() - start)
    return min(seconds), outcome


if __name__ == "__main__":
    main()
