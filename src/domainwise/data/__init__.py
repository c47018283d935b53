"""Every dataset, by the name it has on the command line and in records."""

from collections.abc import Callable, Mapping

from domainwise.data.dataset import Dataset, Domain
from domainwise.data.silhouettes import silhouettes
from domainwise.data.silhouettes_spurious import silhouettes_spurious

DatasetBuilder = Callable[..., Dataset]

DATASETS: Mapping[str, DatasetBuilder] = {
    "silhouettes": silhouettes,
    "silhouettes_spurious": silhouettes_spurious,
}

__all__ = ["DATASETS", "Dataset", "DatasetBuilder", "Domain", "silhouettes", "silhouettes_spurious"]
