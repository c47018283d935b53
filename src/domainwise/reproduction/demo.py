"""Which runs the demo makes: every method at every radius, for every seed."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

from domainwise.algorithms import Algorithm
from domainwise.data import Dataset
from domainwise.data.batches import iterate_batches
from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.errors import DomainwiseError, unknown
from domainwise.explain.perturbations import compute_offsets
from domainwise.explain.plots.accuracy import plot_accuracy
from domainwise.explain.plots.perturbations import center_on_gray, show_image
from domainwise.figures import write_figure
from domainwise.reports.formats import format_markdown_table
from domainwise.reports.html import write_page
from domainwise.reports.html.pictures import draw_model_pictures
from domainwise.storage.run_folder import Record
from domainwise.training import RunConfig, RunResult

METHODS = ("erm", "at", "uat", "mat", "ldat")
RADII = (0.2, 0.5, 2.0)
STEP_SIZE = 0.5
STEPS = 700


@dataclass(frozen=True)
class Row:
    """One row of the table: a method at a radius, which ERM does not have."""

    method: str
    radius: float | None


@dataclass(frozen=True)
class Plan:
    """What to compare. The seed draws data, patterns and network alike, so seeds are whole repetitions."""

    methods: Sequence[str] = METHODS
    radii: Sequence[float] = RADII
    seed: int = 0
    seeds: int = 1
    variant: str = "standard"
    schedule: str = "two_pass"
    steps: int = STEPS
    output: Path = Path("runs/demo")

    def __post_init__(self) -> None:
        for method in self.methods:
            if method not in METHODS:
                raise unknown("method of the demo", method, METHODS)
        if self.seeds < 1 or not self.methods or not self.radii:
            raise DomainwiseError("the demo needs at least one method, one radius and one seed")

    def title(self) -> str:
        seeds = f"seed {self.seed}" if self.seeds == 1 else f"mean of {self.seeds} seeds from {self.seed}"
        return f"{self.variant}, {self.schedule}, {seeds}"

    def rows(self) -> list[Row]:
        radii: dict[str, Sequence[float | None]] = {"erm": (None,)}
        return [Row(method, radius) for method in self.methods for radius in radii.get(method, self.radii)]

    def configs(self) -> Iterator[tuple[Row, RunConfig]]:
        """Seed by seed, the slowest methods first so that the last worker does not finish alone."""
        for seed in range(self.seed, self.seed + self.seeds):
            for row in sorted(self.rows(), key=lambda row: row.method == "erm"):
                yield row, self._config(row, seed)

    def _config(self, row: Row, seed: int) -> RunConfig:
        # ERM is the same run whatever the others do, so it is made once.
        which = "" if row.radius is None else f"-{row.radius:g}-{self.variant}-{self.schedule}"
        name = f"{row.method}{which}-{self.steps}-seed{seed}"
        return RunConfig(
            dataset="silhouettes",
            algorithm=row.method,
            hparams=self._hparams(row),
            trial_seed=seed,
            steps=self.steps,
            record_every=max(1, self.steps // 4),
            device="cpu",
            output=self.output / name,
            keep_perturbations=row.radius is not None and row.method != "at",
        )

    def _hparams(self, row: Row) -> dict[str, Any]:
        if row.radius is None:
            return {}
        hparams: dict[str, Any] = {"epsilon": row.radius, "variant": self.variant, "schedule": self.schedule}
        if row.method == "at":
            # One step from the image to the sphere, the textbook's attack; the released variant has its own start.
            hparams |= {"step_size": row.radius}
            hparams |= {} if self.variant == "released" else {"start": "zero"}
        else:
            hparams |= {"step_size": STEP_SIZE}
        if row.method == "ldat":
            hparams |= {"step_scale": 1.0}
        return hparams


@dataclass(frozen=True)
class Line:
    """What a row measured after the last step, as means over seeds.

    Args:
        loss: that was trained on, over the last quarter of the steps.
        holdout: accuracy on the training domains' held-out images.
        shifted: accuracy on each test domain's main part, by the norm of its shift.
        is_chosen: whether training-domain holdout would choose it among its method's radii.
    """

    row: Row
    loss: float
    holdout: float
    shifted: Mapping[float, float]
    is_chosen: bool


def lines(records: Mapping[Row, Sequence[Record]]) -> list[Line]:
    """One line a row, from the last record of each of its seeds."""
    holdouts = {row: statistics.fmean(map(_holdout, seeds)) for row, seeds in records.items()}
    return [
        Line(
            row=row,
            loss=statistics.fmean(record["loss"] for record in seeds),
            holdout=holdouts[row],
            shifted={
                float(domain.removeprefix("shift_")): statistics.fmean(
                    record["accuracy"][domain]["main"] for record in seeds
                )
                for domain in seeds[0]["test_domains"]
            },
            is_chosen=row == _chosen([other for other in records if other.method == row.method], holdouts),
        )
        for row, seeds in records.items()
    ]


def _holdout(record: Record) -> float:
    return statistics.fmean(record["accuracy"][domain]["holdout"] for domain in record["train_domains"])


def _chosen(rows: Sequence[Row], holdouts: Mapping[Row, float]) -> Row:
    """The highest holdout; the smaller radius on a tie, which is what comes first."""
    return max(rows, key=lambda row: holdouts[row])


def table_of(table: Sequence[Line]) -> str:
    """The table as it stands in a README: a row a method and radius, name first."""
    shifts = list(table[0].shifted)
    head = ["method", "radius", "loss", "holdout", *(f"shift {shift:g}" for shift in shifts)]
    body = [
        [
            f"**{line.row.method}**" if line.is_chosen else line.row.method,
            "" if line.row.radius is None else f"{line.row.radius:g}",
            f"{line.loss:.3f}",
            f"{line.holdout:.3f}",
            *(f"{line.shifted[shift]:.3f}" for shift in shifts),
        ]
        for line in table
    ]
    return format_markdown_table(head, body, numeric=len(head) - 2)


# Strong enough to tell the methods apart, and not so strong that all fail.
LOOKED_AT = "shift_12"


def write_demo_page(
    path: Path,
    plan: Plan,
    table: Sequence[Line],
    results: Sequence[tuple[Row, RunResult]],
    *,
    has_pictures: bool = True,
    on_progress: OnProgress = ignore_progress,
) -> None:
    """Write the page about the plan's results; the pictures are those of its first seed."""
    first: dict[Row, Path] = {}
    for row, result in results:
        first.setdefault(row, result.folder)
    shown = {_name(line.row): first[line.row] for line in table if line.is_chosen}
    write_page(
        path,
        [result.folder for _, result in results],
        split_variants=True,
        title=f"domainwise demo: accuracy under unseen shift ({plan.title()})",
        pictures=draw_model_pictures(shown, LOOKED_AT, on_progress=on_progress) if has_pictures else [],
    )


