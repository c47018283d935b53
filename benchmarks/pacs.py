"""PACS with a pretrained MobileNetV2 on two cores: ERM and the adversarial family, each domain left out in turn.

First the radius of every method is chosen with one domain left out, by the other domains' holdout alone; then each
method is run with every domain left out, at its radius. Both tables are printed as markdown.

    python benchmarks/pacs.py --data-dir DATA --weights mobilenet_v2-b0353104.pth
    python benchmarks/pacs.py --data-dir DATA --weights mobilenet_v2-b0353104.pth --seeds 3

Finished runs are kept: a second call goes on, and prints at once when all are there. `--records FILE` also writes every
record into one file, which is enough to print the tables again: `--from FILE`.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from domainwise.atomic import write_atomically
from domainwise.errors import DomainwiseError
from domainwise.markdown import as_markdown
from domainwise.runs import RunConfig
from domainwise.sweeps.local import run_all

DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
RADII = (0.1, 1.0, 5.0)
CHOSEN_ON = "sketch"
METHODS = ("erm", "at", "uat", "mat", "ldat")
PAPER = {"erm": "81.7 ± 0.3", "at": "82.6 ± 0.4", "uat": "", "mat": "82.3 ± 0.5", "ldat": "82.6 ± 0.5"}
Record = dict[str, Any]
# Method, radius (None for ERM), domain left out, seed.
Cell = tuple[str, float | None, str, int]


def main() -> None:
    options = read_options()
    found = read(options.read) if options.read is not None else train_all(options)
    chosen = {method: choose(found, method) for method in METHODS}
    print(radius_table(found, chosen), end="\n\n")
    print(result_table(found, chosen, options.seeds))


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="the folder that has PACS in it")
    parser.add_argument("--weights", type=str, default="IMAGENET1K_V1", help="of MobileNetV2")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--image-size", type=int, default=96)
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--workers", type=int, default=2, help="processes, of one thread each")
    parser.add_argument("--output", type=Path, default=Path("runs/pacs"))
    parser.add_argument("--records", type=Path, help="write all records into this file")
    parser.add_argument("--from", dest="read", type=Path, help="print the tables of such a file, train nothing")
    return parser.parse_args()


def read(file: Path) -> dict[Cell, list[Record]]:
    found: dict[Cell, list[Record]] = {}
    for record in map(json.loads, file.read_text().splitlines()):
        cell = record["algorithm"], record["hparams"].get("epsilon"), record["test_domains"][0], record["trial_seed"]
        found.setdefault(cell, []).append(record)
    return found


def train_all(options: argparse.Namespace) -> dict[Cell, list[Record]]:
    """The search on seed 0 first, then seed after seed, so that a stopped call leaves whole blocks."""
    search: list[Cell] = [
        (method, radius, CHOSEN_ON, 0) for method in METHODS for radius in (RADII if method != "erm" else (None,))
    ]
    found = train(search, options)
    for seed in range(options.seeds):
        block: list[Cell] = [(method, choose(found, method), test, seed) for test in DOMAINS for method in METHODS]
        found |= train(block, options)
    return found


def train(cells: Sequence[Cell], options: argparse.Namespace) -> dict[Cell, list[Record]]:
    def show(number: int, result: Any) -> None:
        print(f"{number + 1}/{len(cells)} {result.folder.name}: {scores(result.records)}", file=sys.stderr, flush=True)

    results = run_all([config(*cell, options) for cell in cells], workers=options.workers, on_done=show)
    found = {cell: result.records for cell, result in zip(cells, results, strict=True)}
    if options.records is not None:
        before = options.records.read_text().splitlines() if options.records.exists() else []
        lines = [json.dumps(record) for records in found.values() for record in records]
        write_atomically(options.records, "".join(f"{line}\n" for line in dict.fromkeys([*before, *lines])).encode())
    return found


def config(method: str, radius: float | None, test_domain: str, seed: int, options: argparse.Namespace) -> RunConfig:
    hparams: dict[str, Any] = {"lr": options.lr, "weight_decay": 0.001}
    if radius is not None:
        # Sample-wise: one step from the image to the sphere. Domain-wise: kept, and moved by half the radius.
        hparams |= {"epsilon": radius, "step_size": radius if method == "at" else radius / 2}
    if method == "at":
        hparams["start"] = "zero"
    name = f"{method}-{'' if radius is None else f'{radius:g}-'}{test_domain}-seed{seed}"
    return RunConfig(
        dataset="pacs",
        data_dir=options.data_dir,
        dataset_options={"image_size": options.image_size},
        algorithm=method,
        hparams=hparams,
        network="mobilenet_v2",
        weights=options.weights,
        test_domains=(test_domain,),
        trial_seed=seed,
        steps=options.steps,
        record_every=100,
        batch_size=16,
        dropout=0.1,
        device="cpu",
        output=options.output / name,
    )


def scores(records: Sequence[Record]) -> str:
    best = selected(records)
    return f"holdout {holdout(best):.3f}, test {tested(best):.3f} at step {best['step']}"


def selected(records: Sequence[Record]) -> Record:
    """Training-domain selection: the highest mean holdout of the training domains, the earliest on a tie."""
    return max(records, key=holdout)


def holdout(record: Record) -> float:
    return statistics.fmean(record["accuracy"][name]["holdout"] for name in record["train_domains"])


def tested(record: Record) -> float:
    return float(record["accuracy"][record["test_domains"][0]]["main"])


def choose(found: Mapping[Cell, list[Record]], method: str) -> float | None:
    """The radius with the highest holdout, the smaller on a tie."""
    tried = [cell for cell in found if cell[0] == method and cell[2:] == (CHOSEN_ON, 0)]
    if not tried:
        raise DomainwiseError(f"there are no records of {method} with {CHOSEN_ON} left out")
    return max(sorted(tried, key=lambda cell: cell[1] or 0), key=lambda cell: holdout(selected(found[cell])))[1]


def radius_table(found: Mapping[Cell, list[Record]], chosen: Mapping[str, float | None]) -> str:
    rows = []
    for method in METHODS:
        for cell in found:
            if cell[0] == method and cell[2:] == (CHOSEN_ON, 0):
                best = selected(found[cell])
                mark = "chosen" if cell[1] == chosen[method] else ""
                radius = "" if cell[1] is None else f"{cell[1]:g}"
                rows.append([method, radius, mark, f"{holdout(best):.3f}", f"{tested(best):.3f}", f"{best['step']}"])
    return as_markdown(("method", "radius", "", "holdout", f"{CHOSEN_ON} (not looked at)", "step"), rows, numbers=3)


def result_table(found: Mapping[Cell, list[Record]], chosen: Mapping[str, float | None], seeds: int) -> str:
    rows = []
    for method in METHODS:
        cells = [
            [100 * tested(selected(found[method, chosen[method], test, seed])) for seed in range(seeds)]
            for test in DOMAINS
            if all((method, chosen[method], test, seed) in found for seed in range(seeds))
        ]
        if len(cells) < len(DOMAINS):
            continue
        trials = [statistics.fmean(values) for values in zip(*cells, strict=True)]
        held = [
            100 * holdout(selected(found[method, chosen[method], test, seed]))
            for test in DOMAINS
            for seed in range(seeds)
        ]
        radius = "" if chosen[method] is None else f"{chosen[method]:g}"
        row = [method, radius, f"{statistics.fmean(held):.1f}"]
        rows.append([*row, *map(cell_text, cells), cell_text(trials), PAPER[method]])
    head = ("method", "radius", "holdout", *DOMAINS, "average", "the paper's average")
    return as_markdown(head, rows, numbers=len(head) - 2)


def cell_text(values: Sequence[float]) -> str:
    """Mean and standard error over trials; one trial has none."""
    mean = f"{statistics.fmean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.pstdev(values) / len(values) ** 0.5:.1f}"


if __name__ == "__main__":
    main()
