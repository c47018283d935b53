"""Every method, and what averaging its weights is worth: each run is trained once, and all averages are evaluated.

Averaging does not change training, so all averages of a run are compared on the same trajectory. Among the records of a
run, models are selected by the training domains' holdouts; differences are those of trials, each the mean over its test
domains, to the run's own weights (`none`). Methods use their defaults and those of the dataset, except for `SCHEDULES`,
which are shortened to the steps of the run, and for `SILHOUETTES`: smaller weights, at which a method learns at all,
taken without a look at the test domains.

    python benchmarks/all_methods.py run silhouettes --methods all --trials 5 --steps 500 --records 1
    python benchmarks/all_methods.py run DATA/OfficeCaltech10 --methods erm coral mat --trials 3 --weights FILE
    python benchmarks/all_methods.py run DATA/PACS --test-domain sketch --steps 800 --average none --average sma@0.25
    python benchmarks/all_methods.py tables --picture all_methods.png

An average is `none`, `sma`, `sma@0.25` (averaging starts after a quarter of the steps), `ema@0.99` (decay) or `swad`.
Each run adds one line to the output file; rerun a command to resume it.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

from domainwise.algorithms import ALGORITHMS
from domainwise.averaging import WeightAverage, build_average, default_sma_start, default_swad_every
from domainwise.reports.formats import format_markdown_table
from domainwise.reproduction.recipe import find_scale
from domainwise.selection.statistics import estimate_mean
from domainwise.training import RunConfig
from domainwise.training.device import keep_freed_memory
from domainwise.training.evaluation import evaluate, measure_holdout_loss
from domainwise.training.registry import DatasetCache, dataset_name
from domainwise.training.trainer import Trainer
from study import make_record, select_by_holdout

Line = dict[str, Any]
# Accuracies by method and average, one per trial.
Panel = dict[str, dict[str, list[float]]]
NONE = "none"
FAMILY = ("at", "uat", "mat", "ldat")
# Updates before a penalty or the whole network is switched on, as a share of the steps: DomainBed's of its 5000.
SCHEDULES: dict[str, dict[str, float]] = {
    "irm": {"anneal_steps": 0.1},
    "vrex": {"anneal_steps": 0.1},
    "iberm": {"anneal_steps": 0.1},
    "ibirm": {"anneal_steps": 0.1, "bottleneck_anneal_steps": 0.1},
    "fishr": {"anneal_steps": 0.3},
    "rdm": {"anneal_steps": 0.3},
    "eqrm": {"burn_in_steps": 0.5},
    "ermplusplus": {"head_steps": 0.1},
}
# With their defaults, these stay at chance on silhouettes, or nearly so.
SILHOUETTES: dict[str, dict[str, float]] = {
    "dann": {"adversary_weight": 0.01},
    "cdann": {"adversary_weight": 0.01},
    "mmd": {"penalty_weight": 0.01},
    "causirlmmd": {"penalty_weight": 0.01},
    "rsc": {"feature_drop": 0.1, "sample_drop": 0.1},
    "iga": {"penalty_weight": 0.1},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run")
    run.add_argument("dataset")
    run.add_argument("--methods", nargs="+", default=["erm"], help="names, or all")
    run.add_argument("--average", action="append", default=[], help="default: none, sma and swad")
    run.add_argument("--trials", type=int, default=3)
    run.add_argument("--first-trial", type=int, default=0)
    run.add_argument("--test-domain", action="append", default=[])
    run.add_argument("--steps", type=int)
    run.add_argument("--records", type=int, default=5, help="evaluations per run, evenly spaced")
    run.add_argument("--weights")
    run.add_argument("-H", "--hparam", action="append", default=[], metavar="METHOD.NAME=VALUE")
    run.add_argument("--workers", type=int, default=2, help="number of single-threaded processes")
    run.add_argument("--output", type=Path, default=Path("all_methods.jsonl"))
    tables = commands.add_parser("tables")
    tables.add_argument("--output", type=Path, default=Path("all_methods.jsonl"))
    tables.add_argument("--picture", type=Path)
    tables.add_argument("--last", action="store_true", help="evaluate runs at their last step, without selection")
    options = parser.parse_args()
    if options.command == "run":
        run_all(options)
    else:
        lines = read_lines(options.output)
        if options.last:
            for line in lines:
                line["averages"] = {name: records[-1:] for name, records in line["averages"].items()}
        print_tables(lines, options.picture)


def run_all(options: argparse.Namespace) -> None:
    methods = list(ALGORITHMS) if options.methods == ["all"] else options.methods
    averages = options.average or [NONE, "sma", "swad"]
    done = {line["key"] for line in read_lines(options.output)}
    tasks = []
    for trial in range(options.first_trial, options.first_trial + options.trials):
        for test_domain in list_test_domains(options):
            for method in methods:
                settings = make_settings(options, method, trial, test_domain)
                # Where the files are does not matter.
                places = {"dataset": dataset_name(options.dataset), "weights": Path(options.weights or "").name}
                key = json.dumps([{**settings, **places}, sorted(averages), options.records], sort_keys=True)
                if key not in done:
                    tasks.append((key, settings, averages, options.records))
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn"), initializer=keep_freed_memory) as pool:
        futures = [pool.submit(run_once, *task) for task in tasks]
        for number, future in enumerate(as_completed(futures), start=1):
            line = future.result()
            with options.output.open("a") as file:
                file.write(json.dumps(line) + "\n")
            final = {name: round(each[-1]["test"], 3) for name, each in line["averages"].items()}
            print(f"{number}/{len(tasks)} {line['method']} trial {line['trial']} {final}", file=sys.stderr, flush=True)


def list_test_domains(options: argparse.Namespace) -> list[tuple[str, ...]]:
    if options.test_domain:
        return [(name,) for name in options.test_domain]
    dataset = DatasetCache().build(RunConfig(dataset=options.dataset))
    if any(domain.role for domain in dataset.domains):
        return [()]
    return [(name,) for name in dataset.domain_names]


def make_settings(
    options: argparse.Namespace, method: str, trial: int, test_domains: tuple[str, ...]
) -> dict[str, Any]:
    is_synthetic = dataset_name(options.dataset).startswith("silhouettes")
    hparams = {key: str(value) for key, value in (SILHOUETTES.get(method, {}) if is_synthetic else {}).items()}
    if options.steps is not None:
        hparams |= {key: str(round(share * options.steps)) for key, share in SCHEDULES.get(method, {}).items()}
    for text in options.hparam:
        name, _, value = text.partition("=")
        owner, _, key = name.partition(".")
        if owner == method:
            hparams[key] = value
    settings: dict[str, Any] = {
        "dataset": options.dataset,
        "algorithm": method,
        "hparams": ALGORITHMS[method].Hparams.parse(hparams),
        "trial_seed": trial,
        "test_domains": test_domains,
    }
    if not is_synthetic:
        scale = find_scale("cpu").get_settings("pacs")
        settings |= {**scale, "dataset_options": {"image_size": scale["image_size"]}}
        del settings["image_size"]
    if options.steps is not None:
        settings["steps"] = options.steps
    if options.weights is not None:
        settings["weights"] = options.weights
    return settings


_datasets = DatasetCache()


def run_once(key: str, settings: dict[str, Any], names: Sequence[str], num_records: int) -> Line:
    """Train one run and evaluate all averages of its weights `num_records` times."""
    with tempfile.TemporaryDirectory() as folder:
        config = RunConfig.of(**{**settings, "threads": 1, "device": "cpu", "output": Path(folder) / "run"})
        trainer = Trainer(config, datasets=_datasets, on_step=lambda step, loss: follow(step))
        averages: dict[str, WeightAverage] = {}
        records: dict[str, list[dict[str, float]]] = {name: [] for name in names}

        def follow(step: int) -> None:
            steps = trainer.config.steps
            assert steps is not None
            network = trainer.algorithm.network
            if not averages:
                averages.update({name: parse_average(name, network, steps) for name in names if name != NONE})
            for average in averages.values():
                average.update_(network, measure_loss)
            # Rounded so that the last step is always among them.
            if any(step == round(steps * (number + 1) / num_records) for number in range(num_records)):
                for name in names:
                    records[name].append(measure(name, step))

        def measure_loss() -> float:
            parts = (trainer.dataset, trainer.splits, trainer.roles, trainer.device, trainer.world)
            return measure_holdout_loss(trainer.algorithm.predict, *parts)

        def measure(name: str, step: int) -> dict[str, float]:
            network = trainer.algorithm.network
            if name != NONE:
                trainer.algorithm.network = averages[name].averaged_network()
            accuracy = evaluate(
                *(trainer.algorithm, trainer.dataset, trainer.splits, trainer.roles, "selection"),
                *(trainer.device, trainer.world),
            )
            trainer.algorithm.network = network
            return {
                "step": step,
                "holdout": statistics.fmean(accuracy[domain]["holdout"] for domain in trainer.roles.train),
                "test": statistics.fmean(accuracy[domain]["main"] for domain in trainer.roles.test),
                **{domain: accuracy[domain]["main"] for domain in trainer.roles.test},
            }

        result = trainer.fit()
    return {
        "key": key,
        "dataset": result.config.dataset_name,
        "method": result.config.algorithm_name,
        "trial": result.config.trial_seed,
        "test_domains": list(result.config.test_domains),
        "steps": result.config.steps,
        "averages": records,
    }


def parse_average(name: str, network: Any, steps: int) -> WeightAverage:
    kind, _, number = name.partition("@")
    if kind == "sma":
        start = max(1, round(float(number) * steps)) if number else default_sma_start(steps)
        return build_average("sma", network, start=start)
    if kind == "ema":
        return build_average("ema", network, **({"decay": float(number)} if number else {}))
    return build_average("swad", network, every=default_swad_every(steps), variant=number or "paper")


def read_lines(file: Path) -> list[Line]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def select(records: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the record with the highest holdout accuracy."""
    selected = select_by_holdout(
        make_record({"training": each["holdout"]}, {"test": each["test"]}, step=int(each["step"])) for each in records
    )
    return next(each for each in records if each["step"] == selected["step"])


