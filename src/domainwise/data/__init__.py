"""Datasets for domain generalization: domains of images, their splits and batches, the image cache and downloads."""

from typing import TYPE_CHECKING

from domainwise.lazy import export_lazily

if TYPE_CHECKING:
    from domainwise.data.catalog import DESCRIPTIONS, DatasetStatus, list_datasets
    from domainwise.data.dataset import Dataset, Domain
    from domainwise.data.download.dataset import download_dataset
    from domainwise.data.hugging_face import hugging_face_dataset
    from domainwise.data.image_datasets import check_images, image_files
    from domainwise.data.mnist import colored_mnist, rotated_mnist
    from domainwise.data.registry import DATASETS, DatasetBuilder
    from domainwise.data.synthetic import silhouettes, silhouettes_spurious

__all__ = [
    "DATASETS",
    "DESCRIPTIONS",
    "Dataset",
    "DatasetBuilder",
    "DatasetStatus",
    "Domain",
    "check_images",
    "colored_mnist",
    "download_dataset",
    "hugging_face_dataset",
    "image_files",
    "list_datasets",
    "rotated_mnist",
    "silhouettes",
    "silhouettes_spurious",
]


__getattr__ = export_lazily(
    __name__,
    {
        "DATASETS": "registry",
        "DESCRIPTIONS": "catalog",
        "Dataset": "dataset",
        "DatasetBuilder": "registry",
        "DatasetStatus": "catalog",
        "Domain": "dataset",
        "check_images": "image_datasets",
        "colored_mnist": "mnist",
        "download_dataset": "download.dataset",
        "hugging_face_dataset": "hugging_face",
        "image_files": "image_datasets",
        "list_datasets": "catalog",
        "rotated_mnist": "mnist",
        "silhouettes": "synthetic",
        "silhouettes_spurious": "synthetic",
    },
)


def __dir__() -> list[str]:
    return __all__