def _name(row: Row) -> str:
    return row.method if row.radius is None else f"{row.method}, epsilon {row.radius:g}"


SHADES = ("#9ecae1", "#4292c6", "#08306b", "#000000")
PLAIN = "#d95f0e"


def draw(path: Path, table: Sequence[Line], dataset: Dataset, trained: Mapping[Row, Algorithm], title: str) -> None:
    """Write the picture.

    Args:
        dataset: of the first seed, for its images.
        trained: the algorithms whose perturbations to show, one a method.
    """
    figure = Figure(figsize=(13, 7.6), layout="constrained", dpi=120)
    figure.suptitle(title, fontsize=13)
    above, below = _parts(figure.subfigures(2, 1, height_ratios=(1.15, 1)))
    _curves(above, table)
    examples, perturbations = _parts(below.subfigures(1, 2, width_ratios=(1, 1.25)))
    _examples(examples, dataset)
    _perturbations(perturbations, dataset, trained)
    write_figure(path, figure)


def _parts(subfigures: object) -> list[SubFigure]:
    return list(np.asarray(subfigures).flat)


def _curves(figure: SubFigure, table: Sequence[Line]) -> None:
    methods = [method for method in dict.fromkeys(line.row.method for line in table) if method != "erm"]
    panels: Sequence[Axes] = figure.subplots(1, max(1, len(methods)), sharey=True, squeeze=False)[0]
    for panel, method in zip(panels, methods or ["erm"], strict=True):
        lines = {_label(line): line for line in table if line.row.method in ("erm", method)}
        points = [(label, shift, value) for label, line in lines.items() for shift, value in line.shifted.items()]
        shades = iter((*SHADES, *SHADES[-1:] * len(lines)))
        colors = {label: PLAIN if line.row.radius is None else next(shades) for label, line in lines.items()}
        frame = pl.DataFrame(points, schema=["label", "shift", "mean"], orient="row")
        plot_accuracy(panel, frame, "shift", colors, ticks=list(table[0].shifted), dashed=("ERM",))
        panel.set_title(method.upper())
        panel.set_xlabel("norm of the unseen shift")
        panel.set_ylim(0.27, 1.02)
        panel.axhline(0.5, color="gray", linewidth=0.8, linestyle=":")
        panel.legend(fontsize=8, loc="lower left")
    panels[0].set_ylabel("accuracy")


def _label(line: Line) -> str:
    if line.row.radius is None:
        return line.row.method.upper()
    return f"radius {line.row.radius:g}" + (" (chosen)" if line.is_chosen else "")


def _examples(figure: SubFigure, dataset: Dataset) -> None:
    """Two animals under growing shift: what the test domains hold."""
    tests = [domain for domain in dataset.domains if domain.role == "test"]
    figure.suptitle("Test images: one animal of each class as the shift grows", fontsize=10)
    panels = figure.subplots(2, len(tests), squeeze=False)
    for row in range(2):
        chosen = int((tests[0].labels == row).nonzero()[row])
        for panel, domain in zip(panels[row], tests, strict=True):
            show_image(panel, domain.images[chosen] / 255)
            if row == 0:
                panel.set_title(domain.name.removeprefix("shift_"), fontsize=9)


def _perturbations(figure: SubFigure, dataset: Dataset, trained: Mapping[Row, Algorithm]) -> None:
    """A training image of each domain, and each method's perturbation of it."""
    domains = [domain for domain in dataset.domains if domain.role == "train"]
    figure.suptitle("Training images and their perturbations, each scaled to its largest entry", fontsize=10)
    panels = figure.subplots(len(domains), 1 + max(1, len(trained)), squeeze=False)
    for row, domain in enumerate(domains):
        show_image(panels[row][0], domain.images[0] / 255)
        panels[row][0].set_ylabel(domain.name, fontsize=9)
        x, _ = next(iterate_batches(domain, torch.tensor([0]), torch.device("cpu")))
        for panel, (which, algorithm) in zip(panels[row][1:], trained.items(), strict=False):
            show_image(panel, center_on_gray(compute_offsets(algorithm, x, domain.labels[:1], row)[0]))
            if row == 0:
                panel.set_title(f"{which.method.upper()} {which.radius:g}", fontsize=9)
    for panel in panels[:, 1 + len(trained) :].flat:
        panel.axis("off")
