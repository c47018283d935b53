"""NICO as OoD-Bench splits it: two training domains, one to validate on, one to test on; animal or vehicle."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from domainwise.data.dataset import Role
from domainwise.data.files.listing import DomainFiles, Listing
from domainwise.errors import DomainwiseError

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
