"""Structured perturbations compared in pairs: all arms see the same batches and start from the same weights.

An arm is a method with its settings. Each run adds one line to a file of records, so rerunning a command resumes it,
and the tables can be printed from the file alone.

    python benchmarks/structured.py run silhouettes --seeds 0-9 --records structured.jsonl
    python benchmarks/structured.py run pacs --seeds 0-2 --test-domain sketch --data-dir DATA --weights FILE ...
    python benchmarks/structured.py tables --records structured.jsonl --picture structured.png
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise import UniversalPerturbation
from domainwise.algorithms import ALGORITHMS, Algorithm
from domainwise.data import Dataset, Domain
from domainwise.data.batches import draw_batches, iterate_batches
from domainwise.data.dataset import Split, split_domains
from domainwise.explain.perturbations import compute_effective_rank, compute_singular_values
from domainwise.networks import NETWORKS, build_backbone
from domainwise.perturbations import MultiplePerturbation
from domainwise.reports.formats import format_markdown_table
from domainwise.selection.statistics import estimate_mean
from domainwise.training.device import keep_freed_memory
from domainwise.training.registry import build_dataset
from study import make_record, select

CPU = torch.device("cpu")
Record = dict[str, Any]


@dataclass(frozen=True)
class Arm:
    """A method and its settings. `label` names it in tables; arms of equal settings share their runs."""

    label: str
    algorithm: str
    hparams: dict[str, Any] = field(default_factory=dict)
    is_augmented: bool = False

    @property
    def key(self) -> str:
        return json.dumps([self.algorithm, self.hparams, self.is_augmented], sort_keys=True)


@dataclass(frozen=True)
class Setup:
    """How all runs on a dataset train. `stress` is the test domain that the tables show."""

    network: str
    steps: int
    batch_size: int
    lr: float
    radii: tuple[float | str, ...]
    radius: float | str  # of the arms that have only one
    stress: str = ""
    attack_radii: tuple[str, ...] = ("1/255 rms", "2/255 rms")
    attack_batch: int = 64
    options: dict[str, Any] = field(default_factory=dict)


_PHOTO_RADII = ("0.25/255 rms", "1/255 rms")
_PHOTO: dict[str, Any] = {"attack_radii": ("0.5/255 rms",), "attack_batch": 16, "options": {"image_size": 64}}
SETUPS = {
    "silhouettes": Setup("small_cnn", 700, 64, 1e-3, (0.1, 0.5, 1.0, 2.0), 0.5, "shift_12"),
    "silhouettes_spurious": Setup("small_cnn", 700, 64, 1e-3, (0.5,), 0.5),
    "pacs": Setup("mobilenet_v2", 800, 16, 1e-4, _PHOTO_RADII, "1/255 rms", **_PHOTO),
    "office_caltech10": Setup("mobilenet_v2", 200, 16, 1e-4, _PHOTO_RADII, "1/255 rms", **_PHOTO),
}
FAMILY: dict[str, tuple[str, dict[str, Any]]] = {
    "AT": ("at", {}),
    "UAT": ("uat", {}),
    "MAT": ("mat", {"weights": "assigned", "count": 10}),
    "LDAT": ("ldat", {"rank": 10}),
}
RANK_5: dict[str, tuple[str, dict[str, Any]]] = {"LDAT of rank 5": ("ldat", {"rank": 5})}
LOW_RANK_AT = ("AT of rank 3", "at", {"rank": 3})
# As in the first version of this library.
FORMER: dict[str, tuple[str, dict[str, Any]]] = {
    "AT, no warm-up": ("at", {"warmup": 0.0}),
    "UAT, no warm-up": ("uat", {"warmup": 0.0, "step_size": 0.5}),
    "MAT of the paper": ("mat", {"weights": "domain", "warmup": 0.0, "step_size": 0.5}),
    "LDAT of the paper": ("ldat", {"solver": "factors", "rank": 5, "warmup": 0.0, "step_size": 0.5}),
}
COUNTS = (1, 3, 10, 30)
WEIGHTS = ("assigned", "subspace")


def list_family(dataset: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Return the methods that run at all radii."""
    return {**FAMILY, **RANK_5} if dataset == "silhouettes" else FAMILY


