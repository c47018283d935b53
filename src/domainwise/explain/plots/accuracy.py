"""Curves with the standard error of their mean as a band, a panel a domain."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from domainwise.data.dataset import Roles
from domainwise.errors import DomainwiseError
from domainwise.storage.discovery import find_folders
from domainwise.storage.run_folder import Record, RunFolder
from domainwise.training.evaluation import selection_score


def mean_and_error(frame: pl.DataFrame, by: list[str], value: str = "accuracy") -> pl.DataFrame:
    """`mean`, its standard `error` over the rows of each group (null for a single one) and their `count`."""
    # As in the tables: the standard deviation of those that are there, over the root of their number.
    error = pl.when(pl.len() > 1).then(pl.col(value).std(ddof=0) / pl.len().sqrt())
    return frame.group_by(by, maintain_order=True).agg(
        mean=pl.col(value).mean(), error=error, count=pl.len().cast(pl.Int64)
    )


def curve(panel: Axes, points: pl.DataFrame, x: str, colour: str, label: str) -> None:
    """A line through `mean` over the column `x`, and a band where there is an error."""
    points = points.sort(x)
    places, means, errors = points[x].to_list(), points["mean"], points["error"].fill_null(0.0)
    counts = sorted(set(points["count"].to_list()))
    count = " to ".join(map(str, {counts[0]: None, counts[-1]: None}))
    panel.plot(places, means.to_list(), marker="o", markersize=3.5, color=colour, label=f"{label} (n = {count})")
    panel.fill_between(places, (means - errors).to_list(), (means + errors).to_list(), color=colour, alpha=0.2, lw=0)


_KINDS = {"domain": "one perturbation a domain", "sample": "one a sample"}


def draw_robustness(frame: pl.DataFrame) -> Figure:
    """Means over runs that differ in their seeds alone, with their standard error.

    Args:
        frame: a row a measurement, with `label`, `domain`, `kind`, `radius` and `accuracy`.
    """
    means = mean_and_error(frame, ["label", "domain", "kind", "radius"])
    kinds, domains, names = (frame[name].unique(maintain_order=True).to_list() for name in ("kind", "domain", "label"))
    figure = Figure((max(5.5, 3.1 * len(domains) + 0.8), 2.9 * len(kinds) + 0.5), layout="constrained", dpi=120)
    panels = figure.subplots(len(kinds), len(domains), sharex=True, sharey=True, squeeze=False)
    for row, kind in zip(panels, kinds, strict=True):
        for panel, domain in zip(row, domains, strict=True):
            here = means.filter(pl.col("kind") == kind, pl.col("domain") == domain)
            for index, name in enumerate(names):
                points = here.filter(pl.col("label") == name)
                if len(points):
                    curve(panel, points, "radius", f"C{index % 10}", name)
            panel.set_title(f"{domain}: {_KINDS[kind]}", fontsize=9)
            panel.grid(alpha=0.25)
            panel.set_ylim(-0.02, 1.02)
        row[0].set_ylabel("accuracy")
    for panel in panels[-1]:
        panel.set_xlabel("l2 radius of the attack")
    panels[0][-1].legend(fontsize=7.5, loc="upper right")
    return figure


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
