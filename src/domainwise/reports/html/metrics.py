"""Other metrics of the selected models on a page: a table per dataset, and confusion matrices per test domain."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from markupsafe import Markup
from numpy.typing import NDArray
from rich.cells import cell_len

from domainwise.errors import DomainwiseError
from domainwise.reports import footnotes
from domainwise.reports.cells import Cell, Column, Grid, Row, Table, mark_best
from domainwise.reports.html import svg
from domainwise.reports.html.page_data import PageData
from domainwise.reports.tables import average_cell
from domainwise.selection.metrics import METRICS, read_values
from domainwise.storage.run_folder import Record

MAX_CLASSES = 65
# Up to this many classes, there is room for a number in each field.
_MAX_NUMBERED = 12
_LEVELS = 10

# The records of selected models by run and step.
Records = Mapping[tuple[str, int], Record]


@dataclass(frozen=True)
class Confusion:
    """What the selected models of a method predict in a test domain, summed over trials.

    Args:
        classes: their names.
        counts: one row per true class, one column per predicted class.
        models: number of models.
    """

    dataset: str
    algorithm: str
    test_domain: str
    classes: tuple[str, ...]
    counts: NDArray[np.int64]
    models: int

    @property
    def is_drawn(self) -> bool:
        return len(self.classes) <= MAX_CLASSES

    def list_classes(self) -> list[tuple[str, int, float | None, str]]:
        """Return, per class, its name, number of images, recall in percent, and most frequent wrong prediction."""
        rows = []
        for index, (name, row) in enumerate(zip(self.classes, self.counts.tolist(), strict=True)):
            images, wrong = sum(row), [*row[:index], 0, *row[index + 1 :]]
            other = max(range(len(wrong)), key=wrong.__getitem__)
            taken = f"{self.classes[other]} ({100 * wrong[other] / images:.1f} %)" if wrong[other] else ""
            rows.append((name, images, 100 * row[index] / images if images else None, taken))
        return rows


def read_selected_records(data: PageData, selected: Mapping[str, pl.DataFrame]) -> dict[tuple[str, int], Record]:
    """Return the records of all selected models, or none if they only have accuracy."""
    chosen = {(run, step) for models in selected.values() for run, step in models.select("run", "step").iter_rows()}
    runs = {run for run, _ in chosen}
    sources = [stored for stored in data.runs.stored if str(stored.path) in runs]
    if not any(stored.config["config"].get("metrics") for stored in sources):
        return {}
    records: dict[tuple[str, int], Record] = {}
    for stored in sources:
        name = str(stored.path)
        try:
            own = stored.read_records()[0]
        except DomainwiseError:  # the notes report it
            continue
        records |= {(name, each["step"]): each for each in own if (name, each["step"]) in chosen}
    return records


def build_metrics_table(records: Records, selected: pl.DataFrame, selection: str, grid: Grid) -> Table | None:
    """Build the table of all metrics of a dataset, averaged over test domains; None if there is accuracy only."""
    models = selected.filter(pl.col("dataset") == grid.dataset)
    places = [
        (records.get((run, step), {"accuracy": {}}), domain)
        for run, step, domain in models.select("run", "step", "test_domain").iter_rows()
    ]
    values = {
        name: [read_values(record, name).get(domain, {}).get("main") for record, domain in places] for name in METRICS
    }
    shown = [name for name, each in values.items() if any(value is not None for value in each)]
    if shown in ([], ["accuracy"]):
        return None
    columns = tuple(
        Column(METRICS[name].title, "average_over_trials", grid.dataset, is_lower_better=METRICS[name].is_lower_better)
        for name in shown
    )
    by_metric = {
        name: models.select("algorithm", "trial", accuracy=pl.Series(values[name], dtype=pl.Float64)) for name in shown
    }
    rows = [
        Row(algorithm, tuple(_average_metric(by_metric[name], algorithm, grid) for name in shown))
        for algorithm in grid.algorithms
    ]
    titles = tuple(METRICS[name].title for name in shown)
    notes = [
        "In percent, of the same models as above. Mean over test domains per trial, then mean ± standard error over "
        "trials.",
        *(["ECE: how far confidence and accuracy are apart; lower is better."] if "ece" in shown else []),
        *footnotes.format_reasons(footnotes.collect_reasons(rows, titles), Grid("", grid.algorithms, titles)),
    ]
    return Table(grid.dataset, selection, columns, mark_best(columns, rows), tuple(notes))


def _average_metric(models: pl.DataFrame, algorithm: str, grid: Grid) -> Cell:
    own = models.filter(pl.col("algorithm") == algorithm)
    if own.is_empty():
        return Cell(None, reason="no model selected")
    if own["accuracy"].is_null().any():
        return Cell(None, reason="not recorded: train with --metrics")
    return average_cell(own, grid, models["trial"].n_unique())


def collect_confusions(data: PageData, records: Records, selected: pl.DataFrame, grid: Grid) -> list[Confusion]:
    """Return the confusion matrices of a dataset by test domain and method, as far as they were recorded."""
    sums: dict[tuple[str, str], list[Any]] = {}
    classes = {str(stored.path): tuple(stored.config["data"].get("classes", ())) for stored in data.runs.stored}
    models = selected.filter(pl.col("dataset") == grid.dataset).select("algorithm", "test_domain", "run", "step")
    for algorithm, domain, run, step in models.iter_rows():
        record = records.get((run, step), {})
        matrix = record.get("metrics", {}).get("confusion", {}).get(domain, {}).get("main")
        if matrix and len(matrix) == len(classes[run]):
            sums.setdefault((domain, algorithm), []).append((classes[run], np.asarray(matrix, dtype=np.int64)))
    confusions = []
    for domain in grid.domains:
        for algorithm in grid.algorithms:
            matrices = sums.get((domain, algorithm), [])
            # Runs on different versions of a dataset cannot be added.
            if matrices and len({names for names, _ in matrices}) == 1:
                total = np.sum([matrix for _, matrix in matrices], axis=0)
                confusions.append(Confusion(grid.dataset, algorithm, domain, matrices[0][0], total, len(matrices)))
    return confusions


def plot_confusion(confusion: Confusion) -> Markup:
    """Return a picture of the matrix; fields are shaded by their share of the images of the true class."""
    names, count = confusion.classes, len(confusion.classes)
    is_numbered = count <= _MAX_NUMBERED
    side = 34.0 if is_numbered else max(9.0, 420 / count)
    font = 11.5 if is_numbered else min(11.0, side * 0.95)
    longest = font * max(map(_estimate_width, map(_shorten, names)))
    left, top = 22 + longest, 20 + longest
    images = confusion.counts.sum(1, keepdims=True)
    shares = confusion.counts / np.maximum(images, 1)
    parts = [
        svg.text(left, 12, "predicted", class_="axis-title"),
        svg.element(
            "text", "true", x=0, y=0, class_="axis-title", transform=f"translate(12 {top + 26:.1f}) rotate(-90)"
        ),
    ]
    for index, name in enumerate(names):
        center = (index + 0.5) * side
        style = f"font-size:{font:.1f}px"
        label = _shorten(name)
        parts.append(
            svg.element(
                "text", label, x=left - 5, y=top + center + 0.35 * font, text_anchor="end", class_="name", style=style
            )
        )
        turn = f"translate({left + center + 0.35 * font:.1f} {top - 5:.1f}) rotate(-90)"
        parts.append(svg.element("text", label, x=0, y=0, transform=turn, class_="name", style=style))
    parts += _draw_fields(confusion, shares, left, top, side, is_numbered)
    edge = side * count
    frame = [(left, top), (left + edge, top), (left + edge, top + edge), (left, top + edge)]
    parts.append(svg.polyline(frame, "rule", is_closed=True))
    correct = 100 * confusion.counts.trace() / max(int(images.sum()), 1)
    label = (
        f"Confusion matrix of {confusion.algorithm} on {confusion.test_domain} of {confusion.dataset}: {correct:.1f} % "
        "of the images are on the diagonal. A table by class follows."
    )
    return svg.plot(left + edge + 4, top + edge + 4, label, *parts)


def _draw_fields(
    confusion: Confusion, shares: NDArray[np.float64], left: float, top: float, side: float, is_numbered: bool
) -> list[Markup]:
    if not is_numbered:
        # One path per shade: a page may show many matrices of thousands of fields.
        levels: dict[int, list[str]] = {}
        for row, column in np.argwhere(confusion.counts > 0).tolist():
            level = max(1, round(_LEVELS * shares[row, column]))
            levels.setdefault(level, []).append(
                f"M{left + column * side:.1f} {top + row * side:.1f}h{side:.1f}v{side:.1f}h-{side:.1f}z"
            )
        return [
            svg.element("path", d="".join(fields), class_="heat", style=f"fill-opacity:{level / _LEVELS:g}")
            for level, fields in sorted(levels.items())
        ]
    parts = []
    for row, column in np.argwhere(confusion.counts > 0).tolist():
        count, share = int(confusion.counts[row, column]), float(shares[row, column])
        truth, predicted = confusion.classes[row], confusion.classes[column]
        x, y = left + column * side, top + row * side
        tooltip = (
            f"{truth} predicted as {predicted}: {count} images" if row != column else f"{truth}: {count} images correct"
        )
        # Half as strong as without numbers, which have to be readable on it.
        style = f"fill-opacity:{share / 2:.3f}"
        field = svg.element("rect", x=x, y=y, width=side, height=side, class_="heat", style=style)
        number = svg.text(x + side / 2, y + side / 2 + 4, f"{100 * share:.0f}", "middle", "name")
        parts.append(svg.element("g", svg.element("title", tooltip), field, number))
    return parts


def _estimate_width(name: str) -> float:
    """Return the width of a name as a multiple of the font size, rather too large than too small."""
    return sum(1.05 if cell_len(each) > 1 or each in "MW" else 0.75 if each.isupper() else 0.58 for each in name)


def _shorten(name: str) -> str:
    return name if len(name) <= 16 else f"{name[:15]}…"
