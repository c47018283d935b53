"""How the chosen runs came about: loss, holdout and test accuracy over the steps, a line a method."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl
from markupsafe import Markup

from domainwise.reports.page import svg
from domainwise.reports.page.facts import RunFacts
from domainwise.reports.page.marks import Mark

# Beyond so many runs their thin lines would only be fog.
MOST_RUNS = 40
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 360, 250, 44, 350, 34, 208
_PANELS = {
    "loss": "training loss",
    "training": "accuracy on training domains' holdouts, %",
    "test": "accuracy on test domains, %",
}

Line = list[tuple[int, float]]


@dataclass(frozen=True)
class Curves:
    """The lines of one dataset: by what is measured and method, the mean of its runs and each run."""

    dataset: str
    means: Mapping[str, Mapping[str, Line]]
    runs: Mapping[str, Mapping[str, Sequence[Line]]] = field(default_factory=dict)


def curves_of(frame: pl.DataFrame, chosen: pl.DataFrame, facts: Mapping[str, RunFacts], dataset: str) -> Curves:
    """The curves of the runs that a selection chose, over the steps at which all runs of a method have a record."""
    own = chosen.filter(pl.col("dataset") == dataset).select("algorithm", "run").unique(maintain_order=True)
    per_step = (
        frame.join(own.select("run").unique(), on="run", how="semi")
        .group_by("run", "step")
        .agg(pl.col("training").first(), test=pl.col("main").mean())
        .sort("run", "step")
    )
    lines: dict[str, dict[str, Line]] = {"loss": {}, "training": {}, "test": {}}
    for run, step, training, test in per_step.iter_rows():
        for kind, value in (("training", training), ("test", test)):
            if value is not None:
                lines[kind].setdefault(run, []).append((step, 100 * value))
    for run in own["run"].unique():
        if run in facts and facts[run].losses:
            lines["loss"][run] = sorted(facts[run].losses.items())
    by_method: dict[str, dict[str, list[Line]]] = {kind: {} for kind in lines}
    for algorithm, run in own.iter_rows():
        for kind, there in lines.items():
            if run in there:
                by_method[kind].setdefault(algorithm, []).append(there[run])
    means = {kind: {name: _mean(each) for name, each in found.items()} for kind, found in by_method.items()}
    return Curves(dataset, means, by_method if own.height <= MOST_RUNS else {})


def draw_curves(curves: Curves, marks: Mapping[str, Mark]) -> list[Markup]:
    """A drawing for each thing that was measured."""
    return [
        _drawn(
            f"{title[:1].upper()}{title[1:]} over the steps of training on {curves.dataset}", title, curves, kind, marks
        )
        for kind, title in _PANELS.items()
        if any(len(line) > 1 for line in curves.means[kind].values())
    ]


def _mean(lines: Sequence[Line]) -> Line:
    values = [dict(line) for line in lines]
    common = sorted(set.intersection(*(set(each) for each in values)))
    return [(step, statistics.fmean(each[step] for each in values)) for step in common]


def _drawn(label: str, title: str, curves: Curves, kind: str, marks: Mapping[str, Mark]) -> Markup:
    means = {name: curves.means[kind][name] for name in marks if curves.means[kind].get(name)}
    thin = {name: [line for line in lines if len(line) > 1] for name, lines in curves.runs.get(kind, {}).items()}
    points = [point for line in means.values() for point in line]
    points += [point for lines in thin.values() for line in lines for point in line]
    is_loss = kind == "loss"
    limits = None if is_loss else (0.0, 100.0)
    low, high = svg.spread((value for _, value in points), at_least=0.01 if is_loss else 4, limits=limits)
    y = svg.Scale(low, high, _BOTTOM, _TOP)
    x = svg.Scale(min(step for step, _ in points), max(step for step, _ in points), _LEFT + 4, _RIGHT - 8)
    parts = [*svg.left_axis(y, _LEFT, _RIGHT, title, lambda value: f"{value:.4g}"), *_steps(x)]
    parts += [
        svg.polyline(_placed(x, y, line), f"thin {marks[name].class_}") for name in marks for line in thin.get(name, [])
    ]
    for name, line in means.items():
        if len(line) > 1:
            parts.append(svg.polyline(_placed(x, y, line), f"line {marks[name].class_}"))
        step, value = line[-1]
        parts.append(marks[name].at(x(step), y(value), f"{name}: {value:.3g} after step {step}"))
    return svg.drawing(_WIDTH, _HEIGHT, f"{label}. {_in_words(means)}", *parts)


def _placed(x: Callable[[float], float], y: Callable[[float], float], line: Line) -> list[tuple[float, float]]:
    return [(x(step), y(value)) for step, value in line]


def _steps(x: svg.Scale) -> list[Markup]:
    return [
        *(svg.words(x(step), _BOTTOM + 18, f"{step:g}", "middle") for step in svg.ticks(x.low, x.high, 6)),
        svg.words((x.start + x.end) / 2, _BOTTOM + 36, "step", "middle", "axis-title"),
    ]


def _in_words(means: Mapping[str, Line]) -> str:
    ends = [f"{name} {line[0][1]:.3g} to {line[-1][1]:.3g}" for name, line in means.items()]
    return f"From first to last: {', '.join(ends)}."
