"""A claim of the theory, a verdict on it, and the numbers behind that; and the range over which claims are tried."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

Verdict = Literal["holds", "fails", "depends"]
CORRELATIONS = (0.55, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
TIMES = np.logspace(0, 8, 81)
LATE = TIMES >= 1e3  # where "for large t" is taken to begin
MARGINS = (1.0, 1.5, 2.0, 5.0, 20.0)
BETAS = (0.5, 1.0, 2.0, 5.0)


@dataclass(frozen=True)
class Finding:
    claim: str
    verdict: Verdict
    evidence: str
