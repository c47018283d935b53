"""Accuracy of trained models under attacks of growing radius, and against the epsilon of their training (Figure 1).

The attacks are those of `domainwise.training.attacks`, or someone else's. The domain-wise attack fits a single
perturbation on the domain's holdout and adds it to the images of its main part, which it has not seen; all others
perturb every image separately.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from domainwise.data.batches import iterate_batches
from domainwise.data.dataset import Domain, Split
from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.errors import DomainwiseError, unknown_choice
from domainwise.perturbations.base import Norm
from domainwise.perturbations.radius import parse_radius
from domainwise.plugins import import_name
from domainwise.selection import SELECTIONS
from domainwise.selection.runs import check_no_duplicates, read_runs
from domainwise.selection.score import binomial_variance
from domainwise.selection.statistics import aggregate_means
from domainwise.storage.run_folder import RunFolder, Which
from domainwise.training.attacks import (
    ATTACK_NAMES,
    AttackName,
    AttackSettings,
    ModelAttack,
    adapt_attack,
    build_attack,
    check_num_classes,
    check_used,
    import_autoattack,
    takes_epsilon,
)
from domainwise.training.evaluation import count_correct
from domainwise.training.loading import OpenRun

# Titles of figures.
ATTACKS: Mapping[str, str] = {
    "domain": "one perturbation per domain",
    "sample": "one perturbation per sample",
    "fgsm": "FGSM",
    "pgd": "PGD",
    "apgd": "APGD",
    "apgd-t": "targeted APGD",
    "autoattack": "AutoAttack",
}
DEFAULT_ATTACKS: tuple[AttackName, ...] = ("domain", "sample")
EPSILONS: Mapping[Norm, tuple[float, ...]] = {
    "l2": (0.0, 0.25, 0.5, 1.0, 2.0, 4.0),
    "linf": (0.0, 1 / 255, 2 / 255, 4 / 255, 8 / 255),
}
AVERAGE = "average"

# Names, such as "pgd" or "package.module:function", or custom attacks by name.
Attacks = Sequence[str] | Mapping[str, Any]


@dataclass(frozen=True)
class AttackResult:
    """Accuracy of one run's model on one domain under one attack.

    Args:
        norm, epsilon: None for a custom attack that is not called with an epsilon.
    """

    run: str
    domain: str
    attack: str
    norm: Norm | None
    epsilon: float | None
    accuracy: float
    images: int


def attack_run(
    run: OpenRun,
    *,
    domains: Sequence[str] = (),
    attacks: Attacks = DEFAULT_ATTACKS,
    norm: Norm | None = None,
    epsilons: Sequence[float | str] = (),
    steps: int | None = None,
    step_size: float | str | None = None,
    restarts: int = 1,
    images: int | None = None,
    which: Which = "best",
    seed: int = 0,
    device: torch.device | None = None,
    on_progress: OnProgress = ignore_progress,
) -> list[AttackResult]:
    """Measure the run's model under every attack requested; the same seed gives the same numbers.

    Args:
        domains: names of the domains (default: the run's test domains).
        attacks: names of attacks: `domain`, `sample`, `fgsm`, `pgd`, `apgd`, `apgd-t`, `autoattack`, or
            `package.module:function`. Or a dict of names to attacks, which may be a name, a function of (model, x, y)
            or (model, x, y, epsilon) that returns perturbed images, or an attack object of torchattacks or foolbox.
        norm: `l2` or `linf` (default: l2 for `domain` and `sample` alone, otherwise linf).
        epsilons: radii of the attacks, numbers or text such as `4/255` or `2/255 rms` (default: `EPSILONS` of the
            norm). An l2 radius is over a whole image in [0, 1], whatever its size. Radius 0 gives the clean accuracy.
        steps, step_size, restarts: as for `AttackSettings`.
        images: number of images per domain, from its main part (default: all).
        which: model of the run, `best` or `last`.
        seed: seed for the random starts.
    """
    named = _name_attacks(attacks)
    norm = norm or ("l2" if set(named) <= set(DEFAULT_ATTACKS) else "linf")
    if norm not in EPSILONS:
        raise unknown_choice("norm", norm, EPSILONS)
    resolved = {label: _resolve_attack(attack, norm) for label, attack in named.items()}
    if images is not None and images < 1:
        raise DomainwiseError(f"the number of images must be at least 1, got {images}")
    shape = run.dataset.image_shape
    radii = sorted({_parse_radius(each, shape, norm) for each in epsilons or EPSILONS[norm]})
    size = None if step_size is None else _parse_radius(step_size, shape, norm, "step_size")
    shared = AttackSettings(DEFAULT_ATTACKS[0], None, norm, steps, size, restarts, seed)
    check_used(shared, resolved)
    names = tuple(dict.fromkeys(domains)) or run.roles.test
    for name in names:
        if name not in run.dataset.domain_names:
            raise unknown_choice(f"domain of {run.dataset.name}", name, run.dataset.domain_names)
    for attack in resolved.values():
        check_num_classes(attack, len(run.dataset.classes))
    device = device or torch.device("cpu")
    model = run.model(which).to(device)
    plan = [
        (name, label, attack, radius)
        for name in names
        for label, attack in resolved.items()
        for radius in (radii if takes_epsilon(attack) else (None,))
    ]
    parts = {name: run.splits[name].main[:images] for name in names}
    total, done = sum(len(parts[name]) for name, *_ in plan), 0
    results: list[AttackResult] = []
    for name, label, attack, radius in plan:
        domain = run.dataset.domains[run.dataset.index(name)]
        split = Split(main=parts[name], holdout=run.splits[name].holdout)
        report = partial(_report_images, on_progress, f"attacking {run.name}", done, total)
        settings = replace(shared, attack=attack, epsilon=radius)
        accuracy = evaluate_under_attack(model, domain, split, settings, device, report)
        used_norm = None if radius is None else norm
        results.append(AttackResult(run.name, name, label, used_norm, radius, accuracy, len(split.main)))
        done += len(split.main)
    return results


def evaluate_under_attack(
    model: nn.Module,
    domain: Domain,
    split: Split,
    settings: AttackSettings,
    device: torch.device,
    on_images: Callable[[int], None] = lambda count: None,
) -> float:
    """Return the model's accuracy on the attacked images of the split's main part.

    Args:
        on_images: called with the number of images attacked so far.
    """
    if settings.attack == "domain" and settings.epsilon and not len(split.holdout):
        raise DomainwiseError(f"domain {domain.name!r} has no holdout to fit a perturbation on; use --attack sample")
    holdout = iterate_batches(domain, split.holdout, device)
    attack = build_attack(model, settings, tuple(domain.images.shape[1:]), device, fit_batches=holdout)
    count = 0

    def attack_and_report(x: Tensor, y: Tensor) -> Tensor:
        nonlocal count
        x_adv = attack(x, y)
        count += len(x)
        on_images(count)
        return x_adv

    return count_correct(model, domain, split.main, device, attack_and_report) / len(split.main)


def _report_images(on_progress: OnProgress, task: str, before: int, total: int, count: int) -> None:
    on_progress(task, before + count, total)


def average_attacks(frame: pl.DataFrame) -> pl.DataFrame:
    """Average over runs: one row per label, domain, attack, norm and epsilon, with `mean`, `error` and `count`.

    The error of a single run is the binomial one of its images.

    Args:
        frame: one row per measurement, as `attack_runs` returns it.
    """
    keys = ["label", "domain", "attack", "norm", "epsilon"]
    means = aggregate_means(frame, keys)
    images = frame.group_by(keys, maintain_order=True).agg(pl.col("images").first())["images"]
    binomial = pl.Series(np.sqrt(binomial_variance(means["mean"].to_numpy(), images.to_numpy())))
    return means.with_columns(error=pl.col("error").fill_null(binomial))


def _name_attacks(attacks: str | Attacks) -> Mapping[str, Any]:
    if isinstance(attacks, str):
        attacks = (attacks,)
    named = attacks if isinstance(attacks, Mapping) else {each: each for each in attacks}
    if not named:
        raise DomainwiseError(f"at least one attack is needed; choices: {', '.join(ATTACK_NAMES)}")
    return named


def _resolve_attack(attack: Any, norm: Norm) -> AttackName | ModelAttack:
    """Return a built-in attack as its name, and a custom one as a function."""
    if isinstance(attack, str):
        if attack == "autoattack":
            import_autoattack()  # before other attacks take their time
        if attack in ATTACK_NAMES:
            return attack
        if ":" not in attack:
            choices = f"{', '.join(ATTACK_NAMES)}, or package.module:function"
            raise unknown_choice("attack", attack, ATTACK_NAMES, choices)
        attack = import_name("attack", attack)
    return adapt_attack(attack, norm)


def _parse_radius(value: float | str, shape: Sequence[int], norm: Norm, name: str = "epsilon") -> float:
    try:
        radius = parse_radius(value, shape, norm, name)
    except ValueError as error:
        raise DomainwiseError(str(error)) from None
    if norm == "linf" and radius > 1:
        hint = "" if "/" in str(value) else f"; did you mean {value}/255?"
        raise DomainwiseError(f"{name} must be at most 1 for norm='linf', got {value}{hint}")
    return radius


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
