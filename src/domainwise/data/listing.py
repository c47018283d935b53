"""Listings: which image files a dataset has, with the domain and class of each, before any file is opened."""

import csv
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

from domainwise.errors import DomainwiseError

if TYPE_CHECKING:
    from domainwise.data.dataset import Role

IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")
_IGNORED_PREFIXES = (".", "__")
_LAYOUT = "images are expected at root/domain/class/image"


@dataclass(frozen=True)
class DomainFiles:
    """The files of one domain and the label of each."""

    name: str
    files: tuple[Path, ...]
    labels: tuple[int, ...]
    role: "Role | None" = None


@dataclass(frozen=True)
class Listing:
    """All files of a dataset."""

    name: str
    classes: tuple[str, ...]
    domains: tuple[DomainFiles, ...]

    def count_images(self) -> list[list[int]]:
        """Return the number of images per domain (row) and class (column)."""
        counters = [Counter(domain.labels) for domain in self.domains]
        return [[counter[label] for label in range(len(self.classes))] for counter in counters]

    def describe_missing_classes(self) -> list[str]:
        """Return one line per class that is missing in a domain."""
        return [
            f"domain {domain.name!r} of {self.name} has no image of class {self.classes[label]!r}"
            for domain, row in zip(self.domains, self.count_images(), strict=True)
            for label, count in enumerate(row)
            if count == 0
        ]


def list_images(root: str | Path) -> Listing:
    """List the images of a folder or a CSV file."""
    path = Path(root)
    if path.is_dir():
        return list_folder(path)
    if path.suffix.lower() == ".csv" and path.is_file():
        return list_csv(path)
    raise DomainwiseError(f"{path} is neither a folder of images nor a CSV file")


def list_folder(root: Path, name: str | None = None) -> Listing:
    """List the files at root/domain/class; domains, classes and files are sorted by name.

    Folders that start with a dot or two underscores, hidden files, and files without an image suffix are ignored. A
    class that is missing in some domains has the same label in all others.
    """
    domain_folders = _list_subfolders(root)
    classes = sorted({folder.name for domain in domain_folders for folder in _list_subfolders(domain)})
    if not classes:
        raise DomainwiseError(f"no images found in {root}: {_LAYOUT}")
    domains = []
    for folder in domain_folders:
        images = [(file, label) for label, kind in enumerate(classes) for file in find_images(folder / kind)]
        if not images:
            has_images = any(child.suffix.lower() in IMAGE_SUFFIXES for child in folder.iterdir())
            hint = f"its images are not in class folders; {_LAYOUT}" if has_images else "remove the folder or fill it"
            raise DomainwiseError(f"domain {folder.name!r} has no images in {folder}: {hint}")
        domains.append(_build_domain_files(folder.name, images))
    return Listing(name or root.resolve().name, tuple(classes), tuple(domains))


def find_images(folder: Path) -> list[Path]:
    """Return the images in a folder and its subfolders, in the order of torchvision's ImageFolder."""
    if not folder.is_dir():
        return []
    contents = []
    for parent, subfolders, files in os.walk(folder, onerror=_raise_unreadable, followlinks=True):
        subfolders[:] = [name for name in subfolders if not name.startswith(_IGNORED_PREFIXES)]
        contents.append((parent, files))
    return [
        Path(parent) / file
        for parent, files in sorted(contents)
        for file in sorted(files)
        if file.lower().endswith(IMAGE_SUFFIXES) and not file.startswith(".")
    ]


def _list_subfolders(parent: Path) -> list[Path]:
    try:
        children = sorted(parent.iterdir())
    except OSError as error:
        _raise_unreadable(error)
    return [child for child in children if child.is_dir() and not child.name.startswith(_IGNORED_PREFIXES)]


def _raise_unreadable(error: OSError) -> NoReturn:
    raise DomainwiseError(f"folder {error.filename} could not be read: {error.strerror}") from error


def _build_domain_files(name: str, images: Sequence[tuple[Path, int]], role: "Role | None" = None) -> DomainFiles:
    return DomainFiles(name, tuple(file for file, _ in images), tuple(label for _, label in images), role)


_COLUMNS = ("path", "label", "domain")


