"""What was run, in a few lines for the top of the page."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import domainwise
from domainwise.reports.page.facts import RunFacts
from domainwise.reports.page.material import Material
from domainwise.reports.page.variants import Variant, in_order

_STATES = {"done": "done", "failed": "failed", "unfinished": "not finished", "to do": "not started"}


def summary_of(material: Material) -> list[tuple[str, str]]:
    """Pairs of a name and what there is of it; none that is empty."""
    counted = [run for run in material.facts.values() if run.is_counted]
    algorithms = in_order((run.algorithm for run in material.facts.values()), material.variants)
    methods = Counter(material.variants.get(name, Variant(name)).method for name in algorithms)
    states = [run.state for run in material.facts.values()]
    runs = [f"{states.count(state)} {words}" for state, words in _STATES.items() if state in states]
    pairs = [
        ("Datasets", ", ".join(sorted({run.dataset for run in material.facts.values()}))),
        ("Methods", ", ".join(name if count == 1 else f"{name} ({count} settings)" for name, count in methods.items())),
        ("Trials", _range(counted, "trial")),
        ("Draws of hyperparameters", _range(counted, "draw")),
        ("Steps", _listed(run.settings.get("steps") for run in counted)),
        ("Networks", _listed(run.settings.get("network") for run in counted)),
        ("Runs", ", ".join(runs)),
        ("Made with", f"domainwise {domainwise.__version__}"),
    ]
    return [(name, value) for name, value in pairs if value]


def _range(runs: Sequence[RunFacts], what: str) -> str:
    """How many trials or draws a method has on a dataset: from the fewest to the most."""
    found: dict[tuple[str, str], set[int]] = {}
    for run in runs:
        found.setdefault((run.dataset, run.algorithm), set()).add(getattr(run, what))
    counts = sorted(len(each) for each in found.values())
    if not counts:
        return ""
    return str(counts[0]) if counts[0] == counts[-1] else f"{counts[0]} to {counts[-1]}"


def _listed(values: Iterable[Any]) -> str:
    """Each once, numbers by size and words by letter."""
    there = {value for value in values if value is not None}
    return ", ".join(map(str, sorted(there, key=lambda value: (isinstance(value, str), value))))
