"""Gets a dataset into the folder of datasets: downloads, unpacks and arranges it, once, whatever interrupts."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from domainwise.data.download.archives import ARCHIVE_SUFFIXES, unpack
from domainwise.data.download.fetch import fetch
from domainwise.data.download.sources import SOURCES, Source
from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.errors import DomainwiseError, unknown
from domainwise.storage.files import hold_lock, write_atomic

DOWNLOADS = ".downloads"
_UNPACKED = "unpacked"


def prepare(
    name: str, data_dir: Path, *, source: Source | None = None, on_progress: OnProgress = ignore_progress
) -> Path:
    """The folder of dataset `name` in `data_dir`, which is made if it is not there and then complete.

    Archives are kept in `.downloads/<folder>` until that is done, so that a call goes on where another was
    interrupted; a file that was downloaded by hand and put there is used. Their sums stay in
    `.downloads/<folder>.sha256`. A second process waits for the first.

    Args:
        source: where the dataset comes from, if not from where `SOURCES` says.
    """
    if source is None:
        if name not in SOURCES:
            raise unknown("dataset to prepare", name, SOURCES)
        source = SOURCES[name]
    folder, downloads = data_dir / source.folder, data_dir / DOWNLOADS / source.folder
    try:
        if not folder.is_dir():
            if not source.files:
                raise DomainwiseError(f"dataset {name} cannot be downloaded: in {data_dir}, {source.by_hand}")
            downloads.mkdir(parents=True, exist_ok=True)
            with hold_lock(
                downloads.with_name(f"{source.folder}.lock"),
                on_wait=lambda: on_progress(f"waiting for another process that prepares {name}", 0, 0),
            ):
                if not folder.is_dir():
                    _make(source, folder, downloads, on_progress)
        # Not only after the work: a process may have been killed between that and this.
        shutil.rmtree(downloads, ignore_errors=True)
    except OSError as error:
        raise DomainwiseError(f"cannot prepare {name} in {data_dir}: {error.strerror or error}") from error
    return folder


def _make(source: Source, folder: Path, downloads: Path, on_progress: OnProgress) -> None:
    archives = [
        fetch(file.urls, downloads / file.name, checksum=file.checksum, on_progress=on_progress)
        for file in source.files
    ]
    unpacked = downloads / _UNPACKED
    # A killed process may have left it half arranged.
    shutil.rmtree(unpacked, ignore_errors=True)
    unpacked.mkdir()
    try:
        _unpack_all(archives, unpacked, on_progress)
        on_progress(f"arranging {folder.name}", 0, 0)
        arranged = source.arrange(unpacked) if source.arrange else unpacked
        sums = b"".join(path.read_bytes() for path in sorted(downloads.glob("*.sha256")))
        write_atomic(downloads.with_name(f"{source.folder}.sha256"), sums)
        os.rename(arranged, folder)
    finally:
        shutil.rmtree(unpacked, ignore_errors=True)


def _unpack_all(archives: Iterable[Path], unpacked: Path, on_progress: OnProgress) -> None:
    for archive in archives:
        if archive.name.endswith(ARCHIVE_SUFFIXES):
            unpack(archive, unpacked / archive.name, on_progress=on_progress)
        else:
            shutil.copyfile(archive, unpacked / archive.name)
