"""Accuracy of trained models under attacks of growing radius, and against the epsilon of their training (Figure 1).

The attacks are those of `domainwise.training.evaluation`. The sample-wise attack perturbs every image separately. The
domain-wise attack fits a single perturbation on the domain's holdout and adds it to the images of its main part, which
it has not seen.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import polars as pl
import torch
from torch import nn

from domainwise.data.batches import iterate_batches
from domainwise.data.dataset import Domain, Split
from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.errors import DomainwiseError, unknown_choice
from domainwise.perturbations.radius import parse_radius
from domainwise.selection import SELECTIONS
from domainwise.selection.runs import check_no_duplicates, read_runs
from domainwise.selection.statistics import aggregate_means
from domainwise.storage.run_folder import RunFolder, Which
from domainwise.training.evaluation import AttackKind, build_attack, count_correct
from domainwise.training.loading import OpenRun

ATTACK_KINDS: tuple[AttackKind, ...] = get_args(AttackKind)
ATTACKS: Mapping[AttackKind, str] = {"domain": "one perturbation per domain", "sample": "one perturbation per sample"}
RADII = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
AVERAGE = "average"


@dataclass(frozen=True)
class AttackResult:
    """Accuracy of one run's model on one domain under one attack."""

    run: str
    domain: str
    kind: AttackKind
    radius: float
    accuracy: float
    images: int


def attack_run(
    run: OpenRun,
    *,
    domains: Sequence[str] = (),
    radii: Sequence[float] = RADII,
    kinds: Sequence[AttackKind] = ATTACK_KINDS,
    steps: int = 20,
    images: int | None = None,
    which: Which = "best",
    seed: int = 0,
    device: torch.device | None = None,
    on_progress: OnProgress = ignore_progress,
) -> list[AttackResult]:
    """Measure the run's model under every attack requested; the same seed gives the same numbers.

    Args:
        domains: names of the domains (default: the run's test domains).
        radii: l2 radii over a whole image in [0, 1], whatever its size. Radius 0 gives the clean accuracy.
        kinds: kinds of attack, `domain` and `sample`.
        steps: ascent steps per attack.
        images: number of images per domain, from its main part (default: all).
        which: model of the run, `best` or `last`.
        seed: seed for the random starts.
    """
    _check_attack(radii, kinds, steps, images)
    names = tuple(domains) or run.roles.test
    for name in names:
        if name not in run.dataset.domain_names:
            raise unknown_choice(f"domain of {run.dataset.name}", name, run.dataset.domain_names)
    device = device or torch.device("cpu")
    model = run.model(which).to(device)
    results: list[AttackResult] = []
    for name in names:
        domain, split = run.dataset.domains[run.dataset.index(name)], run.splits[name]
        attacked = Split(main=split.main[:images], holdout=split.holdout)
        for kind in kinds:
            for radius in radii:
                accuracy = evaluate_under_attack(model, domain, attacked, kind, radius, steps, seed, device)
                results.append(AttackResult(run.name, name, kind, radius, accuracy, len(attacked.main)))
                on_progress(f"attacking {run.name}", len(results), len(names) * len(kinds) * len(radii))
    return results


def evaluate_under_attack(
    model: nn.Module,
    domain: Domain,
    split: Split,
    kind: AttackKind,
    radius: float,
    steps: int,
    seed: int,
    device: torch.device,
) -> float:
    """Return the model's accuracy on the attacked images of the split's main part."""
    if kind == "domain" and radius > 0 and not len(split.holdout):
        raise DomainwiseError(f"domain {domain.name!r} has no holdout to fit a perturbation on; use --kind sample")
    holdout = iterate_batches(domain, split.holdout, device)
    shape = tuple(domain.images.shape[1:])
    attack = build_attack(model, shape, kind, radius, steps, seed, device, fit_batches=holdout)
    return count_correct(model, domain, split.main, device, attack) / len(split.main)


