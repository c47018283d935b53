"""Training: a config, the trainer, and loading what it left in the run folder."""

from typing import TYPE_CHECKING

from domainwise.errors import RunInterrupted
from domainwise.lazy import export_lazily
from domainwise.storage.run_folder import RunFolder
from domainwise.training.config import RunConfig

if TYPE_CHECKING:
    from domainwise.training.loading import load_algorithm, load_model
    from domainwise.training.trainer import RunResult, Trainer, train

__all__ = [
    "RunConfig",
    "RunFolder",
    "RunInterrupted",
    "RunResult",
    "Trainer",
    "load_algorithm",
    "load_model",
    "train",
]

__getattr__ = export_lazily(
    __name__,
    {
        "RunResult": "trainer",
        "Trainer": "trainer",
        "load_algorithm": "loading",
        "load_model": "loading",
        "train": "trainer",
    },
)


def __dir__() -> list[str]:
    return __all__