def print_tables(lines: Sequence[Line], picture: Path | None) -> None:
    groups: dict[tuple[str, int], list[Line]] = {}
    for line in lines:
        groups.setdefault((line["dataset"], line["steps"]), []).append(line)
    panels: dict[str, Panel] = {}
    for (dataset, steps), group in groups.items():
        averages = [name for name in dict.fromkeys(name for line in group for name in line["averages"]) if name != NONE]
        # A run that is tested on several domains has a column for each; otherwise they are runs of their own.
        domains = group[0]["test_domains"] if len(group[0]["test_domains"]) > 1 else []
        rows = []
        for method in sorted({line["method"] for line in group}, key=list(ALGORITHMS).index):
            own = [line for line in group if line["method"] == method]
            base = average_trials(own, NONE)
            reference = average_trials([line for line in group if line["method"] == "erm"], NONE)
            cells = [format_points(average_trials(own, NONE, key).values()) for key in ("holdout", *domains, "test")]
            paired = [100 * (base[trial] - reference[trial]) for trial in base if trial in reference]
            cells.append("" if method == "erm" else format_difference(paired))
            for name in averages:
                values = average_trials(own, name)
                differences = [100 * (values[trial] - base[trial]) for trial in values]
                cells.append(format_difference(differences))
            panel = panels.setdefault(f"{dataset}, {steps} steps", {})
            panel[method] = {name: list(average_trials(own, name).values()) for name in (NONE, *averages)}
            settings = ", ".join(f"{key} {value:g}" for key, value in json.loads(own[0]["key"])[0]["hparams"].items())
            rows.append((method, settings, str(len(base)), *cells))
        header = (
            "method",
            "settings",
            "trials",
            "holdout",
            *domains,
            "mean",
            "mean - erm",
            *(f"{name} - {NONE}" for name in averages),
        )
        print(f"\n{dataset}, {steps} steps\n\n{format_markdown_table(header, rows)}")
    if picture is not None:
        draw(panels, picture)


