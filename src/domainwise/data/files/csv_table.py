"""Images that a CSV file lists, a row each: columns path, label and domain."""

import csv
from pathlib import Path

from domainwise.data.files.listing import DomainFiles, Listing
from domainwise.errors import DomainwiseError

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
