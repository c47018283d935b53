"""Accuracy against the size of an unseen shift: the table and the picture of recipes of kind `shift`, like the demo."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from domainwise.data import Dataset
from domainwise.data.batches import iterate_batches
from domainwise.explain.perturbations import compute_offsets
from domainwise.explain.plots.accuracy import plot_accuracy
from domainwise.explain.plots.perturbations import center_on_gray, show_image
from domainwise.reports.html import TextTable
from domainwise.reproduction.plan import RecipePlan
from domainwise.reproduction.recipe import Row
from domainwise.selection import SELECTIONS, read_runs
from domainwise.selection.statistics import Estimate, aggregate_means, estimate_mean
from domainwise.storage.run_folder import RunFolder
from domainwise.training.loading import load_algorithm, open_run

_PREFIX = "shift_"
_SHADES = ("#9ecae1", "#4292c6", "#08306b", "#000000")
_REFERENCE_COLORS = ("#d95f0e", "#fe9929", "#777777")


@dataclass(frozen=True)
class ShiftSummary:
    """What a row measures after the last step, as means over trials.

    Args:
        folder: the run of the first trial.
        loss: training loss since the record before the last.
        holdout: accuracy on the training domains' holdouts.
        accuracy: accuracy on the main part of each test domain, by the norm of its shift.
        selected_in: the trials in which the recipe's rule selects this row among those of its method.
        is_selected: selected in more trials than any other row of its method, the first one on a tie.
    """

    row: Row
    folder: Path
    loss: float
    holdout: float
    accuracy: Mapping[float, Estimate]
    selected_in: tuple[int, ...]
    is_selected: bool

    @property
    def radius(self) -> float | None:
        return None if self.row.setting is None else self.row.setting[1]


def read_shifts(plan: RecipePlan) -> pl.DataFrame:
    """Return the last record of every finished run; rows of one method compete as its hyperparameter draws."""
    frames = []
    for index, row_plan in enumerate(plan.row_plans):
        if folders := row_plan.list_finished():
            frame = read_runs(folders).frame
            row = row_plan.row
            # Ties go to the larger draw, which makes it the row listed first: the smaller radius.
            own = {"row": pl.lit(row.name), "algorithm": pl.lit(row.method), "draw": pl.lit(-index, pl.Int64)}
            frames.append(frame.filter(pl.col("step") == pl.col("step").max().over("run")).with_columns(**own))
    return pl.concat(frames) if frames else pl.DataFrame()


def summarize_shifts(plan: RecipePlan) -> list[ShiftSummary]:
    """Return one summary per row with finished runs."""
    frame = read_shifts(plan)
    if frame.is_empty():
        return []
    picks = _select(frame, plan).unique(["algorithm", "trial", "draw"]).sort("trial")
    counts = picks.group_by("algorithm", "draw").len().sort("len", "draw", descending=True)
    most_selected = set(counts.unique("algorithm", keep="first", maintain_order=True)["draw"])
    means = aggregate_means(frame, ["row", "test_domain"], "main")
    return [
        ShiftSummary(
            row_plan.row,
            folders[0],
            loss=estimate_mean(RunFolder(folder).read_records()[-1]["loss"] for folder in folders).mean,
            holdout=estimate_mean(frame.filter(row=row_plan.row.name).unique("run")["training"]).mean,
            accuracy=_read_accuracies(means.filter(row=row_plan.row.name)),
            selected_in=tuple(picks.filter(draw=-index)["trial"]),
            is_selected=-index in most_selected,
        )
        for index, row_plan in enumerate(plan.row_plans)
        if (folders := row_plan.list_finished())
    ]


def _select(frame: pl.DataFrame, plan: RecipePlan) -> pl.DataFrame:
    return SELECTIONS[plan.row_plans[0].selection](frame)


def _read_accuracies(means: pl.DataFrame) -> dict[float, Estimate]:
    """Return the estimates of one row by the norm of the shift."""
    return {
        float(domain.removeprefix(_PREFIX)): Estimate(mean, error, count)
        for _, domain, mean, error, count in means.iter_rows()
    }


def tabulate_selected(plan: RecipePlan, summaries: Sequence[ShiftSummary]) -> TextTable:
    """Return one row per method, with the radius selected in each trial and the accuracy that it has there."""
    selected = aggregate_means(_select(read_shifts(plan), plan), ["algorithm", "test_domain"], "accuracy")
    radii = {
        method: sorted((trial, each.radius) for each in group for trial in each.selected_in if each.radius is not None)
        for method in dict.fromkeys(each.row.method for each in summaries)
        for group in [[each for each in summaries if each.row.method == method]]
    }
    shifts = list(summaries[0].accuracy)
    rows = []
    for method, picks in radii.items():
        accuracy = _read_accuracies(selected.filter(algorithm=method))
        names = " ".join(f"{radius:g}" for _, radius in picks)
        rows.append((method, names, *(_format_estimate(accuracy[shift]) for shift in shifts)))
    selection = plan.row_plans[0].selection
    header = ("method", "radii", *(f"shift {shift:g}" for shift in shifts))
    return TextTable(f"The radius that {selection} selects in each trial", header, tuple(rows), len(header) - 1)


def tabulate_shifts(summaries: Sequence[ShiftSummary], title: str, selection: str) -> TextTable:
    """Return a table of loss, holdout accuracy and accuracy per shift, one row per method and radius."""
    shifts = list(summaries[0].accuracy)
    header = ("method", "radius", "loss", "holdout", *(f"shift {shift:g}" for shift in shifts))
    rows = [
        (
            each.row.method + (" *" if each.is_selected else ""),
            "" if each.radius is None else f"{each.radius:g}",
            f"{each.loss:.3f}",
            f"{each.holdout:.3f}",
            *(_format_estimate(each.accuracy[shift]) for shift in shifts),
        )
        for each in summaries
    ]
    note = f"* selected most often by {selection} among its method's radii"
    return TextTable(title, header, tuple(rows), len(header) - 1, (note,))


def _format_estimate(estimate: Estimate) -> str:
    return f"{estimate.mean:.3f}" + (f" ± {estimate.error:.3f}" if estimate.error is not None else "")


def plot_shifts(summaries: Sequence[ShiftSummary], title: str) -> Figure:
    """Plot accuracy against the shift, and below it test images and each method's perturbation at its middle radius."""
    dataset = open_run(summaries[0].folder).dataset
    figure = Figure(figsize=(13, 7.6), layout="constrained", dpi=120)
    figure.suptitle(title, fontsize=13)
    top, bottom = _list_subfigures(figure.subfigures(2, 1, height_ratios=(1.15, 1)))
    _plot_curves(top, summaries)
    left, right = _list_subfigures(bottom.subfigures(1, 2, width_ratios=(1, 1.25)))
    _show_examples(left, dataset)
    _show_perturbations(right, dataset, _select_middle_radius(summaries))
    return figure


