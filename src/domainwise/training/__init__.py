"""Runs: a config, its training, and the folder that holds what came out."""

from domainwise.errors import RunInterrupted
from domainwise.storage.run_folder import RunFolder
from domainwise.training.config import RunConfig
from domainwise.training.loading import load_algorithm, load_model
from domainwise.training.trainer import RunResult, train

__all__ = ["RunConfig", "RunFolder", "RunInterrupted", "RunResult", "load_algorithm", "load_model", "train"]
