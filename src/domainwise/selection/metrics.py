"""The metrics of a record: their names, what tables call them, and which way is better. Imports nothing heavy."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from domainwise.errors import DomainwiseError, unknown_choice

_OPPOSITES = {"highest": "lowest", "Highest": "Lowest", "lowest": "highest", "Lowest": "Highest"}


@dataclass(frozen=True)
class Metric:
    """A number in [0, 1] per domain and part.

    Args:
        name: in records and options.
        title: in tables and sentences.
        has_chance_level: whether guessing scores 1 / classes.
    """

    name: str
    title: str
    is_lower_better: bool = False
    has_chance_level: bool = False

    def describe(self, text: str) -> str:
        """Return what a sentence about accuracy says about this metric."""
        words = {"accuracy": self.title, "Accuracy": self.title[:1].upper() + self.title[1:]}
        words |= _OPPOSITES if self.is_lower_better else {}
        return re.sub("|".join(words), lambda match: words[match[0]], text)


ACCURACY = Metric("accuracy", "accuracy", has_chance_level=True)
# By name; tables show one of them at a time.
METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        ACCURACY,
        Metric("macro_f1", "macro-F1"),
        Metric("balanced_accuracy", "balanced accuracy", has_chance_level=True),
        Metric("worst_class", "worst-class accuracy"),
        Metric("ece", "ECE", is_lower_better=True),
    )
}
# What a record can have besides accuracy: the other numbers, and the confusion matrix.
RECORDED = (*(name for name in METRICS if name != "accuracy"), "confusion")


def find_metric(name: str) -> Metric:
    """Return the metric of a table, or raise an error that lists the choices."""
    if name in ("worst", "worst_domain"):
        raise DomainwiseError(f"{name} is a column of every metric, not a metric; add --column worst")
    if name == "confusion":
        raise DomainwiseError("confusion is a matrix, not a number: see the page, or evaluate --metrics confusion")
    if name not in METRICS:
        raise unknown_choice("metric", name, METRICS)
    return METRICS[name]


def parse_metrics(names: str | Iterable[str]) -> tuple[str, ...]:
    """Return the metrics to record, each once and in the order of `RECORDED`; names may be separated by commas.

    Accuracy may be among them. It is always recorded.
    """
    words = names if isinstance(names, Iterable) and not isinstance(names, str) else [names]
    chosen = [name for word in words for name in map(str.strip, str(word).split(",")) if name]
    for name in chosen:
        if name not in (ACCURACY.name, *RECORDED):
            raise unknown_choice("metric to record", name, RECORDED)
    return tuple(name for name in RECORDED if name in chosen)


def read_values(record: Mapping[str, Any], metric: str = "accuracy") -> Mapping[str, Mapping[str, float | None]]:
    """Return a metric of a record by domain and part; empty if it was not recorded."""
    values: Mapping[str, Mapping[str, float | None]] = (
        record["accuracy"] if metric == "accuracy" else record.get("metrics", {}).get(metric, {})
    )
    return values
