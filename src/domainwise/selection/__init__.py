"""Which record of which run a table may show."""

from domainwise.selection.frame import frame_of
from domainwise.selection.rules import SELECTIONS

__all__ = ["SELECTIONS", "frame_of"]
