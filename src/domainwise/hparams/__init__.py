"""Hyperparameters: what each method has, and where a search draws them from."""

from domainwise.hparams.distributions import Choice, Distribution, Power, Uniform
from domainwise.hparams.fields import Hparams, bounded, searched
from domainwise.hparams.rules import SPACES, read_space
from domainwise.hparams.space import Searched, Space, Task, drawn

__all__ = [
    "SPACES",
    "Choice",
    "Distribution",
    "Hparams",
    "Power",
    "Searched",
    "Space",
    "Task",
    "Uniform",
    "bounded",
    "drawn",
    "read_space",
    "searched",
]
