"""Structured perturbations compared in pairs: every arm sees the same batches and starts from the same weights.

An arm is a method with its settings. Each of its runs is one line in a file of records, so rerunning a command resumes
it, and the tables can be printed again at any time.

    python benchmarks/structured.py run --records runs/structured.jsonl --set silhouettes --seeds 0-9
    python benchmarks/structured.py table --records runs/structured.jsonl
"""

import argparse
import copy
import json
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from domainwise import UniversalPerturbation
from domainwise.algorithms import ALGORITHMS, Algorithm
from domainwise.data import Dataset, Domain
from domainwise.data.batches import draw_batches, iterate_batches
from domainwise.data.dataset import split_domains
from domainwise.networks import NETWORKS, build_backbone
from domainwise.perturbations import MultiplePerturbation
from domainwise.training.device import keep_freed_memory
from domainwise.training.registry import build_dataset

CPU = torch.device("cpu")
ATTACK_RADII = ("0.5/255 rms", "1/255 rms", "2/255 rms", "4/255 rms")


@dataclass(frozen=True)
class Arm:
    """A method and its settings; two arms with equal settings are the same."""

    algorithm: str
    hparams: dict[str, Any] = field(default_factory=dict)
    augment: bool = False
    steps: int = 0

    @property
    def name(self) -> str:
        settings = [f"{key}={value}" for key, value in self.hparams.items()]
        return " ".join([self.algorithm, *settings, *["augmented"] * self.augment, *[f"{self.steps} steps"] * (self.steps > 0)])


@dataclass(frozen=True)
class Task:
    """One run: an arm on a dataset, with some domains held out."""

    arm: Arm
    dataset: str
    seed: int
    test_domains: tuple[str, ...] = ()
    train_domains: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        return json.dumps([self.arm.name, self.dataset, self.seed, self.test_domains, self.train_domains])


@dataclass(frozen=True)
class Setup:
    """How all runs on a dataset train."""

    network: str
    steps: int
    batch_size: int
    lr: float
    options: dict[str, Any] = field(default_factory=dict)


SETUPS = {
    "silhouettes": Setup("small_cnn", 700, 64, 1e-3),
    "silhouettes_spurious": Setup("small_cnn", 700, 64, 1e-3),
    "pacs": Setup("mobilenet_v2", 300, 16, 1e-4, {"image_size": 64}),
    "office_caltech10": Setup("mobilenet_v2", 200, 16, 1e-4, {"image_size": 64}),
}


@lru_cache(maxsize=1)
def load_dataset(name: str, seed: int, data_dir: str) -> Dataset:
    options = SETUPS[name].options
    if name == "office_caltech10":
        return build_dataset(Path(data_dir) / "OfficeCaltech10", options, seed=seed)
    return build_dataset(name, options, seed=seed, data_dir=data_dir or None)


def build_network(name: str, dataset: Dataset, weights: str) -> nn.Module:
    if name in NETWORKS:
        return NETWORKS[name](dataset.image_shape, len(dataset.classes), 0.0)
    return build_backbone(name, dataset.image_shape, len(dataset.classes), 0.0, weights=weights, batch_norm="frozen")


