"""Model selection: which record of which run a table may show, and how sure its numbers are. Imports no torch."""

from typing import TYPE_CHECKING

from domainwise.lazy import export_lazily

if TYPE_CHECKING:
    from domainwise.selection.frame import build_frame
    from domainwise.selection.metrics import METRICS
    from domainwise.selection.recommendation import recommend
    from domainwise.selection.rules import SELECTIONS, select_models
    from domainwise.selection.runs import Runs, read_runs

__all__ = ["METRICS", "SELECTIONS", "Runs", "build_frame", "read_runs", "recommend", "select_models"]

__getattr__ = export_lazily(
    __name__,
    {
        "METRICS": "metrics",
        "SELECTIONS": "rules",
        "Runs": "runs",
        "build_frame": "frame",
        "read_runs": "runs",
        "recommend": "recommendation",
        "select_models": "rules",
    },
)
