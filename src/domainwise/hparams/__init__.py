"""Hyperparameters of the methods, and the search spaces that sweeps draw them from."""

from domainwise.hparams.fields import (
    MNIST_DATASETS,
    PHOTO_DATASETS,
    Choice,
    DatasetSetting,
    Distribution,
    Hparams,
    Power,
    Uniform,
    hparam,
)
from domainwise.hparams.space import SPACES, SearchDimension, SearchTask, Space, draw_hparams, read_space

__all__ = [
    "MNIST_DATASETS",
    "PHOTO_DATASETS",
    "SPACES",
    "Choice",
    "DatasetSetting",
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
