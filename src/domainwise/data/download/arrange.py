"""Brings unpacked archives into the layout that is read, which is the one that DomainBed's download makes.

Every function takes the folder of what was unpacked: archive `x.zip` as folder `x.zip`, other files as they are.
It returns the folder in it that is the dataset.
"""

import gzip
import os
import shutil
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from domainwise.errors import DomainwiseError

Arrange = Callable[[Path], Path]

# A Mac adds a second tree with the same names to its zip files, which holds no images.
_MAC_EXTRAS = "__MACOSX"


def folder_holding(unpacked: Path, names: Sequence[str]) -> Path:
    """The outermost folder with folders of all these names in it, whatever it is called and lies in."""
    level = [unpacked]
    while level:
        for folder in level:
            if all((folder / name).is_dir() for name in names):
                return folder
        level = [child for folder in level for child in sorted(folder.iterdir()) if _may_hold_images(child)]
    raise DomainwiseError(f"what was downloaded has no folder with {', '.join(names)} in it")


def gather_folders(unpacked: Path, names: Sequence[str], duplicates: str) -> Path:
    """One folder with the folder `name` of every archive `<name>.zip`, without what the file `duplicates` lists."""
    gathered = unpacked / "gathered"
    gathered.mkdir()
    for name in names:
        os.rename(folder_holding(unpacked / f"{name}.zip", [name]) / name, gathered / name)
    remove_listed(gathered, unpacked / duplicates)
    return gathered


def remove_listed(folder: Path, listing: Path) -> int:
    """Removes the files in `folder` that `listing` names, a relative path a line; returns how many there were."""
    removed = 0
    for line in listing.read_text().splitlines():
        path = PurePosixPath(line.strip())
        if path.is_absolute() or ".." in path.parts:
            raise DomainwiseError(
                f"refused to remove {line.strip()!r}, which {listing.name} lists: it is not in {folder}"
            )
        if (folder / path).is_file():
            (folder / path).unlink()
            removed += 1
    return removed


def gunzip_to_raw(unpacked: Path) -> Path:
    """The files `<name>.gz` as `raw/<name>`, where torchvision looks for MNIST."""
    arranged = unpacked / "arranged"
    (arranged / "raw").mkdir(parents=True)
    for zipped in sorted(unpacked.glob("*.gz")):
        try:
            with gzip.open(zipped) as source, open(arranged / "raw" / zipped.stem, "wb") as target:
                shutil.copyfileobj(source, target)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DomainwiseError(f"{zipped.name} is damaged ({error}): delete it to download it again") from error
    return arranged


def _may_hold_images(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and path.name != _MAC_EXTRAS
