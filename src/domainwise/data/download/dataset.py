"""Download of a whole dataset: fetch, unpack and arrange it; an interrupted download is resumed."""

import os
import shutil
import warnings
from pathlib import Path

from domainwise.data.decoding import UnreadableFile, read_image_file
from domainwise.data.download.archives import ARCHIVE_SUFFIXES, unpack_archive
from domainwise.data.download.fetch import NotDownloaded, fetch_file
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
    unpacked = downloads / "unpacked"
    # A killed process may have left a partial one.
    shutil.rmtree(unpacked, ignore_errors=True)
    unpacked.mkdir()
    try:
        try:
            arranged = _download_files(source, unpacked, downloads, on_progress)
        except NotDownloaded as error:
            arranged = _copy_from_hub(source, unpacked, error, on_progress)
        checksums = b"".join(path.read_bytes() for path in sorted(downloads.glob("*.sha256")))
        write_atomic(downloads.with_name(f"{source.folder}.sha256"), checksums)
        os.rename(arranged, folder)
    finally:
        shutil.rmtree(unpacked, ignore_errors=True)


def _download_files(source: Source, unpacked: Path, downloads: Path, on_progress: OnProgress) -> Path:
    """Return the folder with the dataset, somewhere in `unpacked`."""
    files = [
        fetch_file(file.urls, downloads / file.name, checksum=file.checksum, page=file.page, on_progress=on_progress)
        for file in source.files
    ]
    for file in files:
        if file.name.endswith(ARCHIVE_SUFFIXES):
            unpack_archive(file, unpacked / file.name, on_progress=on_progress)
        else:
            shutil.copyfile(file, unpacked / file.name)
    on_progress(f"arranging {source.folder}", 0, 0)
    return source.arrange(unpacked) if source.arrange else unpacked


def _copy_from_hub(source: Source, unpacked: Path, failure: NotDownloaded, on_progress: OnProgress) -> Path:
    """Write the images of the Hub's copy of a dataset that could not be downloaded itself to domain/class/number."""
    elsewhere = f"; copies elsewhere: {source.copies}" if source.copies else ""
    copy = source.hub_copy
    if copy is None:
        raise DomainwiseError(f"{failure}{elsewhere}") from failure
    # It imports the sources.
    from domainwise.data.hugging_face import list_hub_dataset

    on_progress(f"downloading {copy.name}", 0, 0)
    try:
        listing = list_hub_dataset(copy.name)
        images = {domain.name: len(domain.files) for domain in listing.domains}
        if images != copy.images:
            raise DomainwiseError(f"{copy.name} has {images} images, expected {dict(copy.images)}")
        done, total = 0, sum(images.values())
        for domain in listing.domains:
            for number, (file, label) in enumerate(zip(domain.files, domain.labels, strict=True)):
                content = read_image_file(file)
                suffix = ".png" if content.startswith(b"\x89PNG") else ".jpg"
                target = unpacked / domain.name / listing.classes[label] / f"{number:05d}{suffix}"
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)
                done += 1
                on_progress(f"copying {copy.name}", done, total)
    except (DomainwiseError, UnreadableFile) as error:
        raise DomainwiseError(f"{failure}; its copy could not be used either: {error}{elsewhere}") from error
    warnings.warn(
        f"{source.folder} is a copy of {copy.name}, because the original could not be downloaded. Its images are in "
        "another order, so splits differ from those of the original",
        stacklevel=2,
    )
    return unpacked