def _list_subfigures(subfigures: object) -> list[SubFigure]:
    return list(np.asarray(subfigures).flat)


def _select_middle_radius(summaries: Sequence[ShiftSummary]) -> list[ShiftSummary]:
    radii = sorted({each.radius for each in summaries if each.radius is not None})
    middle = radii[(len(radii) - 1) // 2] if radii else None
    return [each for each in summaries if each.radius is not None and each.radius == middle and not each.row.label]


def _plot_curves(figure: SubFigure, summaries: Sequence[ShiftSummary]) -> None:
    methods = list(dict.fromkeys(each.row.algorithm for each in summaries if each.radius is not None)) or ["erm"]
    panels: Sequence[Axes] = figure.subplots(1, len(methods), sharey=True, squeeze=False)[0]
    for panel, method in zip(panels, methods, strict=True):
        own = {_format_label(each): each for each in summaries if each.row.algorithm in ("erm", method)}
        references = [label for label, each in own.items() if each.radius is None or each.row.label]
        points = [
            (label, shift, estimate.mean, estimate.error)
            for label, each in own.items()
            for shift, estimate in each.accuracy.items()
        ]
        shades = iter((*_SHADES, *_SHADES[-1:] * len(own)))
        reference_colors = iter((*_REFERENCE_COLORS, *_REFERENCE_COLORS[-1:] * len(own)))
        colors = {label: next(reference_colors if label in references else shades) for label in own}
        schema = {"label": pl.String, "shift": pl.Float64, "mean": pl.Float64, "error": pl.Float64}
        frame = pl.DataFrame(points, schema=schema, orient="row")
        plot_accuracy(panel, frame, "shift", colors, ticks=list(summaries[0].accuracy), dashed=references)
        panel.set_title(method.upper())
        panel.set_xlabel("norm of the unseen shift")
        panel.set_ylim(0.27, 1.02)
        panel.axhline(0.5, color="gray", linewidth=0.8, linestyle=":")
        panel.legend(fontsize=8, loc="lower left")
    panels[0].set_ylabel("accuracy")


def _format_label(summary: ShiftSummary) -> str:
    if summary.radius is None or summary.row.label:
        name, comma, detail = summary.row.method.partition(",")
        return name.upper() + comma + detail
    return f"radius {summary.radius:g}" + (" (selected)" if summary.is_selected else "")


def _show_examples(figure: SubFigure, dataset: Dataset) -> None:
    """Show one image per class under growing shift, from the test domains."""
    test = [domain for domain in dataset.domains if domain.role == "test"]
    figure.suptitle("Test images: one of each class as the shift grows", fontsize=10)
    panels = figure.subplots(2, len(test), squeeze=False)
    for row in range(2):
        index = int((test[0].labels == row).nonzero()[row])
        for panel, domain in zip(panels[row], test, strict=True):
            show_image(panel, domain.images[index] / 255)
            if row == 0:
                panel.set_title(domain.name.removeprefix(_PREFIX), fontsize=9)


def _show_perturbations(figure: SubFigure, dataset: Dataset, summaries: Sequence[ShiftSummary]) -> None:
    """Show one training image per domain, and each method's perturbation of it."""
    domains = [domain for domain in dataset.domains if domain.role == "train"]
    algorithms = [load_algorithm(each.folder) for each in summaries]
    figure.suptitle("Training images and their perturbations, each scaled to its largest entry", fontsize=10)
    panels = figure.subplots(len(domains), 1 + max(1, len(summaries)), squeeze=False)
    for row, domain in enumerate(domains):
        show_image(panels[row][0], domain.images[0] / 255)
        panels[row][0].set_ylabel(domain.name, fontsize=9)
        x, _ = next(iterate_batches(domain, torch.tensor([0]), torch.device("cpu")))
        for panel, each, algorithm in zip(panels[row][1:], summaries, algorithms, strict=False):
            show_image(panel, center_on_gray(compute_offsets(algorithm, x, domain.labels[:1], row)[0]))
            if row == 0:
                panel.set_title(f"{each.row.algorithm.upper()} {each.radius:g}", fontsize=9)
    for panel in panels[:, 1 + len(summaries) :].flat:
        panel.axis("off")
