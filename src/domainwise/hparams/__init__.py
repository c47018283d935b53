"""Hyperparameters: what each method has, and where a search draws them from."""

from domainwise.hparams.fields import Choice, Distribution, Hparams, Power, Uniform, bounded, searched
from domainwise.hparams.space import SPACES, Searched, Space, Task, drawn, read_space

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
