"""NICO as OoD-Bench splits it: two training domains, one to validate on, one to test on; animal or vehicle."""

import csv
from collections.abc import Iterator
from pathlib import Path

from domainwise.data.dataset import Role
from domainwise.data.files.listing import DomainFiles, Listing
from domainwise.errors import DomainwiseError

_SPLIT = "mixed_split_corrected"
_ROLES: dict[str, Role] = {"train1": "train", "train2": "train", "val": "validation", "test": "test"}
_CLASSES = ("animal", "vehicle")


def list_nico(root: Path, name: str = "nico") -> Listing:
    """The files that `mixed_split_corrected/env_*.csv` name, in their order; images lie in root/class/context."""
    domains = []
    for domain, role in _ROLES.items():
        split = root / _SPLIT / f"env_{domain}.csv"
        rows = list(_rows(split))
        if not rows:
            raise DomainwiseError(f"{split} lists no images")
        files = tuple(root / path for path, _ in rows)
        domains.append(DomainFiles(domain, files, tuple(label for _, label in rows), role))
    folders = {file.relative_to(root).parts[0] for domain in domains for file in domain.files}
    if not any((root / folder).is_dir() for folder in folders):
        raise DomainwiseError(
            f"{root} has the split but not the images of {name}: they belong into folders {min(folders)}/<context>, "
            f"and so on beside {_SPLIT}; `domainwise data prepare {name}` says where to ask for them"
        )
    return Listing(name, _CLASSES, tuple(domains))


def _rows(file: Path) -> Iterator[tuple[str, int]]:
    """Path and label of each row `path,class,context,superclass`; there is no head, and paths have backslashes."""
    try:
        with open(file, newline="", encoding="utf-8") as lines:
            for number, row in enumerate(csv.reader(lines), start=1):
                path = row[0].replace("\\", "/") if row else ""
                if len(row) != 4 or row[3] not in _CLASSES or not path or path.startswith("/"):
                    raise DomainwiseError(f"{file} is damaged at line {number}: path,class,context,superclass expected")
                yield path, _CLASSES.index(row[3])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DomainwiseError(f"{file} cannot be read: {error}") from error
