"""The paper's Figure 1 from one's own runs: accuracy on unseen domains against the radius trained with."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from domainwise.data.splits import Roles
from domainwise.errors import DomainwiseError
from domainwise.explain.bands import curve, mean_and_error
from domainwise.runs.evaluate import selection_score
from domainwise.runs.store import Record, RunFolder
from domainwise.selection.folders import find_folders

AVERAGE = "average"
_SCHEMA = {
    "dataset": pl.String,
    "method": pl.String,
    "epsilon": pl.Float64,
    "trial": pl.Int64,
    "domain": pl.String,
    "accuracy": pl.Float64,
    "run": pl.String,
}


def measured(paths: Sequence[Path]) -> pl.DataFrame:
    """A row a finished run and test domain at or below `paths`, of the record that training domains select.

    `epsilon` is null for methods without one. With several test domains, rows of the domain "average" follow, one a
    method, epsilon and trial that was tested on all of them.
    """
    rows: list[dict[str, Any]] = []
    unfinished = 0
    for found in find_folders(paths):
        folder = RunFolder(found.path)
        if not found.is_ours:
            continue
        if not folder.is_done:
            unfinished += 1
            continue
        rows += _rows(str(found.path), folder.read_records())
    if unfinished:
        runs = "1 run is" if unfinished == 1 else f"{unfinished} runs are"
        warnings.warn(f"{runs} left out because not finished", stacklevel=2)
    frame = pl.DataFrame(rows, schema=_SCHEMA)
    if frame.is_empty():
        raise DomainwiseError(f"there are no finished runs in {', '.join(map(str, paths))}")
    if frame["dataset"].n_unique() > 1:
        names = ", ".join(sorted(frame["dataset"].unique()))
        raise DomainwiseError(f"accuracies of several datasets do not make one curve: {names}; give runs of one")
    _refuse_duplicates(frame)
    return _with_average(frame)


def means_against_epsilon(frame: pl.DataFrame) -> pl.DataFrame:
    """Mean and standard error over trials, a row a domain, method and epsilon."""
    return mean_and_error(frame, ["domain", "method", "epsilon"]).sort("domain", "method", "epsilon", nulls_last=False)


def draw_against_epsilon(frame: pl.DataFrame) -> Figure:
    """A panel a domain: a curve a method that has a radius, a level line each that has none, like ERM."""
    means = means_against_epsilon(frame)
    domains = frame["domain"].unique(maintain_order=True).to_list()
    methods = frame["method"].unique(maintain_order=True).to_list()
    figure = Figure((max(5.0, 3.3 * len(domains) + 0.8), 3.6), layout="constrained", dpi=120)
    panels = figure.subplots(1, len(domains), sharey=True, squeeze=False)[0]
    for panel, domain in zip(panels, domains, strict=True):
        for index, method in enumerate(methods):
            points = means.filter(pl.col("domain") == domain, pl.col("method") == method)
            _method(panel, points, f"C{index % 10}", method.upper())
        panel.set_title(domain, fontsize=10)
        panel.set_xlabel("epsilon in training")
        panel.set_xscale("log")
        panel.xaxis.set_major_formatter("{x:g}")
        panel.grid(alpha=0.25)
    panels[0].set_ylabel("accuracy")
    panels[-1].legend(fontsize=8)
    return figure


def _method(panel: Axes, points: pl.DataFrame, colour: str, label: str) -> None:
    with_radius = points.filter(pl.col("epsilon") > 0)
    if len(with_radius):
        curve(panel, with_radius, "epsilon", colour, label)
    for level in points.filter(pl.col("epsilon").is_null()).iter_rows(named=True):
        error = level["error"] or 0.0
        panel.axhline(level["mean"], color=colour, linestyle="--", label=f"{label} (n = {level['count']})")
        panel.axhspan(level["mean"] - error, level["mean"] + error, color=colour, alpha=0.15, linewidth=0)


def _rows(run: str, records: Sequence[Record]) -> list[dict[str, Any]]:
    """The earliest of the records with the highest score, as the run's `best` model is chosen."""
    if not records:
        return []
    chosen = max(records, key=lambda record: selection_score(record["accuracy"], _roles(record)))
    return [
        {
            "dataset": chosen["dataset"],
            "method": chosen["algorithm"],
            "epsilon": chosen["hparams"].get("epsilon"),
            "trial": chosen["trial_seed"],
            "domain": domain,
            "accuracy": chosen["accuracy"][domain]["main"],
            "run": run,
        }
        for domain in chosen["test_domains"]
    ]


def _roles(record: Record) -> Roles:
    train, validation, test = (tuple(record[f"{role}_domains"]) for role in ("train", "validation", "test"))
    return Roles(train, validation, test, record["roles"])


def _refuse_duplicates(frame: pl.DataFrame) -> None:
    twice = frame.group_by("method", "epsilon", "trial", "domain", maintain_order=True).agg("run")
    for row in twice.filter(pl.col("run").list.len() > 1).head(1).iter_rows(named=True):
        one, other = row["run"][:2]
        epsilon = "" if row["epsilon"] is None else f" with epsilon {row['epsilon']:g}"
        raise DomainwiseError(
            f"{one} and {other} are both {row['method']}{epsilon}, trial {row['trial']}, tested on {row['domain']}; "
            "a mean would count it twice: leave one of them out"
        )


def _with_average(frame: pl.DataFrame) -> pl.DataFrame:
    domains = frame["domain"].n_unique()
    if domains == 1:
        return frame
    together = ["dataset", "method", "epsilon", "trial"]
    average = (
        frame.group_by(together, maintain_order=True)
        .agg(pl.col("accuracy").mean(), pl.col("run").first(), count=pl.len())
        .filter(pl.col("count") == domains)
        .with_columns(domain=pl.lit(AVERAGE))
    )
    return pl.concat([frame, average.select(frame.columns)])
