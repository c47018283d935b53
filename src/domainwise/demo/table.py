"""Records to the demo's table: means over seeds, and the row of each method that selection would choose."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from domainwise.demo.plan import Row
from domainwise.markdown import as_markdown
from domainwise.runs.store import Record


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
    return as_markdown(head, body, numbers=len(head) - 2)
