"""Names, descriptions and locations of the datasets; imports no torch, so that they can be listed quickly."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from domainwise.data.download.sources import SOURCES
from domainwise.data.paths import data_folder
from domainwise.errors import DomainwiseError, format_error
from domainwise.plugins import find_plugins

# In the order of `domainwise.data.DATASETS`, which has the builders.
DESCRIPTIONS: Mapping[str, str] = {
    "silhouettes": "Cows and camels on gray under patterns not seen in training.",
    "silhouettes_spurious": "Cows on grass, camels in the desert; reversed in the test domain.",
    "colored_mnist": "Digits 0 to 4 against 5 to 9, in a misleading colour.",
    "rotated_mnist": "Digits rotated by 0 to 75 degrees.",
    "pacs": "7 classes in photos, art, cartoons and sketches; 9,991 images.",
    "office_home": "65 classes of office and household objects in 4 styles; 15,588 images.",
    "vlcs": "5 classes from 4 older photo datasets; 10,729 images.",
    "terra_incognita": "10 animal classes from 4 camera traps; 24,788 images.",
    "domainnet": "345 classes in 6 styles; 586,575 images.",
    "nico": "Animals or vehicles in misleading contexts, OoD-Bench's split; 4,080 images.",
    "sviro": "7 kinds of occupants of the rear seats of 10 cars, synthetic.",
    "spawrious_o2o_easy": "4 dog breeds; in training, the location predicts the breed; one to one, easy.",
    "spawrious_o2o_medium": "The same, medium.",
    "spawrious_o2o_hard": "The same, hard.",
    "spawrious_m2m_easy": "The same, two breeds with two locations, easy.",
    "spawrious_m2m_medium": "The same, two breeds with two locations, medium.",
    "spawrious_m2m_hard": "The same, two breeds with two locations, hard.",
    "camelyon17": "Tumours in tissue from 5 hospitals, WILDS' version; 455,954 images.",
    "fmow": "62 kinds of land use in satellite images from 6 regions, WILDS' version.",
    "imagenet_r": "Art and other renditions of 200 ImageNet classes; evaluation only.",
    "imagenet_a": "Photos of 200 ImageNet classes that a ResNet-50 got wrong; evaluation only.",
    "imagenet_sketch": "Sketches of the ImageNet classes; evaluation only.",
    "imagenet_v2": "New photos of the ImageNet classes, matched frequency; evaluation only.",
}


@dataclass(frozen=True)
class DatasetStatus:
    """Whether a dataset is available, and where.

    Args:
        folder: where its files are or would be; None for synthetic data, which needs none.
        megabytes: approximate size of the download, if it can be downloaded.
        package: the installed package that registers it; None for those of domainwise.
    """

    name: str
    description: str
    is_available: bool
    folder: Path | None = None
    megabytes: int | None = None
    package: str | None = None


def list_datasets(data_dir: str | Path | None = None) -> list[DatasetStatus]:
    """List all named datasets and whether they are in the data folder, then those of other installed packages.

    A warning says which of the latter cannot be used.
    """
    statuses = []
    for name, description in DESCRIPTIONS.items():
        if name not in SOURCES:
            statuses.append(DatasetStatus(name, description, is_available=True))
            continue
        source = SOURCES[name]
        folder = data_folder(data_dir) / source.folder
        statuses.append(DatasetStatus(name, description, folder.is_dir(), folder, source.megabytes))
    for name, plugin in find_plugins("dataset").items():
        if name in DESCRIPTIONS:
            warnings.warn(f"{name} of {plugin.package} is not used: a built-in dataset has this name", stacklevel=2)
            continue
        try:
            summary = (getattr(plugin.load(), "__doc__", None) or "").strip().partition("\n")[0]
        except (DomainwiseError, OSError) as error:
            warnings.warn(format_error(error), stacklevel=2)
            continue
        statuses.append(DatasetStatus(name, summary, is_available=True, package=plugin.package))
    return statuses
