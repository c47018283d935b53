"""NICO as OoD-Bench splits it: two training domains, one to validate on, one to test on; animal or vehicle."""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from domainwise.data.dataset import Dataset, Role
from domainwise.data.image_files import IMAGE_SIZE, DomainFiles, Listing, build_image_dataset, list_folder
from domainwise.data.paths import OnProgress, dataset_folder, ignore_progress
from domainwise.errors import DomainwiseError
from domainwise.hparams import Power

_SPLIT = "mixed_split_corrected"
_ROLES: dict[str, Role] = {"train1": "train", "train2": "train", "val": "validation", "test": "test"}
_CLASSES = ("animal", "vehicle")


def list_nico(root: Path, name: str = "nico") -> Listing:
    """The files that `mixed_split_corrected/env_*.csv` name, in their order.

    Images lie in root/<class>/<context>, or in the folders animal and vehicle, with or without images below, as NICO's
    own archives have them.
    """
    rows = {domain: _rows(root / _SPLIT / f"env_{domain}.csv") for domain in _ROLES}
    places = {label: _place(root, label, rows) for label in range(len(_CLASSES))}
    domains = []
    for domain, role in _ROLES.items():
        files = tuple(places[label] / path for path, label in rows[domain])
        domains.append(DomainFiles(domain, files, tuple(label for _, label in rows[domain]), role))
    return Listing(name, _CLASSES, tuple(domains))


def _place(root: Path, label: int, rows: Mapping[str, Sequence[tuple[str, int]]]) -> Path:
    """The folder that the paths of a class start from: the first of the three that has any of their folders."""
    folders = sorted({path.split("/")[0] for of_domain in rows.values() for path, of in of_domain if of == label})
    for place in (root, root / _CLASSES[label], root / _CLASSES[label] / "images"):
        if not folders or any((place / folder).is_dir() for folder in folders):
            return place
    raise DomainwiseError(
        f"{root} has the split but not the images of nico: folders {', '.join(folders[:2])}, ... belong into it, "
        f"beside {_SPLIT}; `domainwise data prepare nico` says where to ask for them"
    )


def _rows(file: Path) -> list[tuple[str, int]]:
    """Path and label of each row `path,class,context,superclass`; there is no head, and paths have backslashes."""
    rows = []
    try:
        with open(file, newline="", encoding="utf-8") as lines:
            for number, row in enumerate(csv.reader(lines), start=1):
                path = row[0].replace("\\", "/") if row else ""
                if len(row) != 4 or row[3] not in _CLASSES or not path or path.startswith("/"):
                    raise DomainwiseError(f"{file} is damaged at line {number}: path,class,context,superclass expected")
                rows.append((path, _CLASSES.index(row[3])))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DomainwiseError(f"{file} cannot be read: {error}") from error
    if not rows:
        raise DomainwiseError(f"{file} lists no images")
    return rows


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
        on_progress: OnProgress = ignore_progress,
    ) -> Dataset:
        """The dataset, decoded through the cache; see `domainwise.data.image_files.image_files` for the arguments."""
        return build_image_dataset(
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
