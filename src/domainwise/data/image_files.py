"""What a dataset of image files is before any is opened: which files, of which class, in which domain."""

import csv
import os
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from domainwise.data.cache import Cached, decode_files, load_cached_images
from domainwise.data.dataset import Dataset, Domain, Role
from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.errors import DomainwiseError

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")


@dataclass(frozen=True)
class DomainFiles:
    """The files of one domain and the label of each."""

    name: str
    files: tuple[Path, ...]
    labels: tuple[int, ...]
    role: Role | None = None


@dataclass(frozen=True)
class Listing:
    """All files of a dataset."""

    name: str
    classes: tuple[str, ...]
    domains: tuple[DomainFiles, ...]

    def counts(self) -> list[list[int]]:
        """How many images each domain (row) has of each class (column)."""
        counters = [Counter(domain.labels) for domain in self.domains]
        return [[counter[label] for label in range(len(self.classes))] for counter in counters]

    def gaps(self) -> list[str]:
        """A line for every class that a domain has no image of."""
        return [
            f"domain {domain.name!r} of {self.name} has no image of class {self.classes[label]!r}"
            for domain, row in zip(self.domains, self.counts(), strict=True)
            for label, count in enumerate(row)
            if count == 0
        ]


_LEFT_ALONE = (".", "__")
_LAYOUT = "images are expected at root/domain/class/image"


def list_folder(root: Path, name: str | None = None) -> Listing:
    """The files under `root`, domains, classes and files each in the order of their names.

    Folders whose names begin with a dot or with two underscores, hidden files, and files that are no images by their
    name are left alone.
    A class that some domain lacks keeps its label in all of them.
    """
    name = name or root.resolve().name
    domains = _folders(root)
    classes = sorted({folder.name for domain in domains for folder in _folders(domain)})
    if not classes:
        raise DomainwiseError(f"there are no images in {root}: {_LAYOUT}")
    listed = []
    for domain in domains:
        found = [(file, label) for label, kind in enumerate(classes) for file in find_images(domain / kind)]
        if not found:
            lying = _is_class_folder(domain)
            hint = f"its images lie in no class folder; {_LAYOUT}" if lying else "move it away, or fill it"
            raise DomainwiseError(f"domain {domain.name!r} has no images in {domain}: {hint}")
        files, labels = zip(*found, strict=True)
        listed.append(DomainFiles(domain.name, files, labels))
    return Listing(name, tuple(classes), tuple(listed))


def _folders(parent: Path) -> list[Path]:
    try:
        children = sorted(parent.iterdir())
    except OSError as error:
        raise DomainwiseError(f"the folder {parent} cannot be read: {error.strerror}") from error
    return [child for child in children if child.is_dir() and not child.name.startswith(_LEFT_ALONE)]


def find_images(folder: Path) -> list[Path]:
    """Images in a class folder and in folders below it, in the order that torchvision's ImageFolder gives them."""
    if not folder.is_dir():
        return []
    found = []
    for where, below, files in os.walk(folder, onerror=_refuse, followlinks=True):
        below[:] = [name for name in below if not name.startswith(_LEFT_ALONE)]
        found.append((where, files))
    return [
        Path(where) / file
        for where, files in sorted(found)
        for file in sorted(files)
        if file.lower().endswith(IMAGE_SUFFIXES) and not file.startswith(".")
    ]


def _is_class_folder(folder: Path) -> bool:
    return any(child.suffix.lower() in IMAGE_SUFFIXES for child in folder.iterdir())


def _refuse(error: OSError) -> None:
    raise DomainwiseError(f"the folder {error.filename} cannot be read: {error.strerror}") from error


_COLUMNS = ("path", "label", "domain")


def list_csv(file: Path) -> Listing:
    """The files that rows name, relative to the CSV file's own folder or absolute.

    Labels and domains are words; both are numbered in the order of their names. Files that are not there are broken
    images like any other: found when they are read.
    """
    rows = _rows(file)
    classes = sorted({label for _, label, _ in rows})
    domains: dict[str, list[tuple[Path, int]]] = {name: [] for name in sorted({domain for *_, domain in rows})}
    for path, label, domain in rows:
        domains[domain].append((file.parent / path.replace("\\", "/"), classes.index(label)))
    listed = [
        DomainFiles(name, tuple(path for path, _ in found), tuple(label for _, label in found))
        for name, found in domains.items()
    ]
    return Listing(file.stem, tuple(classes), tuple(listed))