def list_csv(file: Path) -> Listing:
    """List the files in a CSV file with columns path, label and domain.

    Paths are absolute or relative to the CSV file's folder. Classes and domains are sorted by name. Missing files are
    reported as broken images when they are read.
    """
    rows = _read_rows(file, _parse_table)
    classes = sorted({label for _, label, _ in rows})
    images: dict[str, list[tuple[Path, int]]] = {name: [] for name in sorted({domain for *_, domain in rows})}
    for path, label, domain in rows:
        images[domain].append((file.parent / path, classes.index(label)))
    domains = tuple(_build_domain_files(name, of_domain) for name, of_domain in images.items())
    return Listing(file.stem, tuple(classes), domains)


def _parse_table(file: Path, lines: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield path, label and domain of each row."""
    reader = csv.DictReader(lines, skipinitialspace=True)
    header = [name.strip() for name in reader.fieldnames or ()]
    reader.fieldnames = header
    for column in _COLUMNS:
        if column not in header:
            raise DomainwiseError(f"{file} has no column {column!r}; the first line must name path,label,domain")
    for row in reader:
        path, label, domain = ((row[column] or "").strip() for column in _COLUMNS)
        if not (path and label and domain):
            empty = _COLUMNS[(path, label, domain).index("")]
            raise DomainwiseError(f"{file} has no {empty} in line {reader.line_num}")
        yield path.replace("\\", "/"), label, domain


_NICO_SPLIT = "mixed_split_corrected"
_NICO_ROLES: "Mapping[str, Role]" = {"train1": "train", "train2": "train", "val": "validation", "test": "test"}
_NICO_CLASSES = ("animal", "vehicle")


def list_nico(root: Path, name: str = "nico") -> Listing:
    """List NICO as OoD-Bench splits it: two training domains, one validation and one test domain; animal or vehicle.

    The files and their order are those of `mixed_split_corrected/env_*.csv`. The images are in root/<class>/<context>,
    or below root/animal and root/vehicle, with or without a folder `images`, as in NICO's own archives.
    """
    rows = {domain: _read_rows(root / _NICO_SPLIT / f"env_{domain}.csv", _parse_nico_rows) for domain in _NICO_ROLES}
    roots = [_find_nico_root(root, label, rows) for label in range(len(_NICO_CLASSES))]
    domains = tuple(
        _build_domain_files(domain, [(roots[label] / path, label) for path, label in rows[domain]], role)
        for domain, role in _NICO_ROLES.items()
    )
    return Listing(name, _NICO_CLASSES, domains)


def _parse_nico_rows(file: Path, lines: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Yield path and label of each row `path,class,context,superclass`; no header, paths have backslashes."""
    for number, row in enumerate(csv.reader(lines), start=1):
        path = row[0].replace("\\", "/") if row else ""
        if len(row) != 4 or row[3] not in _NICO_CLASSES or not path or path.startswith("/"):
            raise DomainwiseError(f"{file} is damaged at line {number}: expected path,class,context,superclass")
        yield path, _NICO_CLASSES.index(row[3])


def _find_nico_root(root: Path, label: int, rows: Mapping[str, Sequence[tuple[str, int]]]) -> Path:
    """Return the folder that the paths of a class are relative to: the first candidate with any of their folders."""
    kind = _NICO_CLASSES[label]
    paths = [path for domain_rows in rows.values() for path, row_label in domain_rows if row_label == label]
    folders = sorted({path.split("/")[0] for path in paths})
    for candidate in (root, root / kind, root / kind / "images"):
        if not folders or any((candidate / folder).is_dir() for folder in folders):
            return candidate
    raise DomainwiseError(
        f"{root} has the split of nico but no images: put the folders {', '.join(folders[:2])}, ... next to "
        f"{_NICO_SPLIT}; `domainwise data prepare nico` says where to request them"
    )


_Row = TypeVar("_Row")


def _read_rows(file: Path, parse: Callable[[Path, Iterable[str]], Iterator[_Row]]) -> list[_Row]:
    try:
        with open(file, newline="", encoding="utf-8-sig") as lines:
            rows = list(parse(file, lines))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DomainwiseError(f"{file} could not be read: {error}") from error
    if not rows:
        raise DomainwiseError(f"{file} lists no images")
    return rows