def run_task(task: Task, data_dir: str, weights: str) -> dict[str, Any]:
    """Train one arm and return its record. What an arm draws for itself comes from a stream of its own."""
    torch.set_num_threads(1)
    keep_freed_memory()
    started = time.perf_counter()
    setup, arm = SETUPS[task.dataset], task.arm
    dataset = load_dataset(task.dataset, task.seed, data_dir)
    splits = split_domains(dataset, task.seed)
    domains = {domain.name: domain for domain in dataset.domains}
    train, test = split_roles(dataset, task)
    steps = arm.steps or setup.steps
    torch.manual_seed(task.seed)
    network = build_network(setup.network, dataset, weights).to(memory_format=torch.channels_last)
    algorithm = ALGORITHMS[arm.algorithm](
        network,
        num_domains=len(train),
        input_shape=dataset.image_shape,
        num_steps=steps,
        domain_sizes=[len(splits[name].main) for name in train],
        generator=torch.Generator().manual_seed(task.seed + 10**6),
        **{"lr": setup.lr, **arm.hparams},
    )
    algorithm.train()
    batch_stream = torch.Generator().manual_seed(task.seed)
    parts = [(domains[name], splits[name].main) for name in train]
    losses = []
    for _ in range(steps):
        batches = draw_batches(parts, setup.batch_size, batch_stream, CPU, is_augmented=arm.augment)
        losses.append(algorithm.update(batches)["loss"])
    network.eval()
    return {
        "key": task.key,
        "dataset": task.dataset,
        "seed": task.seed,
        "arm": arm.name,
        "algorithm": arm.algorithm,
        "hparams": arm.hparams,
        "augment": arm.augment,
        "steps": steps,
        "train": train,
        "test": {name: measure_accuracy(network, domains[name], splits[name].main) for name in test},
        "holdout": {name: measure_accuracy(network, domains[name], splits[name].holdout) for name in train},
        "holdout_sizes": {name: len(splits[name].holdout) for name in train},
        "attacked": {
            radius: {
                name: measure_attacked(network, domains[name], splits[name].main, splits[name].holdout, radius)
                for name in train
            }
            for radius in ATTACK_RADII
        },
        "loss": statistics.fmean(losses[-steps // 10 :]),
        **describe_components(algorithm),
        "seconds": time.perf_counter() - started,
    }


def split_roles(dataset: Dataset, task: Task) -> tuple[list[str], list[str]]:
    fixed = [domain.name for domain in dataset.domains if domain.role == "test"]
    test = list(task.test_domains) or fixed
    train = list(task.train_domains) or [name for name in dataset.domain_names if name not in {*test, *fixed}]
    return train, [name for name in dict.fromkeys([*test, *fixed])]


@torch.no_grad()
def measure_accuracy(network: nn.Module, domain: Domain, indices: torch.Tensor) -> float:
    correct = sum(int((network(x).argmax(1) == y).sum()) for x, y in iterate_batches(domain, indices, CPU))
    return correct / len(indices)


def measure_attacked(
    network: nn.Module, domain: Domain, fit: torch.Tensor, holdout: torch.Tensor, radius: str, steps: int = 20
) -> float:
    """Return the accuracy on the holdout under one perturbation that was fitted to training images of the domain."""
    shape = tuple(domain.images.shape[1:])
    perturbation = UniversalPerturbation(
        shape, epsilon=radius, generator=torch.Generator().manual_seed(0), ascent="normalized"
    )
    perturbation.step_size = 2.5 * perturbation.epsilon / steps
    pool = fit[:512].split(64)
    for number in range(steps):
        chosen = pool[number % len(pool)]
        for x, y in iterate_batches(domain, chosen, CPU):
            perturbation.attack(x, 0, lambda x, y=y: F.cross_entropy(network(x), y, reduction="none"))
    with torch.no_grad():
        correct = sum(
            int((network(perturbation(x, 0)).argmax(1) == y).sum()) for x, y in iterate_batches(domain, holdout, CPU)
        )
    return correct / len(holdout)


def describe_components(algorithm: Algorithm) -> dict[str, Any]:
    """Return the mean cosine of two components and their effective rank, per domain."""
    perturbation = getattr(algorithm, "perturbation", None)
    if not isinstance(perturbation, MultiplePerturbation) or perturbation.count == 1:
        return {}
    unit = F.normalize(perturbation.components().detach().flatten(2), dim=-1)
    count = perturbation.count
    cosine = (unit.sum(1).square().sum(-1) - count) / (count * (count - 1))
    return {"cosine": cosine.tolist()}


def run_all(tasks: Sequence[Task], options: argparse.Namespace) -> None:
    done = {record["key"] for record in read_records(options.records)}
    todo = [task for task in tasks if task.key not in done]
    print(f"{len(tasks)} runs, {len(tasks) - len(todo)} done", file=sys.stderr, flush=True)
    options.records.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(run_task, task, str(options.data_dir or ""), options.weights) for task in todo]
        for number, future in enumerate(as_completed(futures), start=1):
            try:
                record = future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
            with options.records.open("a") as file:
                file.write(json.dumps(record) + "\n")
            tests = " ".join(f"{value:.3f}" for value in record["test"].values())
            held = statistics.fmean(record["holdout"].values())
            print(
                f"{number}/{len(todo)} {record['seconds']:.0f} s, seed {record['seed']}, {record['arm']}: "
                f"holdout {held:.3f}, test {tests}",
                file=sys.stderr,
                flush=True,
            )


def read_records(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
