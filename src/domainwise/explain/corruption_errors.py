"""Accuracy of trained models on corrupted images, and its summary: the mean corruption error (mCE) and relative mCE.

Hendrycks and Dietterich (ICLR 2019, Section 4.1) divide the errors E of a model by those of a reference model, per
corruption c and summed over severities s, and average over corruptions:

    CE_c          = sum_s E_{s,c}             / sum_s E_{s,c}(reference)
    relative CE_c = sum_s (E_{s,c} - E_clean) / sum_s (E_{s,c}(reference) - E_clean(reference))

Their reference is AlexNet, whose errors on ImageNet say nothing about other data. Here it is one of the runs.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl
import torch
from torch import Tensor

from domainwise.data.dataset import Domain
from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.errors import DomainwiseError, unknown_choice
from domainwise.explain.corruptions import (
    CORRUPTIONS,
    SEVERITIES,
    check_corruptible,
    check_corruption,
    corrupt_images,
    count_workers,
)
from domainwise.storage.run_folder import Which
from domainwise.training.evaluation import count_correct
from domainwise.training.loading import OpenRun

CLEAN = "clean"
REFERENCE = "erm"
# Models that share corrupted images are in memory together, up to this many.
_MAX_MODELS = 16


@dataclass(frozen=True)
class CorruptionResult:
    """Accuracy of one run's model on one domain under one corruption; `clean` with severity 0 is none."""

    run: str
    domain: str
    corruption: str
    severity: int
    accuracy: float
    images: int


@dataclass(frozen=True)
class _TestSet:
    """Images of one domain, and the positions of the runs that are tested on them."""

    domain: Domain
    indices: Tensor
    runs: list[int]


def measure_corruptions(
    runs: Sequence[OpenRun],
    *,
    domains: Sequence[str] = (),
    corruptions: Sequence[str] = CORRUPTIONS,
    severities: Sequence[int] = SEVERITIES,
    images: int | None = None,
    which: Which = "best",
    seed: int = 0,
    device: torch.device | None = None,
    on_progress: OnProgress = ignore_progress,
) -> list[list[CorruptionResult]]:
    """Measure the model of each run on clean and on corrupted images; the same seed gives the same numbers.

    Images are corrupted once for all runs that are tested on the same ones. In memory is one corruption of one domain
    at a time.

    Args:
        domains: names of the domains (default: each run's test domains).
        corruptions: some of `CORRUPTIONS`.
        severities: some of 1 to 5. The clean accuracy is measured in any case.
        images: number of images per domain, from its main part (default: all).
        which: model of each run, `best` or `last`.
        seed: seed for the random part of corruptions.

    Returns:
        The results of each run, in the order of `runs`.
    """
    _check_request(corruptions, severities, images)
    for each in runs:
        check_corruptible(each.dataset.image_shape)
    device = device or torch.device("cpu")
    test_sets = _find_test_sets(runs, domains, images)
    requests = [(corruption, severity) for corruption in corruptions for severity in severities]
    workers = count_workers(
        len(requests) * sum(len(part.indices) * part.domain.images[0, 0].numel() for part in test_sets)
    )
    results: list[list[CorruptionResult]] = [[] for _ in runs]
    for done, part in enumerate(test_sets):
        models = {run: runs[run].model(which).to(device) for run in part.runs}
        everything = torch.arange(len(part.indices))
        for count, (corruption, severity) in enumerate([(CLEAN, 0), *requests]):
            on_progress("images under corruptions", done * len(requests) + count, len(test_sets) * len(requests))
            tested = part.domain
            if severity:
                corrupted = corrupt_images(
                    tested.images, corruption, severity, seed, indices=part.indices.tolist(), workers=workers
                )
                tested = Domain(tested.name, corrupted, tested.labels)
            for run, model in models.items():
                accuracy = count_correct(model, tested, everything, device) / len(everything)
                results[run].append(
                    CorruptionResult(runs[run].name, tested.name, corruption, severity, accuracy, len(everything))
                )
    on_progress("images under corruptions", len(test_sets) * len(requests), len(test_sets) * len(requests))
    return results


def _check_request(corruptions: Sequence[str], severities: Sequence[int], images: int | None) -> None:
    if not corruptions or not severities:
        raise DomainwiseError("expected at least one corruption and one severity")
    for corruption in corruptions:
        for severity in severities:
            check_corruption(corruption, severity)
    if images is not None and images < 1:
        raise DomainwiseError(f"the number of images must be at least 1, got {images}")


