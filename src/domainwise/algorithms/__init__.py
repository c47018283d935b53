"""Every method, by the name it has on the command line and in records."""

from collections.abc import Mapping

from domainwise.algorithms.at import AT
from domainwise.algorithms.base import Algorithm
from domainwise.algorithms.erm import ERM
from domainwise.algorithms.ldat import LDAT
from domainwise.algorithms.mat import MAT
from domainwise.algorithms.uat import UAT

ALGORITHMS: Mapping[str, type[Algorithm]] = {
    "erm": ERM,
    "at": AT,
    "uat": UAT,
    "mat": MAT,
    "ldat": LDAT,
}

__all__ = ["ALGORITHMS", "AT", "ERM", "LDAT", "MAT", "UAT", "Algorithm"]