def _rows(file: Path) -> list[tuple[str, str, str]]:
    rows = []
    try:
        with open(file, newline="", encoding="utf-8-sig") as lines:
            reader = csv.DictReader(lines, skipinitialspace=True)
            head = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = head
            lacking = [column for column in _COLUMNS if column not in head]
            if lacking:
                raise DomainwiseError(f"{file} has no column {lacking[0]!r}; its first line names path,label,domain")
            for row in reader:
                values = [(row[column] or "").strip() for column in _COLUMNS]
                if not all(values):
                    empty = _COLUMNS[values.index("")]
                    raise DomainwiseError(f"{file} has no {empty} in line {reader.line_num}")
                rows.append((values[0], values[1], values[2]))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DomainwiseError(f"{file} cannot be read: {error}") from error
    if not rows:
        raise DomainwiseError(f"{file} lists no images")
    return rows


IMAGE_SIZE = 224


def image_files(
    root: str | Path,
    seed: int = 0,
    *,
    image_size: int = IMAGE_SIZE,
    skip_broken: bool = False,
    on_progress: OnProgress = ignore_progress,
) -> Dataset:
    """Any folder of images, root/domain/class/image, or a CSV file with columns path, label and domain.

    Args:
        seed: of no use here: the files are what they are.
        image_size: side in pixels that images are squashed to.
        skip_broken: leave out images that cannot be read, instead of refusing the dataset.
    """
    return build_image_dataset(
        list_images(root), image_size=image_size, skip_broken=skip_broken, on_progress=on_progress
    )


def list_images(root: str | Path) -> Listing:
    """The listing of a folder or of a CSV file."""
    path = Path(root)
    if path.is_dir():
        return list_folder(path)
    if path.suffix.lower() == ".csv" and path.is_file():
        return list_csv(path)
    raise DomainwiseError(f"{path} is neither a folder of images nor a CSV file")


def build_image_dataset(
    listing: Listing,
    *,
    image_size: int,
    skip_broken: bool,
    on_progress: OnProgress = ignore_progress,
    **settings: Any,
) -> Dataset:
    """The dataset of `listing`; `settings` are fields of `Dataset` that differ from what suits photographs."""
    if image_size < 1:
        raise DomainwiseError(f"image_size must be at least 1, not {image_size}")
    for gap in listing.gaps():
        warnings.warn(gap, stacklevel=2)
    domains = []
    for domain in listing.domains:

        def report(what: str, done: int, total: int, name: str = domain.name) -> None:
            on_progress(f"{what} {name}", done, total)

        cached = load_cached_images(domain.files, image_size, report)
        _judge(domain, cached, skip_broken)
        labels = torch.tensor([domain.labels[index] for index in cached.kept])
        domains.append(Domain(domain.name, cached.images, labels, domain.role))
    suited: dict[str, Any] = {
        "network": "resnet18",
        "weights": "IMAGENET1K_V1",
        "is_augmented": True,
        "defaults": {"lr": 5e-5, "batch_size": 32},
        "record_every": 300,
    }
    return Dataset(listing.name, listing.classes, tuple(domains), **{**suited, **settings})


def _judge(domain: DomainFiles, cached: Cached, skip_broken: bool) -> None:
    """Refuse broken images, or say how many are left out; say which were converted."""
    if cached.faults:
        first = min(cached.faults)
        fault = f"{domain.files[first]} {cached.faults[first]}"
        if not skip_broken:
            more = f", and {len(cached.faults) - 1} more images of the domain" if len(cached.faults) > 1 else ""
            raise DomainwiseError(f"{fault}{more}; --skip-broken leaves such images out")
        if not cached.kept:
            raise DomainwiseError(f"none of the {len(domain.files)} images of domain {domain.name!r} is left: {fault}")
        left = f"{len(cached.faults)} of {len(domain.files)} images"
        warnings.warn(f"{left} of domain {domain.name!r} are left out: {fault} ...", stacklevel=3)
    for note, count in Counter(cached.notes.values()).items():
        first = next(index for index in cached.notes if cached.notes[index] == note)
        warnings.warn(f"{count} images of domain {domain.name!r} are {note}: {domain.files[first]} ...", stacklevel=3)


@dataclass(frozen=True)
class Check:
    """Files that cannot be used, and files that are converted, each with why; and classes that a domain lacks."""

    faults: dict[Path, str]
    notes: dict[Path, str]
    gaps: list[str]


def check_files(listing: Listing, on_progress: OnProgress = ignore_progress) -> Check:
    """Decodes every file and keeps none."""
    faults, notes = {}, {}
    for domain in listing.domains:

        def report(what: str, done: int, total: int, name: str = domain.name) -> None:
            on_progress(f"{what} {name}", done, total)

        for file, image in zip(domain.files, decode_files(domain.files, 1, report), strict=True):
            if image.error:
                faults[file] = image.error
            elif image.note:
                notes[file] = image.note
    return Check(faults, notes, listing.gaps())
