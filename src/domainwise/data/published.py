"""Collections of photographs that the field compares methods on, as their downloads leave them on disk."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from domainwise.data.dataset import Dataset
from domainwise.data.files.folder import list_folder
from domainwise.data.files.listing import Listing
from domainwise.data.files.photos import IMAGE_SIZE, photos
from domainwise.data.nico import list_nico
from domainwise.data.places import OnProgress, dataset_folder, silent
from domainwise.hparams import Power


@dataclass(frozen=True, eq=False)
class Published:
    """A dataset that is built from files in a known folder.

    Args:
        folder: its name inside the folder of datasets.
        about: a line for the list of datasets.
        lister: from that folder to the files of each domain.
        settings: fields of `Dataset` that differ from what suits photographs.
    """

    name: str
    folder: str
    about: str
    lister: Callable[[Path, str], Listing] = list_folder
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __call__(
        self,
        seed: int = 0,
        *,
        data_dir: str | Path | None = None,
        image_size: int = IMAGE_SIZE,
        skip_broken: bool = False,
        on_progress: OnProgress = silent,
    ) -> Dataset:
        """The dataset, decoded through the cache; see `domainwise.data.files.photos.image_files` for the arguments."""
        return photos(
            self.listing(data_dir),
            image_size=image_size,
            skip_broken=skip_broken,
            on_progress=on_progress,
            **self.settings,
        )

    def listing(self, data_dir: str | Path | None = None) -> Listing:
        return self.lister(dataset_folder(self.name, self.folder, data_dir), self.name)


PUBLISHED: Mapping[str, Published] = {
    dataset.name: dataset
    for dataset in (
        Published("pacs", "PACS", "Photos, art, cartoons and sketches of 7 kinds of things; 9,991 images."),
        Published("office_home", "office_home", "65 kinds of things at work and home, in 4 styles; 15,588 images."),
        Published("vlcs", "VLCS", "5 kinds of things from 4 older collections of photos; 10,729 images."),
        Published("terra_incognita", "terra_incognita", "10 animals before 4 camera traps; 24,788 images."),
        Published(
            "domainnet",
            "domain_net",
            "345 kinds of things in 6 styles; 586,575 images.",
            settings={"record_every": 1000, "search": {"batch_size": Power(2, 3, 5, whole=True)}},
        ),
        Published(
            "nico",
            "NICO",
            "Animals or vehicles in contexts that mislead; OoD-Bench's split, 4,080 images.",
            lister=list_nico,
            # Whole domains, and a network that has not seen ImageNet, whose classes are much the same.
            settings={"record_every": 100, "holdout_fraction": 0.0, "weights": "none"},
        ),
    )
}
