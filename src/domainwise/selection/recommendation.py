"""Which point of a sweep's grid to use: how all points score, what each selection rule picks, and a recommendation.

Nothing here looks at the accuracy on a test domain, so that of the recommended point stays an honest result.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from domainwise.errors import DomainwiseError
from domainwise.selection.rules import SELECTIONS
from domainwise.selection.runs import Runs, read_runs
from domainwise.selection.statistics import Estimate, estimate_mean, format_percent
from domainwise.storage.sweep_folder import SweepFolder

# The rules that do not look at the test domain.
RULES = ("training_domain", "one_standard_error", "attacked_holdout", "leave_one_out")
# The accuracies that the rules compare; that of `one_standard_error` is not from a warm-up.
SCORES: Mapping[str, str] = {
    "one_standard_error": "holdout",
    "attacked_holdout": "holdout under attack",
    "leave_one_out": "domains left out",
}


@dataclass(frozen=True)
class GridPoint:
    """A point of a grid.

    Args:
        values: its values by hyperparameter.
        scores: the mean accuracies in `SCORES` over trials and test domains, as far as they were measured.
        picks: the share of trials and test domains in which each rule selects this point.
    """

    values: Mapping[str, Any]
    scores: Mapping[str, Estimate]
    picks: Mapping[str, float]

    @property
    def name(self) -> str:
        return ", ".join(f"{name} {_format_value(value)}" for name, value in self.values.items())


@dataclass(frozen=True)
class Recommendation:
    """The points of a grid for one method on one dataset, the one to use, and why."""

    dataset: str
    algorithm: str
    points: tuple[GridPoint, ...]
    recommended: GridPoint
    reason: str


def recommend(sweep: str | Path) -> list[Recommendation]:
    """Compare the finished runs of a sweep with a grid, per dataset and method that have tried several of its points.

    The point that `one_standard_error` selects most often is recommended; of equals, the one with the higher holdout
    accuracy. Standard errors are over runs; that of a single run is of its holdouts, as in `one_standard_error`.

    Raises:
        DomainwiseError: there is no sweep in the folder, or it has no grid.
    """
    folder = SweepFolder(sweep)
    grid = folder.read_spec().get("grid")
    if not grid:
        raise DomainwiseError(f"the sweep in {folder.path} has no grid; start one with --grid name=value,value,...")
    runs = read_runs([folder.path])
    # Of the points that have raced, only one may be left.
    raced = {(run.dataset, run.algorithm) for run, status in runs.planned.items() if status.state == "stopped"}
    recommendations = []
    for (dataset, algorithm), frame in runs.frame.group_by("dataset", "algorithm", maintain_order=True):
        points = _build_points(frame, _read_values(runs, frame, list(grid)))
        if len(points) > 1 or (dataset, algorithm) in raced:
            recommendations.append(_recommend(str(dataset), str(algorithm), points))
    return recommendations


def _read_values(runs: Runs, frame: pl.DataFrame, names: list[str]) -> dict[int, dict[str, Any]]:
    """Return the values of each draw, in order, from the configs of its runs."""
    hparams = {str(run.path): run.config["config"].get("hparams", {}) for run in runs.stored}
    draws = frame.select("draw", "run").unique("draw", maintain_order=True).sort("draw")
    return {draw: {name: hparams[run][name] for name in names if name in hparams[run]} for draw, run in draws.rows()}


def _build_points(frame: pl.DataFrame, values: Mapping[int, Mapping[str, Any]]) -> tuple[GridPoint, ...]:
    selected = {rule: _select_runs(frame, rule) for rule in RULES}
    counts = {rule: Counter(runs["draw"].to_list()) for rule, runs in selected.items()}
    points = []
    for draw, point in values.items():
        of_draw = frame.filter(pl.col("draw") == draw)
        scores = {rule: _estimate_score(of_draw, rule) for rule in SCORES}
        picks = {rule: count[draw] / count.total() for rule, count in counts.items() if count[draw]}
        points.append(GridPoint(point, {rule: each for rule, each in scores.items() if each is not None}, picks))
    return tuple(point for point in points if "one_standard_error" in point.scores)


def _select_runs(frame: pl.DataFrame, rule: str) -> pl.DataFrame:
    """Return the selected runs, each once: one that tests on several domains has the same holdouts for all."""
    return SELECTIONS[rule](frame).unique("run", maintain_order=True)


def _estimate_score(frame: pl.DataFrame, rule: str) -> Estimate | None:
    selected = _select_runs(frame, rule)
    if selected.is_empty():
        return None
    estimate = estimate_mean(selected["score"])
    if selected.height == 1 and rule == "one_standard_error":
        record = frame.join(selected.select("run", "step"), on=["run", "step"], how="semi")
        return replace(estimate, error=record["training_error"][0])
    return estimate


def _recommend(dataset: str, algorithm: str, points: tuple[GridPoint, ...]) -> Recommendation:
    def holdout(point: GridPoint) -> Estimate:
        return point.scores["one_standard_error"]

    best = max(points, key=lambda point: holdout(point).mean)
    chosen = max(points, key=lambda point: (point.picks.get("one_standard_error", 0.0), holdout(point).mean))
    has_radius = len({str(point.values.get("epsilon")) for point in points}) > 1
    rule = "largest within one standard error of the best holdout" if has_radius else "best holdout"
    reason = f"{rule}, {format_percent(holdout(best).mean, holdout(best).error)}"
    return Recommendation(dataset, algorithm, points, chosen, reason)


def _format_value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
