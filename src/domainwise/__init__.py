"""Train image classifiers that hold up in domains they never saw."""

from domainwise.errors import DomainwiseError
from domainwise.perturbations import (
    LowRankPerturbation,
    MultiplePerturbation,
    Perturbation,
    SampleWisePerturbation,
    UniversalPerturbation,
)
from domainwise.runs import RunConfig, RunResult, load_algorithm, load_model, train

__version__ = "0.1.0"

__all__ = [
    "DomainwiseError",
    "LowRankPerturbation",
    "MultiplePerturbation",
    "Perturbation",
    "RunConfig",
    "RunResult",
    "SampleWisePerturbation",
    "UniversalPerturbation",
    "load_algorithm",
    "load_model",
    "train",
]
