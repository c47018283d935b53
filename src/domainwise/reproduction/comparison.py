"""The selected models of a recipe next to the paper's numbers, and a verdict on each of the paper's claims."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl

from domainwise.reports.footnotes import pluralize
from domainwise.reports.html import TextTable
from domainwise.reports.published import OWN_RUNS, PublishedValue, load_published_tables
from domainwise.reproduction.plan import RecipePlan, RowPlan
from domainwise.reproduction.recipe import Claim, Recipe, Row
from domainwise.selection import SELECTIONS, read_runs
from domainwise.selection.statistics import PairedComparison, compare_pairs, estimate_mean, smallest_p_value

Verdict = Literal["holds", "does not hold", "inconclusive"]
SIGNIFICANCE_LEVEL = 0.05
_SCHEMA = {
    "row": pl.String,
    "dataset": pl.String,
    "test_domain": pl.String,
    "trial": pl.Int64,
    "accuracy": pl.Float64,
    "training": pl.Float64,
    "run": pl.String,
}


def select_models(plan: RecipePlan) -> pl.DataFrame:
    """Return one line per row, dataset, test domain and trial: the selected model's `accuracy`, and its `run`.

    `training`, its accuracy on the training domains, is null unless the test domain selected it. A trial counts only if
    all its test domains are done: the mean over some of them is a different quantity.
    """
    frames = [frame for row_plan in plan.row_plans for frame in [_select(row_plan)] if frame.height]
    return pl.concat([pl.DataFrame(schema=_SCHEMA), *frames]).unique(maintain_order=True)


def _select(row_plan: RowPlan) -> pl.DataFrame:
    finished = row_plan.list_finished()
    frame = SELECTIONS[row_plan.selection](read_runs(finished).frame) if finished else pl.DataFrame()
    if frame.is_empty():
        return frame
    planned = {name for run in row_plan.runs for name in run.test_domains}
    tested = frame.group_by("trial").agg("test_domain").iter_rows()
    complete = [trial for trial, names in tested if planned <= set(names)]
    is_oracle = row_plan.selection == "test_domain"
    training = pl.col("training") if is_oracle else pl.lit(None, pl.Float64).alias("training")
    frame = frame.filter(pl.col("trial").is_in(complete))
    return frame.with_columns(training, row=pl.lit(row_plan.row.name)).select(_SCHEMA.keys())


@dataclass(frozen=True)
class Comparison:
    """The accuracy of a row on a dataset in percent: ours and the paper's, with standard errors where they are known.

    Args:
        dataset: its name in tables, or the paper's name of a mean over datasets, such as `avg1`.
        training: accuracy of the selected models on their training domains, if the test domain selected them. It
            reveals a model that is good on the test domain by chance only.
    """

    row: str
    dataset: str
    ours: float
    error: float | None
    trials: int
    paper: float | None
    paper_error: float | None
    training: float | None = None

    @property
    def difference(self) -> float | None:
        return None if self.paper is None else self.ours - self.paper

    @property
    def standardized_difference(self) -> float | None:
        """The difference in units of the combined standard error; None if neither error is known."""
        combined = float(np.hypot(self.error or 0.0, self.paper_error or 0.0))
        return None if self.difference is None or not combined else self.difference / combined


def compare_with_paper(recipe: Recipe, models: pl.DataFrame) -> list[Comparison]:
    """Return the means over test domains per row and dataset, then the paper's means over datasets."""
    comparisons, averages = [], []
    for row in recipe.rows:
        own = models.filter(row=row.name)
        by_dataset = {name: _average_by_trial(own, name) for name in own["dataset"].unique(maintain_order=True)}
        for name, by_trial in by_dataset.items():
            training = own.filter(dataset=name)["training"].mean()
            comparisons.append(_compare(recipe, row, name, list(by_trial.values()), training))
        for name, datasets in _find_averages(recipe).items():
            if all(each in by_dataset for each in datasets):
                shared = set.intersection(*(set(by_dataset[each]) for each in datasets))
                means = [statistics.fmean(by_dataset[each][trial] for each in datasets) for trial in sorted(shared)]
                if means:
                    averages.append(_compare(recipe, row, name, means))
    return [*comparisons, *averages]


def _average_by_trial(models: pl.DataFrame, dataset: str) -> dict[int, float]:
    own = models.filter(dataset=dataset)
    return dict(own.group_by("trial").agg(pl.col("accuracy").mean() * 100).sort("trial").iter_rows())


def _find_averages(recipe: Recipe) -> Mapping[str, tuple[str, ...]]:
    return {} if recipe.published is None else load_published_tables()[recipe.published].mean_of


def _compare(recipe: Recipe, row: Row, dataset: str, by_trial: Sequence[float], training: Any = None) -> Comparison:
    estimate = estimate_mean(by_trial)
    value = find_published_value(recipe, row, dataset)
    return Comparison(
        row.name,
        dataset,
        estimate.mean,
        estimate.error,
        estimate.count,
        value.mean if value else None,
        value.error if value else None,
        None if training is None else 100 * training,
    )