def _check_attack(radii: Sequence[float], kinds: Sequence[str], steps: int, images: int | None) -> None:
    if not radii or not all(0 <= radius < float("inf") for radius in radii):
        raise DomainwiseError(f"radii must be numbers of at least 0, got {list(radii)}")
    for kind in kinds:
        if kind not in ATTACK_KINDS:
            raise unknown_choice("kind of attack", kind, ATTACK_KINDS)
    if steps < 1:
        raise DomainwiseError(f"an attack needs at least 1 step, got {steps}")
    if images is not None and images < 1:
        raise DomainwiseError(f"the number of images must be at least 1, got {images}")


def read_accuracy_by_epsilon(paths: Sequence[Path]) -> pl.DataFrame:
    """Read the test accuracy of finished runs by the epsilon they were trained with.

    Per method, epsilon, trial and test domain, training-domain validation selects the record. Hyperparameter samples of
    the same epsilon compete; a sampled epsilon is a point of its own.

    Args:
        paths: run folders, or folders with runs below them, all of one dataset.

    Returns:
        One row per method, epsilon, trial and test domain (`dataset`, `method`, `epsilon`, `trial`, `domain`,
        `accuracy`, `run`). `epsilon` is null for methods without one. With several test domains, rows of the domain
        "average" follow, for each method, epsilon and trial that was tested on all of them.
    """
    runs = read_runs(paths, keep_duplicates=True)
    for note in runs.notes:
        warnings.warn(note, stacklevel=2)
    epsilons = pl.DataFrame(
        [(run, _read_epsilon(run)) for run in runs.frame["run"].unique(maintain_order=True) if _is_ours(run)],
        schema={"run": pl.String, "epsilon": pl.Float64},
        orient="row",
    )
    frame = runs.frame.drop("epsilon").with_columns(method="algorithm").join(epsilons, on="run", maintain_order="left")
    if frame.is_empty():
        raise DomainwiseError(f"no finished runs in {', '.join(map(str, paths))}")
    if frame["dataset"].n_unique() > 1:
        names = ", ".join(sorted(frame["dataset"].unique()))
        raise DomainwiseError(f"the runs are of several datasets ({names}); give runs of one dataset")
    # Selection compares whatever shares an algorithm, so each epsilon is an algorithm of its own here.
    suffix = pl.when(pl.col("epsilon").is_null()).then(pl.lit("")).otherwise(pl.format(" with epsilon {}", "epsilon"))
    frame = frame.with_columns(algorithm=pl.concat_str("method", suffix))
    check_no_duplicates(frame)
    methods = frame.select("run", "method", "epsilon").unique()
    selected = SELECTIONS["training_domain"](frame).join(methods, on="run", how="left", maintain_order="left")
    columns = ("dataset", "method", "epsilon", "trial", pl.col("test_domain").alias("domain"), "accuracy", "run")
    return _append_average(selected.select(columns))


def _is_ours(run: str) -> bool:
    """Exclude DomainBed's runs, which do not record an epsilon under a name we know."""
    return RunFolder(run).config_file.exists()


def _read_epsilon(run: str) -> float | None:
    stored = RunFolder(run).read_config()
    epsilon = stored["config"].get("hparams", {}).get("epsilon")
    return None if epsilon is None else parse_radius(epsilon, stored["data"].get("input_shape", ()))


def _append_average(frame: pl.DataFrame) -> pl.DataFrame:
    domains = frame["domain"].n_unique()
    if domains == 1:
        return frame
    average = (
        frame.group_by("dataset", "method", "epsilon", "trial", maintain_order=True)
        .agg(pl.col("accuracy").mean(), pl.col("run").first(), count=pl.len())
        .filter(pl.col("count") == domains)
        .with_columns(domain=pl.lit(AVERAGE))
    )
    return pl.concat([frame, average.select(frame.columns)])


def average_by_epsilon(frame: pl.DataFrame) -> pl.DataFrame:
    """Average over trials: one row per domain, method and epsilon, with `mean`, `error` and `count`."""
    means = aggregate_means(frame, ["domain", "method", "epsilon"])
    return means.sort("domain", "method", "epsilon", nulls_last=False)
