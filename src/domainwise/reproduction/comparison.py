"""The selected models of a recipe next to the paper's numbers, and a verdict on each of the paper's claims."""

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from domainwise.reports.html import TextTable
from domainwise.reports.published import OWN_RUNS, PublishedValue, load_published_tables
from domainwise.reports.significance import describe_problems, describe_verdicts
from domainwise.reproduction.plan import RecipePlan, RowPlan
from domainwise.reproduction.recipe import Claim, Recipe, Row
from domainwise.selection import SELECTIONS, read_runs
from domainwise.selection.runs import find_failures
from domainwise.selection.statistics import estimate_mean, pair_trials, pluralize
from domainwise.selection.verdicts import MARGIN, Judgement, Verdict, judge_differences
from domainwise.storage.run_folder import RunFolder
from domainwise.storage.sweep_folder import PlannedRun

_SCHEMA = {
    "row": pl.String,
    "dataset": pl.String,
    "test_domain": pl.String,
    "trial": pl.Int64,
    "accuracy": pl.Float64,
    "training": pl.Float64,
    "is_collapsed": pl.Boolean,
    "run": pl.String,
}


def select_models(plan: RecipePlan) -> pl.DataFrame:
    """Return one line per row, dataset, test domain and trial: the selected model's `accuracy`, and its `run`.

    `training`, its accuracy on the training domains, is null unless the test domain selected it. `is_collapsed` says
    whether that accuracy is at chance level. A trial counts only if all its test domains are done: the mean over some
    of them is a different quantity.
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


def list_failures(plan: RecipePlan) -> dict[str, dict[PlannedRun, str]]:
    """Return the failed runs of each row; see `find_failures`."""
    failures: dict[str, dict[PlannedRun, str]] = {}
    for each in plan.row_plans:
        statuses = {run: RunFolder(run.folder).read_stored_status() for run in each.runs}
        failures.setdefault(each.row.name, {}).update(find_failures(statuses))
    return failures


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
        return f"{cell.difference:+z.1f}"
    # One trial has no standard error, so then only a part of the uncertainty is counted.
    unit = "SE" if cell.error is not None else "of the paper's SE"
    return f"{cell.difference:+z.1f} ({cell.standardized_difference:+z.1f} {unit})"


@dataclass(frozen=True)
class ClaimVerdict:
    """A claim of the paper, the verdict of our runs, and the numbers behind it.

    Args:
        judgement: what the trials say, for a claim about accuracies.
    """

    claim: str
    verdict: Verdict
    evidence: str
    judgement: Judgement | None = None


def judge_plan(plan: RecipePlan, models: pl.DataFrame) -> list[ClaimVerdict]:
    """Judge the claims that the runs of a plan can decide by its selected models and its failed runs."""
    return judge_claims(
        plan.recipe, models, plan.claims, failures=list_failures(plan), is_sequential=plan.is_sequential
    )


def judge_claims(
    recipe: Recipe,
    models: pl.DataFrame,
    claims: Collection[Claim] | None = None,
    *,
    failures: Mapping[str, Mapping[PlannedRun, str]] | None = None,
    is_sequential: bool = False,
) -> list[ClaimVerdict]:
    """Judge the claims of a recipe together, by the trials that both rows of a claim have.

    Args:
        claims: those that the planned runs can decide (default: all); they alone share the error level. The others are
            inconclusive.
        failures: the failed runs of each row, see `list_failures`.
        is_sequential: whether trials are added until claims are decided; see `judge_differences`.
    """
    # Runs on a few training domains have a dataset name such as "pacs from photo".
    models = models.with_columns(base=pl.col("dataset").str.split(" from ").list.first(), algorithm="row")
    paired, finished = {}, {}
    for claim in recipe.claims:
        datasets = claim.datasets or recipe.datasets
        own = models.filter(pl.col("base").is_in(datasets))
        better, worse = (own.filter(row=name) for name in (claim.better, claim.worse))
        failed = {
            run: error
            for name in (claim.better, claim.worse)
            for run, error in (failures or {}).get(name, {}).items()
            if run.dataset.split(" from ")[0] in datasets
        }
        paired[claim] = pair_trials(better, worse, failed)
        pairs = better.join(worse, on=["dataset", "test_domain", "trial"], how="semi")
        finished[claim] = pairs["base"].unique().to_list()
    judged = {claim.text: paired[claim] for claim in recipe.claims if claims is None or claim in claims}
    margin = MARGIN if recipe.margin is None else recipe.margin
    judgements = judge_differences(judged, margin=margin, is_sequential=is_sequential)
    return [
        _judge(claim, claim.datasets or recipe.datasets, finished[claim], judgements[claim.text])
        if claim.text in judgements
        else _leave_open(claim, finished[claim], paired[claim].differences)
        for claim in recipe.claims
    ]


def _leave_open(claim: Claim, finished: Collection[str], differences: Sequence[float]) -> ClaimVerdict:
    evidence = "the runs that would decide it are not planned"
    if differences:
        trials = pluralize(len(differences), "trial")
        evidence += f"; on {', '.join(finished)} {statistics.fmean(differences):+z.1f} points over {trials}"
    return ClaimVerdict(claim.text, "inconclusive", evidence)


def _judge(claim: Claim, datasets: Sequence[str], finished: Collection[str], judgement: Judgement) -> ClaimVerdict:
    verdict = judgement.verdict
    if judgement.estimate is None:
        problems = "" if judgement.paired.is_sound else f"; {describe_problems(judgement)}"
        evidence = f"no trial with the same test domains of both finished{problems}"
        return ClaimVerdict(claim.text, verdict, evidence, judgement)
    evidence = _format_evidence(judgement, claim)
    if len(finished) < len(datasets):
        verdict = "inconclusive" if claim.needs_all else verdict
        evidence = f"on {', '.join(name for name in datasets if name in finished)} only: {evidence}"
    return ClaimVerdict(claim.text, verdict, evidence, judgement)


def _format_evidence(judgement: Judgement, claim: Claim) -> str:
    low_high = "(too few trials)" if judgement.interval is None else "[{:+z.1f}, {:+z.1f}]".format(*judgement.interval)
    trials = pluralize(judgement.trials, "trial")
    text = f"{judgement.estimate:+z.1f} {low_high} points over {trials}, {claim.better} ahead in {judgement.wins}"
    if not judgement.paired.is_sound:
        return f"{text}; {describe_problems(judgement)}"
    if judgement.verdict != "inconclusive":
        return text
    return f"{text}; {judgement.trials_needed or 'at least 2'} trials needed"


def tabulate_verdicts(verdicts: Sequence[ClaimVerdict]) -> TextTable:
    rows = [(each.claim, each.verdict, each.evidence) for each in verdicts]
    judgements = [each.judgement for each in verdicts if each.judgement is not None]
    notes = describe_verdicts(judgements) if judgements else ()
    return TextTable("Claims of the paper", ("claim", "verdict", "evidence"), tuple(rows), notes=tuple(notes))
