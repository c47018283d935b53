"""Model selection: which record of which run a table may show, and how sure its numbers are. Imports no torch."""

from domainwise.selection.frame import build_frame
from domainwise.selection.rules import SELECTIONS
from domainwise.selection.runs import Runs, read_runs

__all__ = ["SELECTIONS", "Runs", "build_frame", "read_runs"]