def list_arms(dataset: str, *, has_variations: bool = True) -> list[Arm]:
    """Return the arms that run on a dataset: each method at each radius, then variations at one radius."""
    setup = SETUPS[dataset]
    is_synthetic = dataset.startswith("silhouettes")
    at_radius = {"epsilon": setup.radius}
    arms = [Arm("ERM", "erm")]
    if is_synthetic:
        arms.append(Arm("ERM, augmented", "erm", is_augmented=True))
    arms += [
        Arm(f"{label}, {radius}", algorithm, {**hparams, "epsilon": radius})
        for radius in setup.radii
        for label, (algorithm, hparams) in list_family(dataset).items()
    ]
    if is_synthetic:
        label, algorithm, hparams = LOW_RANK_AT
        arms.append(Arm(f"{label}, {setup.radius}", algorithm, {**hparams, **at_radius}))
        arms += [Arm(f"{name}, {setup.radius}", each, {**own, **at_radius}) for name, (each, own) in FORMER.items()]
    if not has_variations:
        return arms
    if dataset == "pacs":
        small = {"epsilon": setup.radii[0]}
        arms.append(Arm(f"AT of rank 3, {setup.radii[0]}", "at", {"rank": 3, **small}))
        arms.append(
            Arm(f"AT, half of the loss on clean images, {setup.radii[0]}", "at", {"clean_weight": 1.0, **small})
        )
    if not is_synthetic:
        arms.append(Arm("ERM, augmented", "erm", is_augmented=True))
    if dataset != "silhouettes":
        augmented = FAMILY if not is_synthetic else {}
        return arms + [
            Arm(f"{name}, augmented, {setup.radius}", each, {**own, **at_radius}, is_augmented=True)
            for name, (each, own) in augmented.items()
        ]
    arms += [
        Arm(f"MAT {weights}, k {count}", "mat", {"weights": weights, "count": count, **at_radius})
        for count in COUNTS
        for weights in WEIGHTS
    ]
    arms += [Arm("MAT soft", "mat", {"weights": "soft", **at_radius})]
    arms += [Arm("MAT, one mix per domain", "mat", {"weights": "domain", **at_radius})]
    arms += [
        Arm(f"{name}, augmented", each, {**own, **at_radius}, is_augmented=True) for name, (each, own) in FAMILY.items()
    ]
    return arms


@dataclass(frozen=True)
class Task:
    """One run. Without named domains, the roles are those of the dataset."""

    arm: Arm
    dataset: str
    seed: int
    test_domains: tuple[str, ...] = ()
    train_domains: tuple[str, ...] = ()

    @property
    def key(self) -> list[Any]:
        return [self.dataset, self.seed, self.arm.key, list(self.test_domains), list(self.train_domains)]


