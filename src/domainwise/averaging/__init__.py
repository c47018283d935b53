"""Weight averaging that works with every method: along a run (SMA, EMA, SWAD) and over the runs of a sweep (soups).

Imports torch and nothing else of this package's, so that it can be used in any training loop.
"""

import inspect
from collections.abc import Mapping
from typing import Any

from torch import nn

from domainwise.averaging.running import EMA, SMA, WeightAverage
from domainwise.averaging.soups import average_states, interpolate_states, select_greedily
from domainwise.averaging.swad import SWAD, LossValley

AVERAGES: Mapping[str, type[WeightAverage]] = {"sma": SMA, "ema": EMA, "swad": SWAD}


def average_options(name: str) -> dict[str, Any]:
    """Return the options of an average, with their defaults."""
    parameters = inspect.signature(AVERAGES[name].__init__).parameters.values()
    return {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}


def default_sma_start(steps: int) -> int:
    """Return the update at which SMA starts in a run of this many steps."""
    return max(1, steps // 2)


def default_swad_every(steps: int) -> int:
    """Return the length of SWAD's segments: the paper's 100 updates, or a thirtieth of a short run."""
    return max(1, min(100, steps // 30))


def build_average(name: str, network: nn.Module, **options: Any) -> WeightAverage:
    """Build the average of that name around a copy of the network."""
    return AVERAGES[name](network, **options)


__all__ = [
    "AVERAGES",
    "EMA",
    "SMA",
    "SWAD",
    "LossValley",
    "WeightAverage",
    "average_options",
    "average_states",
    "build_average",
    "default_sma_start",
    "default_swad_every",
    "interpolate_states",
    "select_greedily",
]
