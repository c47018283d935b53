"""Runs: a config, its training, and the folder that holds what came out."""

from domainwise.errors import RunInterrupted
from domainwise.runs.build import load_algorithm, load_model
from domainwise.runs.config import RunConfig
from domainwise.runs.store import RunFolder
from domainwise.runs.train import RunResult, train

__all__ = ["RunConfig", "RunFolder", "RunInterrupted", "RunResult", "load_algorithm", "load_model", "train"]
