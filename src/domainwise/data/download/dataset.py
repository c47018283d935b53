"""Download of a whole dataset: fetch, unpack and arrange it; an interrupted download is resumed."""

import os
import shutil
from pathlib import Path

from domainwise.data.download.archives import ARCHIVE_SUFFIXES, unpack_archive
from domainwise.data.download.fetch import fetch_file
from domainwise.data.download.sources import SOURCES, Source
from domainwise.data.paths import OnProgress, data_folder, ignore_progress
from domainwise.errors import DomainwiseError, unknown_choice
from domainwise.storage.files import hold_lock, write_atomic

_DOWNLOADS = ".downloads"


def download_dataset(
    name: str,
    data_dir: str | Path | None = None,
    *,
    source: Source | None = None,
    on_progress: OnProgress = ignore_progress,
) -> Path:
    """Download dataset `name` into the data folder, unless it is there, and return its folder.

    The folder appears only when it is complete. Until then, archives are kept in `.downloads/<folder>`, so that the
    next call resumes an interrupted one; a file that the user put there is used. Checksums of the downloads are stored
    in `.downloads/<folder>.sha256`. If two processes download the same dataset, the second waits for the first.

    Args:
        data_dir: the data folder; see `domainwise.data.paths.data_folder` for the default.
        source: where to download from (default: `SOURCES[name]`).
    """
    if source is None:
        if name not in SOURCES:
            raise unknown_choice("dataset to download", name, SOURCES)
        source = SOURCES[name]
    root = data_folder(data_dir)
    folder, downloads = root / source.folder, root / _DOWNLOADS / source.folder
    try:
        if not folder.is_dir():
            if not source.files:
                raise DomainwiseError(
                    f"dataset {name} cannot be downloaded automatically: {source.instructions} "
                    f"(licence: {source.licence})"
                )
            downloads.mkdir(parents=True, exist_ok=True)
            with hold_lock(
                downloads.with_name(f"{source.folder}.lock"),
                on_wait=lambda: on_progress(f"waiting for another process to download {name}", 0, 0),
            ):
                if not folder.is_dir():
                    _build_folder(source, folder, downloads, on_progress)
        # Also if the folder existed: a process may have been killed just before this line.
        shutil.rmtree(downloads, ignore_errors=True)
    except OSError as error:
        raise DomainwiseError(f"{name} could not be prepared in {root}: {error.strerror or error}") from error
    return folder


def _build_folder(source: Source, folder: Path, downloads: Path, on_progress: OnProgress) -> None:
    try:
        files = [
            fetch_file(
                file.urls, downloads / file.name, checksum=file.checksum, page=file.page, on_progress=on_progress
            )
            for file in source.files
        ]
    except DomainwiseError as error:
        if not source.copies:
            raise
        raise DomainwiseError(f"{error}; copies elsewhere: {source.copies}") from error
    unpacked = downloads / "unpacked"
    # A killed process may have left a partial one.
    shutil.rmtree(unpacked, ignore_errors=True)
    unpacked.mkdir()
    try:
        for file in files:
            if file.name.endswith(ARCHIVE_SUFFIXES):
                unpack_archive(file, unpacked / file.name, on_progress=on_progress)
            else:
                shutil.copyfile(file, unpacked / file.name)
        on_progress(f"arranging {folder.name}", 0, 0)
        arranged = source.arrange(unpacked) if source.arrange else unpacked
        checksums = b"".join(path.read_bytes() for path in sorted(downloads.glob("*.sha256")))
        write_atomic(downloads.with_name(f"{source.folder}.sha256"), checksums)
        os.rename(arranged, folder)
    finally:
        shutil.rmtree(unpacked, ignore_errors=True)