def average_trials(lines: Sequence[Line], name: str, key: str = "test") -> dict[int, float]:
    """Return the mean accuracy of each trial over its runs that evaluated this average."""
    by_trial: dict[int, list[float]] = {}
    for line in lines:
        if name in line["averages"]:
            by_trial.setdefault(line["trial"], []).append(select(line["averages"][name])[key])
    return {trial: statistics.fmean(values) for trial, values in by_trial.items()}


def format_points(accuracies: Iterable[float]) -> str:
    estimate = estimate_mean([100 * value for value in accuracies])
    return f"{estimate.mean:.1f}" + ("" if estimate.error is None else f" ± {estimate.error:.1f}")


def format_difference(differences: Sequence[float]) -> str:
    if not differences:
        return ""
    estimate = estimate_mean(differences)
    return f"{estimate.mean:+.1f}" + ("" if estimate.error is None else f" ± {estimate.error:.1f}")


def draw(panels: Mapping[str, Panel], picture: Path) -> None:
    """Draw one panel per dataset and one row per method, best first: a dot per trial, and bars at the means."""
    height = max(map(len, panels.values()))
    figure, all_axes = plt.subplots(
        1, len(panels), figsize=(6.4 * len(panels), 0.23 * height + 1.2), layout="constrained", squeeze=False
    )
    for axes, (title, panel) in zip(all_axes[0], panels.items(), strict=True):
        ordered = sorted(panel, key=lambda method: statistics.fmean(panel[method][NONE]))
        for place, method in enumerate(ordered):
            own = [100 * value for value in panel[method][NONE]]
            colour = "tab:red" if method in FAMILY else "black" if method == "erm" else "tab:gray"
            axes.plot(own, [place] * len(own), "o", color=colour, markersize=4, alpha=0.45, linewidth=0)
            axes.plot([statistics.fmean(own)] * 2, [place - 0.36, place + 0.36], color=colour, linewidth=2.5)
            for marker, name in zip("<>", [each for each in panel[method] if each != NONE], strict=False):
                if panel[method][name]:
                    mean = 100 * statistics.fmean(panel[method][name])
                    axes.plot([mean], [place], marker, color="tab:blue", markersize=5, alpha=0.9, linewidth=0)
        axes.axvline(100 * statistics.fmean(panel["erm"][NONE]), color="black", linewidth=0.8, linestyle=":", zorder=0)
        axes.set_yticks(range(len(ordered)), ordered)
        axes.set_ylim(-0.7, len(ordered) - 0.3)
        axes.set_title(title)
        axes.set_xlabel("test accuracy: a dot per trial, a bar at the mean\nblue: mean with SMA (<) or SWAD (>)")
        axes.grid(axis="x", alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(picture, dpi=150)


if __name__ == "__main__":
    main()
