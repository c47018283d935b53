"""Every dataset, by the name it has on the command line and in records."""

from collections.abc import Callable, Mapping

from domainwise.data.dataset import Dataset, Domain
from domainwise.data.datasets import PUBLISHED
from domainwise.data.image_files import image_files
from domainwise.data.mnist import colored_mnist, rotated_mnist
from domainwise.data.silhouettes import silhouettes
from domainwise.data.silhouettes_spurious import silhouettes_spurious

DatasetBuilder = Callable[..., Dataset]

DATASETS: Mapping[str, DatasetBuilder] = {
    "silhouettes": silhouettes,
    "silhouettes_spurious": silhouettes_spurious,
    "colored_mnist": colored_mnist,
    "rotated_mnist": rotated_mnist,
    **PUBLISHED,
}

__all__ = [
    "DATASETS",
    "Dataset",
    "DatasetBuilder",
    "Domain",
    "colored_mnist",
    "image_files",
    "rotated_mnist",
    "silhouettes",
    "silhouettes_spurious",
]
