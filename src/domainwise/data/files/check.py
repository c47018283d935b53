"""What is wrong or unusual in a dataset's files, found by opening every one."""

from dataclasses import dataclass
from pathlib import Path

from domainwise.data.files.cache import decoded_files
from domainwise.data.files.listing import Listing
from domainwise.data.places import OnProgress, silent


@dataclass(frozen=True)
class Check:
    """Files that cannot be used, and files that are converted, each with why; and classes that a domain lacks."""

    faults: dict[Path, str]
    notes: dict[Path, str]
    gaps: list[str]


def check_files(listing: Listing, on_progress: OnProgress = silent) -> Check:
    """Decodes every file and keeps none."""
    faults, notes = {}, {}
    for domain in listing.domains:

        def report(what: str, done: int, total: int, name: str = domain.name) -> None:
            on_progress(f"{what} {name}", done, total)

        for file, image in zip(domain.files, decoded_files(domain.files, 1, report), strict=True):
            if image.fault:
                faults[file] = image.fault
            elif image.note:
                notes[file] = image.note
    return Check(faults, notes, listing.gaps())