def run_task(task: Task, data_dir: str, weights: str) -> Record:
    """Train one arm and return its record. What an arm draws for itself comes from a stream of its own."""
    torch.set_num_threads(1)
    keep_freed_memory()
    started = time.perf_counter()
    setup, arm = SETUPS[task.dataset], task.arm
    dataset = load_dataset(task.dataset, task.seed, data_dir)
    domains = {domain.name: domain for domain in dataset.domains}
    splits = split_domains(dataset, task.seed)
    train, test = assign_domains(dataset, task)
    torch.manual_seed(task.seed)
    network = build_network(setup.network, dataset, weights).to(memory_format=torch.channels_last)
    algorithm = ALGORITHMS[arm.algorithm](
        network,
        num_domains=len(train),
        input_shape=dataset.image_shape,
        num_steps=setup.steps,
        generator=torch.Generator().manual_seed(10**6 + task.seed),
        **{"lr": setup.lr, **arm.hparams},
    )
    algorithm.train()
    batch_stream = torch.Generator().manual_seed(task.seed)
    augmentation = batch_stream if arm.is_augmented else None
    parts = [(domains[name], splits[name].main) for name in train]
    losses = []
    for _ in range(setup.steps):
        batches = draw_batches(parts, setup.batch_size, batch_stream, CPU, augmentation=augmentation)
        losses.append(algorithm.update(batches)["loss"])
    network.eval()
    return {
        "key": task.key,
        "label": arm.label,
        "dataset": task.dataset,
        "seed": task.seed,
        "train": train,
        "test": {name: measure_accuracy(network, domains[name], splits[name].main) for name in test},
        "holdout": {name: measure_accuracy(network, domains[name], splits[name].holdout) for name in train},
        "holdout_sizes": [len(splits[name].holdout) for name in train],
        "attacked": {
            radius: statistics.fmean(
                measure_attacked(network, domains[name], splits[name], radius, setup.attack_batch) for name in train
            )
            for radius in setup.attack_radii
        },
        "loss": statistics.fmean(losses[-setup.steps // 10 :]),
        **measure_components(algorithm, parts),
        "seconds": round(time.perf_counter() - started, 1),
    }


@lru_cache(maxsize=1)
def load_dataset(name: str, seed: int, data_dir: str) -> Dataset:
    if name == "office_caltech10":
        return build_dataset(Path(data_dir) / "OfficeCaltech10", SETUPS[name].options, seed=seed)
    return build_dataset(name, SETUPS[name].options, seed=seed, data_dir=data_dir or None)


def assign_domains(dataset: Dataset, task: Task) -> tuple[list[str], list[str]]:
    """Return the names of the training and test domains."""
    test = list(task.test_domains) or [domain.name for domain in dataset.domains if domain.role == "test"]
    train = list(task.train_domains) or [
        domain.name for domain in dataset.domains if domain.role in (None, "train") and domain.name not in test
    ]
    return train, test


def build_network(name: str, dataset: Dataset, weights: str) -> nn.Module:
    if name in NETWORKS:
        return NETWORKS[name](dataset.image_shape, len(dataset.classes), 0.0)
    return build_backbone(name, dataset.image_shape, len(dataset.classes), 0.0, weights=weights, batch_norm="frozen")


@torch.no_grad()
def measure_accuracy(model: Callable[[Tensor], Tensor], domain: Domain, indices: Tensor) -> float:
    correct = sum(int((model(x).argmax(1) == y).sum()) for x, y in iterate_batches(domain, indices, CPU))
    return correct / len(indices)


def measure_attacked(
    network: nn.Module, domain: Domain, split: Split, radius: str, batch_size: int, steps: int = 20
) -> float:
    """Return the accuracy on the holdout under one perturbation, fitted to training images of the same domain."""
    perturbation = UniversalPerturbation(
        domain.images.shape[1:], epsilon=radius, generator=torch.Generator().manual_seed(0)
    )
    perturbation.step_size = 2.5 * perturbation.epsilon / steps
    batches = [next(iterate_batches(domain, chosen, CPU)) for chosen in split.main[: 8 * batch_size].split(batch_size)]
    for number in range(steps):
        x, y = batches[number % len(batches)]
        perturbation.attack(x, 0, lambda x, y=y: F.cross_entropy(network(x), y, reduction="none"))
    return measure_accuracy(lambda x: network(perturbation(x, 0)), domain, split.holdout)


def measure_components(algorithm: Algorithm, parts: Sequence[tuple[Domain, Tensor]]) -> Record:
    """Return the mean cosine of MAT's components, and the effective rank of what they add to 256 images per domain."""
    perturbation = getattr(algorithm, "perturbation", None)
    if not isinstance(perturbation, MultiplePerturbation):
        return {}
    count = perturbation.count
    unit = F.normalize(perturbation.components().detach().flatten(2), dim=-1)
    cosines = (unit.sum(1).square().sum(-1) - count) / max(1, count * (count - 1))
    ranks = []
    perturbation.is_frozen = True
    for index, (domain, indices) in enumerate(parts):
        offsets = []
        for chosen in indices[:256].split(64):
            x, y = next(iterate_batches(domain, chosen, CPU))
            x_adv = perturbation.attack(
                x, index, lambda x, y=y: F.cross_entropy(algorithm.network(x), y, reduction="none")
            )
            offsets.append((x_adv - x).flatten(1))
        ranks.append(float(compute_effective_rank(compute_singular_values(torch.cat(offsets)))))
    return {"cosine": cosines.mean().item(), "effective_rank": statistics.fmean(ranks), "count": count}


def run(options: argparse.Namespace) -> None:
    arms = {
        arm.key: arm
        for arm in reversed(list_arms(options.dataset, has_variations=not options.short))
        if not options.arm or arm.label in options.arm
    }
    targets: list[tuple[str, ...]] = [(each,) for each in options.test_domain] or [()]
    # Seed by seed, so that an interrupted study is a complete one of fewer seeds.
    tasks = [
        Task(arm, options.dataset, seed, target, tuple(options.train_domain))
        for seed in options.seeds
        for target in targets
        for arm in reversed(arms.values())
    ]
    done = [record["key"] for record in read_records(options.records)]
    todo = [task for task in tasks if task.key not in done]
    print(f"{len(tasks)} runs, {len(tasks) - len(todo)} done", file=sys.stderr, flush=True)
    options.records.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(run_task, task, options.data_dir, options.weights) for task in todo]
        try:
            for number, future in enumerate(as_completed(futures), start=1):
                record = future.result()
                with options.records.open("a") as file:
                    file.write(json.dumps(record) + "\n")
                accuracies = " ".join(f"{value:.3f}" for value in record["test"].values())
                line = (
                    f"seed {record['seed']}, {record['label']}: holdout {mean_holdout(record):.3f}, test {accuracies}"
                )
                print(f"{number}/{len(todo)} {record['seconds']:.0f} s, {line}", file=sys.stderr, flush=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def read_records(file: Path) -> list[Record]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def mean_holdout(record: Record) -> float:
    return statistics.fmean(record["holdout"].values())


def print_tables(options: argparse.Namespace) -> None:
    records = read_records(options.records)
    for dataset in dict.fromkeys(record["dataset"] for record in records):
        own = [record for record in records if record["dataset"] == dataset and not record["key"][4]]
        print(f"## {dataset}\n\n{tabulate_arms(dataset, own)}\n")
        if rows := tabulate_counts(dataset, own):
            print(f"### Over k\n\n{rows}\n")
        if len(SETUPS[dataset].radii) > 1:
            print(f"### Selection of the radius\n\n{tabulate_rules(dataset, own)}\n")
        if SETUPS[dataset].stress:
            print(f"### Selected by one standard error\n\n{tabulate_selected(dataset, own)}\n")
    if options.picture is not None:
        plot_study([record for record in records if record["dataset"] == "silhouettes"], options.picture)


def find_runs(records: Sequence[Record], arm: Arm) -> dict[tuple[int, str], Record]:
    """Return the records of an arm by seed and held-out domains."""
    return {(each["seed"], str(each["key"][3])): each for each in records if each["key"][2] == arm.key}


def stressed_accuracy(dataset: str, record: Record) -> float:
    stress = SETUPS[dataset].stress
    return record["test"][stress] if stress else statistics.fmean(record["test"].values())


def tabulate_arms(dataset: str, records: Sequence[Record]) -> str:
    """Return one row per arm: mean accuracies, and the paired difference from ERM."""
    domains = list(records[0]["test"]) if SETUPS[dataset].stress else ["test"]
    erm = find_runs(records, Arm("ERM", "erm"))
    rows = []
    for arm in list_arms(dataset):
        runs = find_runs(records, arm)
        if not runs:
            continue
        columns = [
            [
                record["test"][name] if name in record["test"] else stressed_accuracy(dataset, record)
                for record in runs.values()
            ]
            for name in domains
        ]
        pairs = [
            stressed_accuracy(dataset, runs[key]) - stressed_accuracy(dataset, erm[key]) for key in runs if key in erm
        ]
        rows.append(
            (
                arm.label,
                str(len(runs)),
                format_mean([mean_holdout(record) for record in runs.values()]),
                *map(format_mean, columns),
                "" if arm.algorithm == "erm" and not arm.is_augmented else format_mean(pairs, is_signed=True),
            )
        )
    where = SETUPS[dataset].stress.replace("_", " ") or "test"
    header = ("arm", "runs", "holdout", *(name.replace("_", " ") for name in domains), f"minus ERM, {where}")
    return format_markdown_table(header, rows)


def tabulate_counts(dataset: str, records: Sequence[Record]) -> str:
    """Return one row per number of perturbations, over the seeds that all of them have."""
    runs = {
        (count, weights): find_runs(
            records, Arm("", "mat", {"weights": weights, "count": count, "epsilon": SETUPS[dataset].radius})
        )
        for count in COUNTS
        for weights in WEIGHTS
    }
    common = set.intersection(*map(set, runs.values()))
    if not common:
        return ""
    rows = []
    for count in COUNTS:
        row = [str(count)]
        for weights in WEIGHTS:
            own = [runs[count, weights][key] for key in sorted(common)]
            row += [
                format_mean([stressed_accuracy(dataset, record) for record in own]),
                f"{statistics.fmean(record['cosine'] for record in own):.2f}" if count > 1 else "",
                f"{statistics.fmean(record['effective_rank'] for record in own):.1f}",
            ]
        rows.append(row)
    names = [f"{weights}: {what}" for weights in WEIGHTS for what in ("accuracy", "cosine", "rank")]
    return format_markdown_table(("k", *names), rows)


def tabulate_rules(dataset: str, records: Sequence[Record]) -> str:
    """Return one row per method and rule: the accuracy of the selected radius, and what it gains over the holdout."""
    rows = []
    for label in list_family(dataset):
        candidates, chosen = select_radii(dataset, records, label)
        accuracies = {
            rule: [stressed_accuracy(dataset, runs[choice]) for runs, choice in zip(candidates, choices, strict=True)]
            for rule, choices in chosen.items()
        }
        for rule, values in accuracies.items():
            gains = [value - base for value, base in zip(values, accuracies["holdout"], strict=True)]
            gain = "" if rule == "holdout" else format_mean(gains, is_signed=True)
            picks = [chosen[rule].count(index) for index in range(len(SETUPS[dataset].radii))]
            rows.append((label, rule, format_mean(values), gain, *map(str, picks)))
    radii = [f"picks {radius}" for radius in SETUPS[dataset].radii]
    return format_markdown_table(("method", "rule", "accuracy", "gain over holdout", *radii), rows)


def tabulate_selected(dataset: str, records: Sequence[Record]) -> str:
    """Return one row per method: the accuracy of the radius that the one-standard-error rule selects in each seed."""
    plain, augmented = Arm("ERM", "erm"), Arm("ERM, augmented", "erm", is_augmented=True)
    rows = [(arm.label, "", list(find_runs(records, arm).values())) for arm in (plain, augmented)]
    for label in FAMILY:
        candidates, chosen = select_radii(dataset, records, label)
        choices = chosen["one standard error"]
        radii = [f"{SETUPS[dataset].radii[index]:g} ({choices.count(index)})" for index in sorted(set(choices))]
        rows.append((label, ", ".join(radii), [runs[index] for runs, index in zip(candidates, choices, strict=True)]))
    domains = list(records[0]["test"])
    header = ("method", "radius (seeds)", *(name.replace("_", " ") for name in domains))
    cells = [
        (label, radii, *(format_mean([run["test"][name] for run in runs]) for name in domains))
        for label, radii, runs in rows
    ]
    return format_markdown_table(header, cells, numeric=len(domains))


def select_radii(
    dataset: str, records: Sequence[Record], label: str
) -> tuple[list[list[Record]], dict[str, list[int]]]:
    """Return the runs of a method by radius, and the index of the radius that each rule chooses.

    Both are lists over the seeds and held-out domains that have runs at all radii.
    """
    algorithm, hparams = list_family(dataset)[label]
    runs = [
        find_runs(records, Arm(label, algorithm, {**hparams, "epsilon": radius})) for radius in SETUPS[dataset].radii
    ]
    candidates = [[each[cell] for each in runs] for cell in sorted(set.intersection(*map(set, runs)))]
    chosen: dict[str, list[int]] = {}
    for each in candidates:
        for rule, choice in choose_radii(dataset, each).items():
            chosen.setdefault(rule, []).append(choice)
    return candidates, chosen


def choose_radii(dataset: str, candidates: Sequence[Record]) -> dict[str, int]:
    """Return the index of the radius that each rule chooses, the smaller one on a tie; only the last sees test data.

    Args:
        candidates: the runs of one method and seed, by radius.
    """
    radii = SETUPS[dataset].attack_radii
    rules = {"holdout": ("training_domain", ""), "one standard error": ("one_standard_error", "")}
    rules |= {f"holdout under attack, {radius}": ("attacked_holdout", radius) for radius in radii}
    choices = {}
    for name, (rule, radius) in rules.items():
        records = {
            -index: [
                make_record(each["holdout"], each["test"], attacked=each["attacked"].get(radius), **read_hparams(each))
            ]
            for index, each in enumerate(candidates)
        }
        choices[name] = -select(records, rule, candidates[0]["holdout_sizes"])[0]
    accuracies = [stressed_accuracy(dataset, record) for record in candidates]
    choices["test domain (oracle)"] = accuracies.index(max(accuracies))
    return choices


def read_hparams(record: Record) -> dict[str, Any]:
    """Return the hyperparameters in the key of a record's arm."""
    hparams: dict[str, Any] = json.loads(record["key"][2])[1]
    return hparams


def format_mean(values: Sequence[float], *, is_signed: bool = False) -> str:
    """Return the mean in percent with its standard error."""
    if not values:
        return ""
    estimate = estimate_mean(values)
    error = "" if estimate.error is None else f" ± {100 * estimate.error:.1f}"
    return f"{100 * estimate.mean:{'+' if is_signed else ''}.1f}{error}"


def plot_study(records: Sequence[Record], file: Path) -> None:
    """Plot accuracy at the largest shifts against the radius, and against the number of perturbations."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained", sharey=True)
    setup = SETUPS["silhouettes"]

    def draw(axes: Axes, arms: dict[float, Arm], label: str) -> None:
        """Plot the arms that have runs, by their place on the axis."""
        points = [
            (place, estimate.mean, estimate.error or 0.0)
            for place, arm in arms.items()
            if (runs := find_runs(records, arm))
            for estimate in [estimate_mean([stressed_accuracy("silhouettes", each) for each in runs.values()])]
        ]
        if points:
            places, means, errors = zip(*points, strict=True)
            axes.errorbar(places, means, errors, marker="o", capsize=3, label=label)

    for label, (algorithm, hparams) in FAMILY.items():
        arms = {radius: Arm("", algorithm, {**hparams, "epsilon": radius}) for radius in setup.radii}
        draw(left, {float(radius): arm for radius, arm in arms.items()}, label)
    for weights in WEIGHTS:
        at_radius = {"weights": weights, "epsilon": setup.radius}
        draw(right, {count: Arm("", "mat", {**at_radius, "count": count}) for count in COUNTS}, f"MAT, {weights}")
    for axes in (left, right):
        add_reference(axes, records, Arm("ERM", "erm"), "--")
        add_reference(axes, records, Arm("ERM, augmented", "erm", is_augmented=True), ":")
        axes.set_xscale("log")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(fontsize=8, loc="lower left")
    add_reference(right, records, Arm("UAT", "uat", {"epsilon": setup.radius}), "-.", "gray")
    add_reference(right, records, Arm("AT", "at", {"epsilon": setup.radius}), (0, (1, 3)), "gray")
    right.legend(fontsize=8, loc="lower left")
    left.set_xticks(setup.radii, [f"{radius:g}" for radius in setup.radii])
    right.set_xticks(COUNTS, map(str, COUNTS))
    left.set_xlabel("radius of training (l2 over the image)")
    right.set_xlabel(f"k, perturbations per domain (radius {setup.radius:g})")
    left.set_ylabel(f"accuracy at {setup.stress.replace('_', ' ')}")
    figure.savefig(file, dpi=150)


def add_reference(axes: Axes, records: Sequence[Record], arm: Arm, style: Any, color: str = "black") -> None:
    """Add a horizontal line at the mean accuracy of an arm."""
    mean = estimate_mean([stressed_accuracy("silhouettes", each) for each in find_runs(records, arm).values()]).mean
    axes.axhline(mean, color=color, linewidth=1, linestyle=style, label=arm.label)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    runner = commands.add_parser("run", help="train what is not in the file of records")
    runner.set_defaults(call=run)
    runner.add_argument("dataset", choices=list(SETUPS))
    runner.add_argument("--seeds", type=parse_seeds, default=range(10), help="first-last, or a list: 0,3,5")
    runner.add_argument("--test-domain", action="append", default=[], help="hold out this domain; repeatable")
    runner.add_argument("--train-domain", action="append", default=[], help="train on this domain only; repeatable")
    runner.add_argument("--arm", action="append", default=[], help="run this arm only; repeatable")
    runner.add_argument("--short", action="store_true", help="leave out variations")
    runner.add_argument("--data-dir", default="", help="folder that contains PACS or OfficeCaltech10")
    runner.add_argument("--weights", default="IMAGENET1K_V1", help="weights of MobileNetV2")
    runner.add_argument("--workers", type=int, default=2, help="number of processes, with one thread each")
    runner.add_argument("--records", type=Path, default=Path("runs/structured.jsonl"))
    printer = commands.add_parser("tables", help="print the tables of a file of records as Markdown")
    printer.set_defaults(call=print_tables)
    printer.add_argument("--records", type=Path, default=Path("runs/structured.jsonl"))
    printer.add_argument("--picture", type=Path, help="file for the figure of silhouettes")
    options = parser.parse_args()
    options.call(options)


def parse_seeds(text: str) -> list[int]:
    first, dash, last = text.partition("-")
    return list(range(int(first), int(last) + 1)) if dash else [int(each) for each in text.split(",")]


if __name__ == "__main__":
    main()
