"""Hyperparameters of the methods, and the search spaces that sweeps draw them from."""

from domainwise.hparams.fields import Choice, Distribution, Hparams, Power, Uniform, hparam
from domainwise.hparams.space import SPACES, SearchDimension, SearchTask, Space, draw_hparams, read_space

__all__ = [
    "SPACES",
    "Choice",
    "Distribution",
    "Hparams",
    "Power",
    "SearchDimension",
    "SearchTask",
    "Space",
    "Uniform",
    "draw_hparams",
    "hparam",
    "read_space",
]
