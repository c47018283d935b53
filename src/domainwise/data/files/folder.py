"""Images that lie in folders: root/domain/class/image, with nothing else to say about them."""

import os
from pathlib import Path

from domainwise.data.files.listing import SUFFIXES, DomainFiles, Listing
from domainwise.errors import DomainwiseError

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
        found = [(file, label) for label, kind in enumerate(classes) for file in images_below(domain / kind)]
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


def images_below(folder: Path) -> list[Path]:
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
        if file.lower().endswith(SUFFIXES) and not file.startswith(".")
    ]


def _is_class_folder(folder: Path) -> bool:
    return any(child.suffix.lower() in SUFFIXES for child in folder.iterdir())


def _refuse(error: OSError) -> None:
    raise DomainwiseError(f"the folder {error.filename} cannot be read: {error.strerror}") from error
