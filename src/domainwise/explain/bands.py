"""Curves with the standard error of their mean as a band, a panel a domain."""

import polars as pl
from matplotlib.axes import Axes


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
