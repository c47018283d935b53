"""Robustness of the same models to several threats: the measurements, tables and picture of recipes of kind `threats`.

Attacks and corruptions are measured on holdouts of the training domains, so that they do not add to a shift. New
domains are the test domains. All models are those of the last step, which none of the threats has selected.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import combinations
from pathlib import Path
from typing import Literal

import msgspec
import polars as pl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import nn

from domainwise.data.batches import iterate_batches
from domainwise.data.dataset import Domain, Split
from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.explain.corruptions import CORRUPTIONS, SEVERITIES, corrupt_images
from domainwise.perturbations.base import Norm
from domainwise.perturbations.radius import parse_radius
from domainwise.reports.html import TextTable
from domainwise.reports.significance import describe_problems
from domainwise.reproduction.plan import RecipePlan
from domainwise.selection import read_runs
from domainwise.selection.frame import SCHEMA
from domainwise.selection.statistics import Estimate, aggregate_means, estimate_mean, format_percent, pluralize
from domainwise.selection.verdicts import Judgement, PairedTrials, judge_differences
from domainwise.storage.files import read_regular, write_atomic
from domainwise.storage.run_folder import RunFolder
from domainwise.storage.sweep_folder import PlannedRun
from domainwise.training.attacks import AttackName, AttackSettings, build_attack
from domainwise.training.device import pick_device
from domainwise.training.evaluation import count_correct
from domainwise.training.loading import OpenRun, open_run
from domainwise.training.registry import DatasetCache, dataset_name, is_path

Axis = Literal["no threat", "new domains", "sample-wise attacks", "domain-wise attacks", "corruptions"]
AXES: tuple[Axis, ...] = ("new domains", "sample-wise attacks", "domain-wise attacks", "corruptions")
# The row that all others are compared with, seed by seed.
REFERENCE = "erm"
MEASUREMENTS = "measurements.jsonl"

_STEPS = 20
# Images per training domain: those that are attacked and corrupted, and those that a domain-wise attack is fitted on.
_MAX_IMAGES = 100
_FIT_IMAGES = 32 * _STEPS
_SCHEMA = {
    **dict.fromkeys(("dataset", "row"), pl.String),
    "trial": pl.Int64,
    **dict.fromkeys(("threat", "axis"), pl.String),
    "accuracy": pl.Float64,
    "is_collapsed": pl.Boolean,
}
_DESCRIPTIONS = (
    f"Models of the last step. Clean, attacks, corruptions: at most {_MAX_IMAGES} holdout images per training domain. "
    "New domains: the main part of the test domains.",
    "Sample: PGD, one perturbation per image. Domain: one perturbation per domain, fitted on its training images. Both "
    f"take {_STEPS} steps. Corruptions: mean over {len(CORRUPTIONS)} corruptions and {len(SEVERITIES)} severities.",
)
_COLORS = ("#08519c", "#d95f0e", "#4daf4a", "#984ea3")


@dataclass(frozen=True)
class Threat:
    """What accuracy is measured under. Attacks have a norm and a radius."""

    name: str
    axis: Axis
    attack: AttackName = "pgd"
    norm: Norm = "l2"
    epsilon: float | str = 0.0


CLEAN = Threat("clean", "no threat")
NEW_DOMAINS = Threat("new domains", "new domains")
CORRUPTED = Threat("corruptions", "corruptions")
ATTACKS = (
    Threat("sample, l2 2/255 rms", "sample-wise attacks", "pgd", "l2", "2/255 rms"),
    Threat("sample, linf 4/255", "sample-wise attacks", "pgd", "linf", "4/255"),
    Threat("domain, l2 0.1", "domain-wise attacks", "domain", "l2", 0.1),
    Threat("domain, l2 2/255 rms", "domain-wise attacks", "domain", "l2", "2/255 rms"),
    Threat("domain, l2 4/255 rms", "domain-wise attacks", "domain", "l2", "4/255 rms"),
    Threat("domain, linf 4/255", "domain-wise attacks", "domain", "linf", "4/255"),
)
THREATS = (CLEAN, NEW_DOMAINS, *ATTACKS, CORRUPTED)

# Part of what a stored measurement belongs to: change it when a threat is measured differently.
_MEASUREMENT_RULE = 1

# Accuracy in 0..1 by threat.
Accuracies = dict[str, float]
# Failed runs of each row, whose trials have no accuracies, and their errors.
Failures = Mapping[str, Sequence[tuple[PlannedRun, str]]]


def measure_threats(plan: RecipePlan, on_progress: OnProgress = ignore_progress) -> None:
    """Measure the finished runs of a recipe and keep the results in its folder; what is there is not measured again."""
    file = plan.folder / MEASUREMENTS
    known = _read_measurements(file)
    plan.folder.mkdir(parents=True, exist_ok=True)
    datasets: dict[str, DatasetCache] = {}
    # Trial by trial: all rows of one share its images, and so the corrupted ones.
    runs = sorted(
        (
            (run, row_plan.dataset, config.device)
            for row_plan in plan.row_plans
            for run, config in row_plan.runs.items()
            if RunFolder(run.folder).is_done
        ),
        key=lambda each: (each[1], each[0].trial, each[0].test_domains),
    )
    trial: tuple[str, int] | None = None
    corrupted: dict[str, list[Domain]] = {}
    for done, (run, dataset, device) in enumerate(runs):
        on_progress("measuring threats", done, len(runs))
        key = _identify(run.folder)
        if key in known:
            continue
        opened = open_run(
            run.folder,
            dataset=dataset if is_path(dataset) else None,
            data_dir=plan.data_dir,
            datasets=datasets.setdefault(dataset, DatasetCache()),
        )
        if trial != (dataset, run.trial):
            trial, corrupted = (dataset, run.trial), {}
        for name in opened.roles.train:
            if name not in corrupted:
                corrupted[name] = _corrupt(opened, name, on_progress)
        known[key] = measure_run(opened, corrupted, pick_device(device))
        lines = (json.dumps({"run": each, "accuracy": accuracies}) for each, accuracies in known.items())
        write_atomic(file, "".join(f"{line}\n" for line in lines).encode())
    on_progress("measuring threats", len(runs), len(runs))


def measure_run(run: OpenRun, corrupted: Mapping[str, Sequence[Domain]], device: torch.device) -> Accuracies:
    """Return the accuracy of the run's last model under each threat, averaged over domains.

    Args:
        corrupted: per training domain, its holdout images under every corruption and severity.
    """
    model = run.model("last").to(device)
    recorded = run.records[-1]["accuracy"]
    accuracies = {NEW_DOMAINS.name: statistics.fmean(recorded[name]["main"] for name in run.roles.test)}
    by_domain: dict[str, list[float]] = {}
    for name in run.roles.train:
        domain, split = run.dataset.domains[run.dataset.index(name)], _select_images(run, name)
        for threat in (CLEAN, *ATTACKS):
            by_domain.setdefault(threat.name, []).append(_measure_attack(model, domain, split, threat, device))
        variants = [count_correct(model, each, torch.arange(len(each)), device) / len(each) for each in corrupted[name]]
        by_domain.setdefault(CORRUPTED.name, []).append(statistics.fmean(variants))
    return accuracies | {name: statistics.fmean(values) for name, values in by_domain.items()}


def _select_images(run: OpenRun, name: str) -> Split:
    """Return the attacked images as `holdout`, and those that a domain-wise attack is fitted on as `main`."""
    split = run.splits[name]
    return Split(main=split.main[:_FIT_IMAGES], holdout=split.holdout[:_MAX_IMAGES])


def _measure_attack(model: nn.Module, domain: Domain, split: Split, threat: Threat, device: torch.device) -> float:
    shape = tuple(domain.images.shape[1:])
    settings = AttackSettings(threat.attack, parse_radius(threat.epsilon, shape, threat.norm), threat.norm, _STEPS)
    # One batch per step of a domain-wise attack.
    batches = iterate_batches(domain, split.main, device, _FIT_IMAGES // _STEPS)
    attack = build_attack(model, settings, shape, device, fit_batches=batches)
    return count_correct(model, domain, split.holdout, device, attack) / len(split.holdout)


def _corrupt(run: OpenRun, name: str, on_progress: OnProgress) -> list[Domain]:
    """Return the attacked images of a domain under every corruption and severity."""
    domain, chosen = run.dataset.domains[run.dataset.index(name)], _select_images(run, name).holdout
    images, labels = domain.images[chosen], domain.labels[chosen]
    requests = [(corruption, severity) for corruption in CORRUPTIONS for severity in SEVERITIES]
    corrupted = []
    for done, (corruption, severity) in enumerate(requests, start=1):
        variant = corrupt_images(images, corruption, severity)
        corrupted.append(Domain(f"{name}, {corruption} {severity}", variant, labels))
        on_progress(f"corrupting images of {name}", done, len(requests))
    return corrupted


def _identify(folder: Path) -> str:
    """Return what a stored measurement belongs to: the very weights that were measured, and the rule."""
    digest = sha256(RunFolder(folder).weights_file("last").read_bytes()).hexdigest()
    return f"{digest[:32]}-{_MEASUREMENT_RULE}"


def _read_measurements(file: Path) -> dict[str, Accuracies]:
    """Return the stored accuracies by what `_identify` returns; a damaged line is measured again."""
    known: dict[str, Accuracies] = {}
    for line in read_regular(file).splitlines() if file.exists() else ():
        try:
            each = msgspec.json.decode(line, type=_Measurement)
        except msgspec.MsgspecError:
            continue
        if set(each.accuracy) == {threat.name for threat in THREATS}:
            known[each.run] = each.accuracy
    return known


class _Measurement(msgspec.Struct):
    """A line of the file of measurements."""

    run: str
    accuracy: dict[str, float]


def read_threats(plan: RecipePlan) -> pl.DataFrame:
    """Return one line per dataset, row, trial and threat: the mean `accuracy` over the runs of the trial.

    `is_collapsed` says whether one of them is at chance level on its training domains, after the last step.
    A trial counts only if all its runs are measured: the mean over some of its test domains is a different quantity.
    """
    known = _read_measurements(plan.folder / MEASUREMENTS)
    lines = []
    for row_plan in plan.row_plans:
        finished = row_plan.list_finished()
        records = read_runs(finished).frame if finished else pl.DataFrame(schema=SCHEMA)
        last = records.filter(pl.col("step") == pl.col("step").max().over("run"))
        collapsed = set(last.filter("is_collapsed")["trial"])
        for trial in dict.fromkeys(run.trial for run in row_plan.runs):
            folders = [run.folder for run in row_plan.runs if run.trial == trial]
            keys = [_identify(folder) for folder in folders if RunFolder(folder).is_done]
            measured = [known[key] for key in keys if key in known]
            if len(measured) == len(folders):
                place = (dataset_name(row_plan.dataset), row_plan.row.name, trial)
                for threat in THREATS:
                    mean = statistics.fmean(each[threat.name] for each in measured)
                    lines.append((*place, threat.name, threat.axis, mean, trial in collapsed))
    return pl.DataFrame(lines, schema=_SCHEMA, orient="row")


def list_differences(frame: pl.DataFrame) -> dict[tuple[str, str], list[float]]:
    """Return the differences to the reference on one dataset in points, one per trial, by row and threat."""
    reference = frame.filter(row=REFERENCE).select("trial", "threat", reference="accuracy")
    others = frame.filter(pl.col("row") != REFERENCE)
    pairs = others.join(reference, on=["trial", "threat"], maintain_order="left").sort("trial", maintain_order=True)
    differences: dict[tuple[str, str], list[float]] = {}
    for row, threat, accuracy, other in pairs.select("row", "threat", "accuracy", "reference").iter_rows():
        differences.setdefault((row, threat), []).append(100 * (accuracy - other))
    return differences


def compare_with_reference(frame: pl.DataFrame, failures: Failures | None = None) -> dict[tuple[str, str], Judgement]:
    """Judge, by row and threat, whether a row of one dataset is above the reference; the rows of a threat together."""
    by_threat: dict[str, dict[str, PairedTrials]] = {}
    for (row, threat), differences in list_differences(frame).items():
        collapsed = _find_collapses(frame, row)
        failed = [
            (name, run.trial, error) for name in (row, REFERENCE) for run, error in (failures or {}).get(name, ())
        ]
        problems = [f"{name} in trial {trial} is at chance level" for trial, name in collapsed]
        problems += [f"{name} in trial {trial} failed ({error})" for name, trial, error in failed]
        by_threat.setdefault(threat, {})[row] = PairedTrials(
            differences,
            collapsed=len({trial for trial, _ in collapsed}),
            failed=len({trial for _, trial, _ in failed}),
            problems=tuple(problems),
        )
    return {
        (row, threat): judgement
        for threat, paired in by_threat.items()
        for row, judgement in judge_differences(paired).items()
    }


def _find_collapses(frame: pl.DataFrame, row: str) -> list[tuple[int, str]]:
    """Return the trials in which a run of the row or of the reference collapsed, and which: of those that both have."""
    shared = set(frame.filter(row=row)["trial"]) & set(frame.filter(row=REFERENCE)["trial"])
    own = frame.filter("is_collapsed", pl.col("row").is_in([row, REFERENCE]), pl.col("trial").is_in(shared))
    return own.select("trial", "row").unique(maintain_order=True).rows()


def correlate_axes(frame: pl.DataFrame) -> dict[tuple[Axis, Axis], Estimate]:
    """Return Spearman's rank correlation, over the rows of one dataset, between the accuracies on two axes.

    The accuracy on an axis is the mean over its threats. Correlations are computed in each trial that has all rows,
    then averaged. Trials in which an axis has the same accuracy for all rows say nothing, and are left out.
    """
    from scipy.stats import spearmanr

    # Rounded, or means of different accuracies that are equal would differ in their last bit, and so in rank.
    means = frame.group_by("trial", "row", "axis").agg(pl.col("accuracy").mean().round(9))
    wide = means.pivot("axis", index=["trial", "row"], values="accuracy").sort("trial", "row")
    rows = frame["row"].n_unique()
    trials = [each for _, each in wide.group_by("trial", maintain_order=True) if each.height == rows > 2]
    correlations = {}
    for one, two in combinations(AXES, 2):
        usable = [each for each in trials if each[one].n_unique() > 1 and each[two].n_unique() > 1]
        if usable:
            correlations[one, two] = estimate_mean(float(spearmanr(each[one], each[two])[0]) for each in usable)
    return correlations


def tabulate_threats(frame: pl.DataFrame, dataset: str, failures: Failures | None = None) -> list[TextTable]:
    """Return three tables of one dataset: accuracies, differences to the reference, and how the axes go together.

    Args:
        failures: the failed runs on this dataset and their errors, by row.
    """
    names = [threat.name for threat in THREATS]
    rows = frame["row"].unique(maintain_order=True).to_list()
    header = ("method", *names)
    cells = {
        (row, threat): format_percent(mean, error)
        for row, threat, mean, error, _ in aggregate_means(frame, ["row", "threat"]).iter_rows()
    }
    trials = pluralize(frame["trial"].n_unique(), "trial")
    tables = [
        TextTable(
            f"Accuracy under each threat on {dataset}, percent",
            header,
            tuple((row, *(cells[row, name] for name in names)) for row in rows),
            len(names),
            (f"Mean ± standard error over {trials}.", *_DESCRIPTIONS),
        )
    ]
    if judgements := compare_with_reference(frame, failures):
        compared = dict.fromkeys(row for row, _ in judgements)
        note = (
            "Mean difference per trial, with simultaneous 95 % intervals per column; ▲ and ▼ mark those that exclude "
            "0. No interval: too few trials, or no spread. No marks where runs collapsed or failed."
        )
        first = {row: judgements[row, CLEAN.name] for row in compared}
        notes = [f"{row}: {describe_problems(each)}." for row, each in first.items() if not each.paired.is_sound]
        tables.append(
            TextTable(
                f"Difference to {REFERENCE} on {dataset}, points",
                header,
                tuple(
                    (_label_row(row, judgements), *(_format_judgement(judgements[row, name]) for name in names))
                    for row in compared
                ),
                len(names),
                (note, *notes),
            )
        )
    if correlations := correlate_axes(frame):
        note = (
            f"Spearman's rank correlation over the {len(rows)} rows, mean ± standard error over trials. The accuracy "
            "of a row is the mean over the columns of a threat."
        )
        pairs = tuple((f"{one} and {two}", _format_estimate(each)) for (one, two), each in correlations.items())
        tables.append(
            TextTable(f"Rank correlation between threats on {dataset}", ("threats", "correlation"), pairs, 1, (note,))
        )
    return tables


def _label_row(row: str, judgements: Mapping[tuple[str, str], Judgement]) -> str:
    paired = judgements[row, CLEAN.name].paired
    return row if paired.is_sound else f"{row} ({paired.collapse_rate} trials collapsed or failed)"


def _format_judgement(judgement: Judgement) -> str:
    if judgement.estimate is None:
        return ""
    text = f"{judgement.estimate:+.1f}"
    if judgement.interval is None:
        return text
    low, high = judgement.interval
    mark = "▲ " if low > 0 else "▼ " if high < 0 else ""
    mark = mark if judgement.paired.is_sound else ""
    return f"{mark}{text} [{low:+.1f}, {high:+.1f}]"


def _format_estimate(estimate: Estimate) -> str:
    return f"{estimate.mean:+.2f}" + ("" if estimate.error is None else f" ± {estimate.error:.2f}")


def plot_threats(frame: pl.DataFrame, dataset: str) -> Figure | None:
    """Plot the difference of each row to the reference: one panel per axis, one marker per threat.

    Returns:
        None if no row has a trial in common with the reference.
    """
    differences = list_differences(frame)
    rows = list(dict.fromkeys(row for row, _ in differences))[::-1]
    if not rows:
        return None
    axes: tuple[Axis, ...] = ("no threat", *AXES)
    figure = Figure((13.5, 1.9 + 0.36 * len(rows)), layout="constrained", dpi=130)
    figure.suptitle(f"Accuracy compared with {REFERENCE.upper()} under each threat, {dataset}", fontsize=12)
    panels: Sequence[Axes] = figure.subplots(1, len(axes), sharey=True, squeeze=False)[0]
    for panel, axis in zip(panels, axes, strict=True):
        threats = [threat for threat in THREATS if threat.axis == axis]
        panel.axvline(0, color="0.4", linewidth=1)
        for index, threat in enumerate(threats):
            offset = 0.18 * (index - (len(threats) - 1) / 2)
            estimates = [estimate_mean(differences[row, threat.name]) for row in rows]
            panel.errorbar(
                [each.mean for each in estimates],
                [place - offset for place in range(len(rows))],
                xerr=[each.error or 0.0 for each in estimates],
                fmt="osD^"[index],
                color=_COLORS[index],
                markersize=4,
                linewidth=1.2,
                label=threat.name.partition(", ")[2] or threat.name,
            )
        for place in range(0, len(rows), 2):
            panel.axhspan(place - 0.5, place + 0.5, color="0.95", zorder=0)
        panel.set_title(axis, fontsize=10)
        panel.spines[["top", "right", "left"]].set_visible(False)
        panel.tick_params(axis="y", length=0)
        if len(threats) > 1:
            panel.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=2, frameon=False)
    panels[0].set_yticks(range(len(rows)), rows, fontsize=9)
    panels[0].set_ylim(-0.5, len(rows) - 0.5)
    figure.supxlabel("difference in accuracy, points (bars: standard error over trials)", fontsize=9)
    return figure
