"""What a dataset of image files is before any is opened: which files, of which class, in which domain."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from domainwise.data.dataset import Role

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp")


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
