"""Training: a config, the trainer, and loading what it left in the run folder."""

from typing import TYPE_CHECKING

from domainwise.errors import RunInterrupted
from domainwise.lazy import export_lazily
from domainwise.storage.run_folder import RunFolder
from domainwise.training.config import RunConfig

if TYPE_CHECKING:
    from domainwise.training.domain_shift import DomainShift, ShiftReport, measure_domain_shift
    from domainwise.training.loading import load_algorithm, load_model
    from domainwise.training.model_evaluation import ModelEvaluation, evaluate_models
    from domainwise.training.trainer import RunResult, Trainer, train

__all__ = [
    "DomainShift",
    "ModelEvaluation",
    "RunConfig",
    "RunFolder",
    "RunInterrupted",
    "RunResult",
    "ShiftReport",
    "Trainer",
    "evaluate_models",
    "load_algorithm",
    "load_model",
    "measure_domain_shift",
    "train",
]

__getattr__ = export_lazily(
    __name__,
    {
        "DomainShift": "domain_shift",
        "ModelEvaluation": "model_evaluation",
        "RunResult": "trainer",
        "ShiftReport": "domain_shift",
        "Trainer": "trainer",
        "evaluate_models": "model_evaluation",
        "load_algorithm": "loading",
        "load_model": "loading",
        "measure_domain_shift": "domain_shift",
        "train": "trainer",
    },
)


def __dir__() -> list[str]:
    return __all__