def _find_test_sets(runs: Sequence[OpenRun], domains: Sequence[str], images: int | None) -> list[_TestSet]:
    """Group the runs by the images that they are tested on, in groups of up to `_MAX_MODELS`."""
    groups: dict[object, _TestSet] = {}
    full: list[_TestSet] = []
    for position, run in enumerate(runs):
        for name in dict.fromkeys(domains) or run.roles.test:
            if name not in run.dataset.domain_names:
                raise unknown_choice(f"domain of {run.dataset.name}", name, run.dataset.domain_names)
            domain, indices = run.dataset.domains[run.dataset.index(name)], run.splits[name].main[:images]
            chosen = Domain(name, domain.images[indices], domain.labels[indices])
            key = (name, _digest(indices), _digest(chosen.images), _digest(chosen.labels))
            group = groups.setdefault(key, _TestSet(chosen, indices, []))
            group.runs.append(position)
            if len(group.runs) == _MAX_MODELS:
                full.append(groups.pop(key))
    return [*full, *groups.values()]


def _digest(tensor: Tensor) -> bytes:
    array = tensor.permute(0, 2, 3, 1) if tensor.ndim == 4 else tensor
    return hashlib.sha256(array.contiguous().numpy().data).digest()


_RUN = ("label", "trial", "held_out", "run", "domain")


def summarize_corruptions(frame: pl.DataFrame, reference: str | None = None) -> pl.DataFrame:
    """Summarize the corruption errors of each run on each domain.

    Args:
        frame: one row per run, domain, corruption and severity, as the `measurements` of `corrupt_runs`.
        reference: label or run whose errors the others are divided by (default: `erm`, if it is a label). The runs of
            a label are the reference of runs of the same trial with the same held-out domains; a single run is the
            reference of all.

    Returns:
        One row per run and domain:

        - `label`, `trial`, `held_out`, `run`, `domain`
        - `clean`: clean accuracy
        - `accuracy`, `error`: mean accuracy and mean error over corruptions and severities
        - `mce`, `relative_mce`: as fractions; null without a reference
        - `without_error`: corruptions under which the reference makes no error; `mce` is the mean of the others
        - `left_out`: corruptions under which the reference loses no accuracy; `relative_mce` is the mean of the others
    """
    clean = frame.filter(corruption=CLEAN).select(*_RUN, clean="accuracy")
    corrupted = frame.filter(pl.col("corruption") != CLEAN).join(clean, on=_RUN, maintain_order="left")
    # Per corruption, the errors and the losses of accuracy, summed over severities.
    sums = corrupted.group_by(*_RUN, "clean", "corruption", maintain_order=True).agg(
        error=(1 - pl.col("accuracy")).sum(), loss=(pl.col("clean") - pl.col("accuracy")).sum(), severities=pl.len()
    )
    rows, keys = _select_reference(sums, reference)
    references = rows.group_by(keys).agg(reference_error=pl.col("error").mean(), reference_loss=pl.col("loss").mean())
    ratios = sums.join(references, on=keys, how="left", maintain_order="left").with_columns(
        ce=_divide("error", "reference_error"), relative_ce=_divide("loss", "reference_loss")
    )
    mean_error = pl.col("error").sum() / pl.col("severities").sum()
    has_reference = pl.col("reference_error").is_not_null()
    return ratios.group_by(_RUN, maintain_order=True).agg(
        pl.col("clean").first(),
        accuracy=1 - mean_error,
        error=mean_error,
        mce=pl.col("ce").mean(),
        relative_mce=pl.col("relative_ce").mean(),
        without_error=pl.col("corruption").filter(has_reference, pl.col("ce").is_null()),
        left_out=pl.col("corruption").filter(has_reference, pl.col("relative_ce").is_null()),
    )


def _select_reference(sums: pl.DataFrame, reference: str | None) -> tuple[pl.DataFrame, list[str]]:
    """Return the rows of the reference, and the columns in which a run has to agree with it."""
    check_reference(reference, sums["label"].to_list(), sums["run"].to_list())
    if reference is None or reference in sums["label"]:
        label = REFERENCE if reference is None else reference
        return sums.filter(label=label), ["trial", "held_out", "domain", "corruption"]
    return sums.filter(run=reference), ["domain", "corruption"]


def check_reference(reference: str | None, labels: Sequence[str], runs: Sequence[str]) -> None:
    choices = list(dict.fromkeys([*labels, *runs]))
    if reference is not None and reference not in choices:
        raise unknown_choice("reference", reference, choices)


def _divide(value: str, by: str) -> pl.Expr:
    """Return a ratio that is null unless the denominator is positive."""
    # Sums of equal accuracies may differ by rounding.
    return pl.when(pl.col(by) > 1e-9).then(pl.col(value) / pl.col(by))
