"""Where the time of a run goes: data, building, updates, evaluation and writing, for one run per method.

    python benchmarks/run_profile.py --data-dir DATA --weights mobilenet_v2.pth
    python benchmarks/run_profile.py --dataset silhouettes --steps 300
    python benchmarks/run_profile.py --data-dir DATA --weights mobilenet_v2.pth --record-first  # as before version 0.3

The first run decodes the images into the cache; it is not shown.
"""

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from domainwise import RunConfig, train
from domainwise.reports.formats import format_markdown_table
from domainwise.storage.run_folder import RunFolder
from domainwise.training import trainer
from domainwise.training.device import keep_freed_memory
from domainwise.training.registry import DatasetCache

PARTS = ("data", "build", "batches", "updates", "evaluation", "writing")


class Stopwatch:
    """Adds up the seconds inside the functions it wraps."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()

    def wrap(self, owner: Any, name: str, part: str) -> None:
        function: Callable[..., Any] = getattr(owner, name)

        def timed(*arguments: Any, **settings: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments, **settings)
            finally:
                self.seconds[part] += time.perf_counter() - start

        setattr(owner, name, timed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="pacs")
    parser.add_argument("--data-dir")
    parser.add_argument("--weights")
    parser.add_argument("--network", default="mobilenet_v2")
    parser.add_argument("--test-domain", default="sketch")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--record-every", type=int, default=200)
    parser.add_argument("--record-first", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--method", action="append")
    options = parser.parse_args()
    settings: dict[str, Any] = {"dataset": options.dataset, "data_dir": options.data_dir, "threads": options.threads}
    settings |= {name: getattr(options, name) for name in ("steps", "record_every", "record_first", "batch_size")}
    if options.dataset != "silhouettes":
        settings |= {"network": options.network, "weights": options.weights, "test_domains": (options.test_domain,)}
        settings |= {"dataset_options": {"image_size": options.image_size}}
    keep_freed_memory()
    DatasetCache().build(RunConfig(**settings))
    watch = Stopwatch()
    watch.wrap(DatasetCache, "build", "data")
    watch.wrap(trainer, "build_algorithm", "build")
    watch.wrap(trainer, "draw_batches", "batches")
    watch.wrap(trainer, "evaluate", "evaluation")
    for name in ("write_records", "write_weights", "write_checkpoint", "claim", "write_done"):
        watch.wrap(RunFolder, name, "writing")
    rows = []
    for method in options.method or ("erm", "mat"):
        watch.seconds.clear()
        start = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            train(RunConfig(algorithm=method, output=Path(folder) / "run", **settings))
        total = time.perf_counter() - start
        watch.seconds["updates"] = total - watch.seconds.total()
        shares = [f"{watch.seconds[part]:.1f} ({watch.seconds[part] / total:.0%})" for part in PARTS]
        rows.append((method, f"{total:.1f}", *shares))
    print(f"{options.dataset}, {options.steps} steps, {options.threads} threads; seconds and share of the run\n")
    print(format_markdown_table(("method", "total", *PARTS), rows))


if __name__ == "__main__":
    main()
