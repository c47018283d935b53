"""What ERM needs on PACS with MobileNetV2: accuracy against CPU minutes, one recipe per line, one change each.

The recipe is chosen by time and holdout accuracy. Accuracy on the held-out domain is shown, and takes no part. All
recipes share the batches and the start of one trial that no study has. Each finished run adds one line to a file of
records, so repeating a command resumes it.

    python benchmarks/erm_recipes.py run --data-dir DATA --weights FILE
    python benchmarks/erm_recipes.py table --picture docs/results/erm_recipes.png
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib.pyplot as plt

from domainwise import RunConfig, train
from domainwise.reports.formats import format_markdown_table

RECORDS = Path("docs/results/erm_recipes.jsonl")
TARGET, TRIAL = "sketch", 100
LR = 1e-4
BASE: dict[str, Any] = {
    "network": "mobilenet_v2",
    "dataset_options": {"image_size": 96},
    "batch_size": 32,
    "steps": 1200,
    "record_every": 150,
    "augment": True,
}
# The stem and the first three of MobileNetV2's seventeen blocks: half of the work at high resolution.
EARLY = tuple(f"features.{index}" for index in range(4))
RECIPES: dict[str, dict[str, Any]] = {
    "96 px, 3 x 32 images, rate .0001": {},
    "64 px": {"dataset_options": {"image_size": 64}},
    "112 px": {"dataset_options": {"image_size": 112}},
    "128 px": {"dataset_options": {"image_size": 128}},
    "3 x 16 images": {"batch_size": 16},
    "rate .00005": {"hparams": {"lr": 5e-5}},
    "rate .0003": {"hparams": {"lr": 3e-4}},
    "cosine schedule": {"lr_schedule": "cosine"},
    "live batch norm": {"batch_norm": "live"},
    "average of weights (SMA)": {"average": "sma"},
    "early layers frozen": {"freeze": EARLY},
    "strong augmentation": {"augment": "strong"},
}
Record = dict[str, Any]


def run_recipe(name: str, settings: Mapping[str, Any], data_dir: str, weights: str) -> Record:
    """Train one recipe; the record has its accuracies with the CPU minutes that training took until then."""
    minutes: list[float] = []
    started = time.process_time()
    with tempfile.TemporaryDirectory() as output:
        run = train(
            RunConfig(
                dataset=Path(data_dir) / "PACS",
                algorithm="erm",
                test_domains=(TARGET,),
                trial_seed=TRIAL,
                weights=weights,
                threads=1,
                keep="best",
                output=Path(output) / "run",
                **{"hparams": {"lr": LR}, **BASE, **settings},
            ),
            on_record=lambda _: minutes.append((time.process_time() - started) / 60),
        )
    points = [
        {
            "step": record["step"],
            "minutes": round(spent, 2),
            "holdout": fmean(record["accuracy"][domain]["holdout"] for domain in record["train_domains"]),
            "test": 0.8 * record["accuracy"][TARGET]["main"] + 0.2 * record["accuracy"][TARGET]["holdout"],
        }
        for record, spent in zip(run.records, minutes, strict=True)
    ]
    return {"recipe": name, "points": points}


def run(options: argparse.Namespace) -> None:
    done = {record["recipe"] for record in read_records(options.records)}
    todo = {name: settings for name, settings in RECIPES.items() if name not in done}
    print(f"{len(RECIPES)} recipes, {len(done)} done", file=sys.stderr, flush=True)
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(run_recipe, *each, options.data_dir, options.weights) for each in todo.items()]
        for future in as_completed(futures):
            record = future.result()
            with options.records.open("a") as file:
                file.write(json.dumps(record) + "\n")
            print(record["recipe"], record["points"][-1], file=sys.stderr, flush=True)


def read_records(file: Path) -> list[Record]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def print_table(options: argparse.Namespace) -> None:
    records = {record["recipe"]: record["points"] for record in read_records(options.records)}
    rows = []
    for name in RECIPES.keys() & records.keys():
        best = max(records[name], key=lambda point: point["holdout"])
        last = records[name][-1]
        rows.append(
            (
                name,
                f"{last['minutes']:.1f}",
                f"{100 * last['holdout']:.1f}",
                f"{100 * last['test']:.1f}",
                f"{best['step']}",
                f"{best['minutes']:.1f}",
                f"{100 * best['holdout']:.1f}",
                f"{100 * best['test']:.1f}",
            )
        )
    rows.sort(key=lambda row: list(RECIPES).index(row[0]))
    columns = ("CPU min", "holdout", TARGET)
    header = ("recipe", *columns, "best step", *columns)
    print(format_markdown_table(header, rows, numeric=len(header) - 1))
    if options.picture is not None:
        plot(records, options.picture)


def plot(records: Mapping[str, list[Record]], file: Path) -> None:
    figure, panels = plt.subplots(1, 2, figsize=(10, 4), sharex=True, layout="constrained")
    for panel, part in zip(panels, ("holdout", "test"), strict=True):
        for index, name in enumerate(RECIPES):
            points = records.get(name, [])
            panel.plot(
                [point["minutes"] for point in points],
                [100 * point[part] for point in points],
                color=f"C{index % 10}",
                linestyle="-" if index < 10 else "--",
                marker=".",
                label=name,
            )
        panel.set_title("holdouts of the training domains" if part == "holdout" else TARGET, fontsize=10)
        panel.set_xlabel("CPU minutes")
        panel.grid(alpha=0.3)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("accuracy, %")
    panels[0].legend(fontsize=7)
    figure.savefig(file, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    runner = commands.add_parser("run", help="train what is not in the file of records")
    runner.set_defaults(call=run)
    runner.add_argument("--data-dir", required=True, help="folder that contains PACS")
    runner.add_argument("--weights", default="IMAGENET1K_V1", help="weights of MobileNetV2")
    runner.add_argument("--workers", type=int, default=2, help="number of processes, with one thread each")
    printer = commands.add_parser("table", help="print the table of a file of records as Markdown")
    printer.set_defaults(call=print_table)
    printer.add_argument("--picture", type=Path, help="file for the figure")
    for each in (runner, printer):
        each.add_argument("--records", type=Path, default=RECORDS)
    options = parser.parse_args()
    options.call(options)


if __name__ == "__main__":
    main()
