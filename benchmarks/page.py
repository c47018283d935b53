"""Size of the page of 1,000 runs, and the time to build it.

    python benchmarks/page.py

The runs are those of `benchmarks/report.py` with 20 records each, the settings of MAT, and a different radius per draw.
Limits: 5 MB and 10 seconds.
"""

import argparse
import json
import random
import tempfile
import time
from pathlib import Path

from domainwise.reports.html import read_page_data, render_page
from report import STEPS, write_runs

MAX_BYTES, MAX_SECONDS = 5_000_000, 10.0
_SETTINGS = {"network": "resnet18", "weights": "IMAGENET1K_V1", "batch_norm": "frozen", "augment": True}
_HPARAMS = {
    "variant": "standard",
    "step_size": 0.5,
    "norm": "l2",
    "ascent": "normalized",
    "loss_cap": None,
    "schedule": "two_pass",
    "order": "joint",
    "objective": "mean",
    "clean_weight": 0.0,
    "count": 10,
    "weight_step_size": 0.001,
    "weights": "domain",
    "normalized_over": "perturbation",
    "start": "projected",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--output", type=Path, help="File to write the page to.")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        size = write_runs(Path(folder), options.runs)
        write_settings(Path(folder))
        print(f"{options.runs} runs, {options.runs * len(STEPS)} records, {size / 1e6:.1f} MB")
        start = time.perf_counter()
        data = read_page_data([Path(folder)])
        read = time.perf_counter() - start
        text = render_page(data)
        seconds = time.perf_counter() - start
    length = len(text.encode())
    print(f"read {read:.2f} s, total {seconds:.2f} s, page {length / 1e6:.2f} MB")
    if options.output:
        options.output.write_text(text)
    if length > MAX_BYTES or seconds > MAX_SECONDS:
        raise SystemExit(f"more than {MAX_BYTES / 1e6:g} MB or {MAX_SECONDS:g} s")


def write_settings(folder: Path) -> None:
    """Give every run a realistic config, with the same radius on all test domains of a draw."""
    for run in folder.iterdir():
        with open(run / "records.jsonl") as file:
            record = json.loads(file.readline())
        draw = random.Random(repr([record[key] for key in ("dataset", "algorithm", "trial_seed", "hparams_seed")]))
        is_adversarial = record["algorithm"] in ("at", "mat", "ldat")
        hparams = {"lr": 10 ** draw.uniform(-5, -3.5), "weight_decay": 10 ** draw.uniform(-6, -2)}
        hparams |= {"epsilon": 10 ** draw.uniform(-1, 1), **_HPARAMS} if is_adversarial else {}
        named = ("dataset", "algorithm", "train_domains", "test_domains", "trial_seed", "hparams_seed")
        config = {key: record[key] for key in named} | _SETTINGS | {"hparams": hparams, "steps": STEPS[-1] + 1}
        data = {"classes": [f"class {number}" for number in range(7)]}
        (run / "config.json").write_text(json.dumps({"schema": 1, "config": config, "data": data}))


if __name__ == "__main__":
    main()
