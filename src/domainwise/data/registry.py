"""The table of datasets, by the name they have on the command line and in records."""

from collections.abc import Callable, Mapping

from domainwise.data.dataset import Dataset
from domainwise.data.image_datasets import PUBLISHED
from domainwise.data.mnist import colored_mnist, rotated_mnist
from domainwise.data.synthetic import silhouettes, silhouettes_spurious

DatasetBuilder = Callable[..., Dataset]

DATASETS: Mapping[str, DatasetBuilder] = {
    "silhouettes": silhouettes,
    "silhouettes_spurious": silhouettes_spurious,
    "colored_mnist": colored_mnist,
    "rotated_mnist": rotated_mnist,
    **PUBLISHED,
}
