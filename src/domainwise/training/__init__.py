"""Training: a config, the trainer, and loading what it left in the run folder."""

import importlib
from typing import TYPE_CHECKING, Any

from domainwise.errors import RunInterrupted
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


def __getattr__(name: str) -> Any:
    """Import torch only for what needs it, so that reports and `--help` start without it."""
    if name not in __all__:
        raise AttributeError(f"module 'domainwise.training' has no attribute {name!r}")
    module = "loading" if name.startswith("load_") else "trainer"
    return getattr(importlib.import_module(f"domainwise.training.{module}"), name)
