"""Train image classifiers that hold up in domains they never saw."""

from typing import TYPE_CHECKING

from domainwise.errors import DomainwiseError
from domainwise.lazy import export_lazily

if TYPE_CHECKING:
    from domainwise.perturbations import (
        LowRankPerturbation,
        MultiplePerturbation,
        Perturbation,
        SampleWisePerturbation,
        UniversalPerturbation,
    )
    from domainwise.reports import report
    from domainwise.reports.model_card import push_model
    from domainwise.reproduction import reproduce, study
    from domainwise.sweeps.runner import run_sweep
    from domainwise.sweeps.spec import SweepSpec
    from domainwise.training.config import RunConfig
    from domainwise.training.export import export_model
    from domainwise.training.loading import load_algorithm, load_model
    from domainwise.training.model_evaluation import evaluate_models
    from domainwise.training.trainer import RunResult, Trainer, train

__version__ = "0.3.0"

__all__ = [
    "DomainwiseError",
    "LowRankPerturbation",
    "MultiplePerturbation",
    "Perturbation",
    "RunConfig",
    "RunResult",
    "SampleWisePerturbation",
    "SweepSpec",
    "Trainer",
    "UniversalPerturbation",
    "evaluate_models",
    "export_model",
    "load_algorithm",
    "load_model",
    "push_model",
    "report",
    "reproduce",
    "run_sweep",
    "study",
    "train",
]

__getattr__ = export_lazily(
    __name__,
    {
        "LowRankPerturbation": "perturbations",
        "MultiplePerturbation": "perturbations",
        "Perturbation": "perturbations",
        "RunConfig": "training.config",
        "RunResult": "training.trainer",
        "SampleWisePerturbation": "perturbations",
        "SweepSpec": "sweeps.spec",
        "Trainer": "training.trainer",
        "UniversalPerturbation": "perturbations",
        "evaluate_models": "training.model_evaluation",
        "export_model": "training.export",
        "load_algorithm": "training.loading",
        "load_model": "training.loading",
        "push_model": "reports.model_card",
        "report": "reports",
        "reproduce": "reproduction",
        "run_sweep": "sweeps.runner",
        "study": "reproduction",
        "train": "training.trainer",
    },
)


def __dir__() -> list[str]:
    return __all__