def find_published_value(recipe: Recipe, row: Row, dataset: str) -> PublishedValue | None:
    """Return the paper's mean over the dataset's test domains, or of its column of that name, from its own runs first.

    Args:
        dataset: a dataset's name in tables, or the name of a column.
    """
    if recipe.published is None:
        return None
    table = load_published_tables()[recipe.published]
    values = [
        value
        for value in table.values
        if value.algorithm == row.algorithm
        and (value.dataset or value.column) == dataset
        and row.paper in ("", value.setting, value.column)
        and (not value.setting or row.paper == value.setting)
        and (not table.mean_of or value.column in table.mean_of or value.column == dataset)
    ]
    return min(values, key=lambda value: value.source != OWN_RUNS, default=None)


def list_datasets(comparisons: Sequence[Comparison]) -> list[str]:
    """Return the datasets of the comparisons, each once."""
    return list(dict.fromkeys(comparison.dataset for comparison in comparisons))


def tabulate_comparisons(comparisons: Sequence[Comparison], title: str) -> TextTable:
    """Return a table of ours, the paper's and the difference for every dataset, one row per row of the recipe."""
    header = [""]
    rows = {row: [row] for row in dict.fromkeys(comparison.row for comparison in comparisons)}
    for name in list_datasets(comparisons):
        cells = {each.row: each for each in comparisons if each.dataset == name}
        columns: dict[str, Callable[[Comparison], str]] = {name: lambda cell: _format(cell.ours, cell.error)}
        if any(cell.training is not None for cell in cells.values()):
            columns["in training"] = lambda cell: _format(cell.training)
        if any(cell.paper is not None for cell in cells.values()):
            columns |= {"paper": lambda cell: _format(cell.paper, cell.paper_error), "difference": _format_difference}
        header += columns
        for row, texts in rows.items():
            texts += [format_(cells[row]) if row in cells else "" for format_ in columns.values()]
    return TextTable(title, tuple(header), tuple(map(tuple, rows.values())), len(header) - 1)


def _format(mean: float | None, error: float | None = None) -> str:
    if mean is None:
        return ""
    return f"{mean:.1f}" if error is None else f"{mean:.1f} ± {error:.1f}"


def _format_difference(cell: Comparison) -> str:
    if cell.difference is None:
        return ""
    if cell.standardized_difference is None:
        return f"{cell.difference:+.1f}"
    # One trial has no standard error, so then only a part of the uncertainty is counted.
    unit = "SE" if cell.error is not None else "of the paper's SE"
    return f"{cell.difference:+.1f} ({cell.standardized_difference:+.1f} {unit})"


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim of the paper, the verdict of our runs, and the numbers behind it."""

    claim: str
    verdict: Verdict
    evidence: str


def judge_claims(recipe: Recipe, models: pl.DataFrame) -> list[ClaimVerdict]:
    """Return one verdict per claim, from pairs of runs on the same test domain and trial."""
    return [_judge(claim, claim.datasets or recipe.datasets, models) for claim in recipe.claims]


def _judge(claim: Claim, datasets: Sequence[str], models: pl.DataFrame) -> ClaimVerdict:
    # Runs on a few training domains have a dataset name such as "pacs from photo".
    base = pl.col("dataset").str.split(" from ").list.first()
    models = models.with_columns(base=base).filter(pl.col("base").is_in(list(datasets)))
    better, worse = (models.filter(row=name) for name in (claim.better, claim.worse))
    pairs = better.join(worse, on=["dataset", "test_domain", "trial"], how="inner", suffix="_worse")
    # Test domains that share a model are not independent pairs: a good or bad model is so on all of them.
    difference = 100 * (pl.col("accuracy") - pl.col("accuracy_worse")).mean()
    points = pairs.group_by("run", "run_worse").agg(points=difference)["points"].sort().to_list()
    if not points:
        return ClaimVerdict(claim.text, "inconclusive", "no finished runs of both on the same domain and trial")
    comparison = compare_pairs(points)
    verdict = decide_verdict(comparison)
    evidence = _format_evidence(comparison, claim, pairs["trial"].n_unique())
    finished = [name for name in datasets if name in pairs["base"]]
    if len(finished) < len(datasets):
        verdict = "inconclusive" if claim.needs_all else verdict
        evidence = f"on {', '.join(finished)} only: {evidence}"
    return ClaimVerdict(claim.text, verdict, evidence)


def decide_verdict(comparison: PairedComparison) -> Verdict:
    """Return the verdict by the sign of the mean difference, if the permutation test finds it significant."""
    if comparison.p_value >= SIGNIFICANCE_LEVEL:
        return "inconclusive"
    return "holds" if comparison.difference > 0 else "does not hold"


def _format_evidence(comparison: PairedComparison, claim: Claim, trials: int) -> str:
    error = "" if comparison.error is None else f" ± {comparison.error:.1f}"
    pairs = pluralize(comparison.pairs, "pair")
    text = (
        f"{comparison.difference:+.1f}{error} points over {pairs} from {pluralize(trials, 'trial')}, "
        f"{claim.better} ahead in {comparison.wins}, p = {comparison.p_value:.2g}"
    )
    if smallest_p_value(comparison.pairs) >= SIGNIFICANCE_LEVEL:
        text += f"; {pairs} cannot reach p < {SIGNIFICANCE_LEVEL:g}"
    return text


def tabulate_verdicts(verdicts: Sequence[ClaimVerdict]) -> TextTable:
    rows = [(each.claim, each.verdict, each.evidence) for each in verdicts]
    return TextTable("Claims of the paper", ("claim", "verdict", "evidence"), tuple(rows))
