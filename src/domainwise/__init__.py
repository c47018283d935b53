"""Train image classifiers that hold up in domains they never saw."""

import importlib
from typing import TYPE_CHECKING, Any

from domainwise.errors import DomainwiseError

if TYPE_CHECKING:
    from domainwise.perturbations import (
        LowRankPerturbation,
        MultiplePerturbation,
        Perturbation,
        SampleWisePerturbation,
        UniversalPerturbation,
    )
    from domainwise.training import RunConfig, RunResult, load_algorithm, load_model, train

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


def __getattr__(name: str) -> Any:
    """Import torch only for what needs it: tables are read without, in a tenth of the time."""
    if name not in __all__:
        raise AttributeError(f"module 'domainwise' has no attribute {name!r}")
    part = "domainwise.perturbations" if name.endswith("Perturbation") else "domainwise.training"
    return getattr(importlib.import_module(part), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
