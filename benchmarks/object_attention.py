"""Do domain-wise perturbations make a network look at the object? Share of Grad-CAM on object masks, and accuracy.

The demo's methods with its settings on both synthetic datasets: radius .5, and .2 for AT, which stays at chance at .5.
Attention is measured for the last model and the predicted class, on each test domain.

    python benchmarks/object_attention.py
    python benchmarks/object_attention.py --seeds 1 --steps 2 --output /tmp/object_attention

Rerun the same command to resume; finished runs are only measured again.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from domainwise.explain.attention import Attention, measure_attention, tabulate_attention
from domainwise.reports.formats import format_markdown_table
from domainwise.reproduction.demo import STEPS, build_demo
from domainwise.selection.statistics import estimate_mean, format_percent
from domainwise.sweeps.engine import EngineCallbacks
from domainwise.sweeps.local_engine import run_all
from domainwise.training import RunConfig, RunResult
from domainwise.training.device import pick_device
from domainwise.training.loading import open_run

METHODS = ("erm", "at", "uat", "mat", "ldat")
DATASETS = ("silhouettes", "silhouettes_spurious")
RADIUS, RADIUS_OF_AT = 0.5, 0.2

AttentionByMethod = Mapping[str, Sequence[Mapping[str, Attention]]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS), choices=DATASETS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--workers", type=int, default=2, help="number of processes, with one thread each")
    parser.add_argument("--output", type=Path, default=Path("runs/object_attention"))
    options = parser.parse_args()
    for dataset in options.datasets:
        plan = [
            (method, seed, config(dataset, method, seed, options.steps, options.output))
            for seed in range(options.seeds)
            for method in options.methods
        ]
        configs = [each for _, _, each in plan]

        def show(number: int, result: RunResult, total: int = len(configs)) -> None:
            print(f"{number + 1}/{total} {result.folder}", file=sys.stderr, flush=True)

        results = run_all(configs, EngineCallbacks(on_done=show), workers=options.workers)
        runs: dict[str, list[RunResult]] = {method: [] for method in options.methods}
        for (method, _, _), result in zip(plan, results, strict=True):
            if result is not None:
                runs[method].append(result)
        print(f"\n### {dataset}, {options.steps} steps, {options.seeds} seeds\n")
        print(format_page(runs, measure(runs)), flush=True)


def config(dataset: str, method: str, seed: int, steps: int, output: Path) -> RunConfig:
    """Return the config of the demo's run of this method, on either dataset."""
    radius = RADIUS_OF_AT if method == "at" else RADIUS
    (row,) = build_demo(algorithms=(method,), radii=(radius,)).rows
    return RunConfig(
        dataset=dataset,
        algorithm=method,
        hparams=row.hparams,
        trial_seed=seed,
        steps=steps,
        record_every=max(1, steps // 4),
        device="cpu",
        output=output / f"{dataset}-{method}-{steps}-seed{seed}",
        keep_perturbations=row.keep_perturbations,
    )


def measure(runs: Mapping[str, Sequence[RunResult]]) -> AttentionByMethod:
    """Measure attention seed by seed, so that each seed's data is made once."""
    device = pick_device("auto")
    attention: dict[str, list[Mapping[str, Attention]]] = {method: [] for method in runs}
    for of_seed in zip(*runs.values(), strict=True):
        for method, result in zip(runs, of_seed, strict=True):
            attention[method].append(measure_attention(open_run(result.folder), device, which="last"))
            print(f"measured {result.folder.name}", file=sys.stderr, flush=True)
    return attention


def format_page(runs: Mapping[str, Sequence[RunResult]], attention: AttentionByMethod) -> str:
    """Format attention and accuracy, one row per method, and the number of maps without heat."""
    table = tabulate_attention(attention)
    accuracies = [[method, *(format_accuracy(of, name) for name in table.domains)] for method, of in runs.items()]
    head, numbers = ["method", *table.domains], len(table.domains)
    blank = ", ".join(f"{method} {left_out} of {total}" for method, (left_out, total) in table.blank.items())
    return "\n\n".join(
        (
            "Share of attention on the object, in percent:",
            format_markdown_table(head, table.format_rows(), numbers),
            "Accuracy, in percent:",
            format_markdown_table(head, accuracies, numbers),
            f"Maps without heat, left out: {blank}.",
        )
    )


def format_accuracy(results: Sequence[RunResult], domain: str) -> str:
    estimate = estimate_mean(result.last["accuracy"][domain]["main"] for result in results)
    return format_percent(estimate.mean, estimate.error)


if __name__ == "__main__":
    main()
