"""Cache of decoded images: one file of bytes per domain, named by its content, that training maps into memory.

An entry is a folder `<key>` with `images` (n x size x size x 3 bytes) and `entry.json`. The key is a digest of the
source files' contents in order, the size and the decoding rule, so an entry stays valid when the files move.
"""

import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from domainwise.data.decoding import (
    DECODING_RULE,
    CenterCrop,
    DecodedImage,
    ImageFile,
    TableImage,
    UnreadableFile,
    decode_image,
    read_image_file,
)
from domainwise.data.paths import CACHE_VARIABLE, OnProgress, cache_folder, ignore_progress
from domainwise.errors import DomainwiseError
from domainwise.storage.files import hold_lock, write_atomic

_IMAGES, _ENTRY, _FINGERPRINTS = "images", "entry.json", "seen.json"
_ENTRY_NAME = re.compile(r"[0-9a-f]{32}")
_PARTIAL_NAME = re.compile(r"\.[0-9a-f]{32}\.partial")
_FINGERPRINTS_NAME = re.compile(rf"\.?[0-9a-f]{{32}}\.{re.escape(_FINGERPRINTS)}(\..*)?")
_DECODE_CHUNK, _READ_CHUNK = 256, 1024


@dataclass(frozen=True)
class CachedImages:
    """A domain's decoded images, uint8, (n, 3, size, size).

    Args:
        kept: positions of the files that the images are from, in order.
        errors: position of each file that could not be decoded, with the reason.
        notes: position of each file that was converted, with the kind.
    """

    images: Tensor
    kept: list[int]
    errors: dict[int, str]
    notes: dict[int, str]


def load_cached_images(
    files: Sequence[ImageFile],
    size: int,
    on_progress: OnProgress = ignore_progress,
    crop: CenterCrop | None = None,
) -> CachedImages:
    """Load the images of `files` from the cache; decode them first if they are not in it.

    If two processes need the same entry, one builds it and the other waits. A process that is killed while building
    leaves no entry behind.

    Args:
        size, crop: as for `decode_image`.
    """
    folder = cache_folder()
    files = [file.absolute() if isinstance(file, Path) else file for file in files]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        listing_key = _digest(b"\n".join(os.fsencode(str(file)) for file in files))
        fingerprints = compute_fingerprints(files, folder / f"{listing_key}.{_FINGERPRINTS}", on_progress)
        rule = f"{DECODING_RULE} {crop}" if crop else DECODING_RULE
        key = _digest(json.dumps([rule, size, fingerprints]).encode())
        entry = folder / key
        if not entry.is_dir():
            waiting = "waiting for another process to decode"
            with hold_lock(folder / f"{key}.lock", on_wait=lambda: on_progress(waiting, 0, 0)):
                if not entry.is_dir():
                    _build_entry(entry, files, fingerprints, size, on_progress, crop)
    except OSError as error:
        raise DomainwiseError(
            f"decoded images could not be written to {folder}: {error.strerror or error}; "
            f"set ${CACHE_VARIABLE} to another folder"
        ) from error
    return _open_entry(entry, len(files), size)


def cache_size() -> tuple[int, int]:
    """Return the number of entries and their total size in bytes."""
    folder = cache_folder()
    entries = [path for path in _list_folder(folder) if _ENTRY_NAME.fullmatch(path.name) and _is_own(path)]
    return len(entries), sum(file.lstat().st_size for entry in entries for file in entry.iterdir())


def clear_cache() -> None:
    """Remove all entries and nothing else; processes that have an entry open can go on using it.

    Lock files stay: if one were removed, two processes could hold locks of the same name.

    Raises:
        DomainwiseError: the folder is the root or the home folder, or has other contents and no entry.
    """
    folder = cache_folder()
    if os.path.realpath(folder) in (os.path.realpath(place) for place in ("/", os.path.expanduser("~"))):
        raise _foreign_folder(folder, "is not a cache but the root or home folder")
    paths = [path for path in _list_folder(folder) if path.suffix != ".lock"]
    own = [path for path in paths if _is_own(path)]
    if paths and not own:
        raise _foreign_folder(folder, f"is not a cache of decoded images: it contains {paths[0].name}, and no images")
    for path in own:
        # Only what was recognized, file by file: nothing below a folder or a link is ever removed.
        if path.is_dir():
            for file in path.iterdir():
                file.unlink(missing_ok=True)
            path.rmdir()
        else:
            path.unlink(missing_ok=True)


def _foreign_folder(folder: Path, reason: str) -> DomainwiseError:
    return DomainwiseError(f"{folder} {reason}; nothing was removed. Set ${CACHE_VARIABLE} to the folder of the cache")


def _list_folder(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _is_own(path: Path) -> bool:
    """Return whether this module wrote a folder or file, complete or partial, by its name and its contents."""
    if path.is_symlink():
        return False
    if not path.is_dir():
        return path.is_file() and _FINGERPRINTS_NAME.fullmatch(path.name) is not None
    is_entry, is_partial = (pattern.fullmatch(path.name) for pattern in (_ENTRY_NAME, _PARTIAL_NAME))
    if not is_entry and not is_partial:
        return False
    files = list(path.iterdir())
    names = {file.name for file in files if file.is_file() and not file.is_symlink()}
    if len(names) < len(files):
        return False
    if is_entry:
        return names == {_IMAGES, _ENTRY}
    return all(name in (_IMAGES, _ENTRY) or name.startswith(f".{_ENTRY}.") for name in names)


def _build_entry(
    entry: Path,
    files: Sequence[ImageFile],
    fingerprints: Sequence[str],
    size: int,
    on_progress: OnProgress,
    crop: CenterCrop | None,
) -> None:
    partial = entry.with_name(f".{entry.name}.partial")
    # Left by a killed process: this one has the lock.
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    required, free = len(files) * size * size * 3, shutil.disk_usage(partial).free
    if required > free:
        raise DomainwiseError(
            f"{len(files)} decoded images of {size} x {size} need {required / 1e9:.1f} GB, but {entry.parent} has "
            f"{free / 1e9:.1f} GB free; set ${CACHE_VARIABLE} to another folder, or reduce --image-size"
        )
    errors, notes = {}, {}
    with open(partial / _IMAGES, "wb") as out:
        for index, image in enumerate(decode_files(files, size, on_progress, fingerprints, crop)):
            if image.pixels is None:
                errors[index] = image.error
            else:
                out.write(image.pixels)
            if image.note:
                notes[index] = image.note
        out.flush()
        os.fsync(out.fileno())
    write_atomic(partial / _ENTRY, json.dumps({"faults": errors, "notes": notes}).encode())
    os.rename(partial, entry)


def _open_entry(entry: Path, count: int, size: int) -> CachedImages:
    try:
        content = json.loads((entry / _ENTRY).read_text())
        errors = {int(index): str(error) for index, error in content["faults"].items()}
        notes = {int(index): str(note) for index, note in content["notes"].items()}
        kept = [index for index in range(count) if index not in errors]
        shape = (len(kept), size, size, 3)
        actual, expected = (entry / _IMAGES).stat().st_size, len(kept) * size * size * 3
        if actual != expected:
            raise ValueError(f"{actual} bytes of images, expected {expected}")
        if not kept:
            return CachedImages(torch.empty(0, 3, size, size, dtype=torch.uint8), kept, errors, notes)
        # Copy-on-write: torch warns about read-only memory.
        rows = np.memmap(entry / _IMAGES, np.uint8, "c", shape=shape)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DomainwiseError(f"cache entry {entry} is damaged ({error}); delete that folder") from error
    return CachedImages(torch.from_numpy(rows).permute(0, 3, 1, 2), kept, errors, notes)


def decode_files(
    files: Sequence[ImageFile],
    size: int,
    on_progress: OnProgress = ignore_progress,
    fingerprints: Sequence[str] | None = None,
    crop: CenterCrop | None = None,
) -> Iterator[DecodedImage]:
    """Decode files in order, on all CPU cores: decoding releases the GIL.

    Args:
        size, crop: as for `decode_image`.
        fingerprints: digest of each file from `compute_fingerprints`; a file that has changed since raises an error.
    """

    def decode(file: ImageFile, expected: str | None) -> DecodedImage:
        try:
            content = read_image_file(file)
        except UnreadableFile as error:
            image, fingerprint = DecodedImage(None, error=str(error)), UNREADABLE
        else:
            image, fingerprint = decode_image(content, size, crop), _digest(content)
        if expected not in (None, fingerprint):
            raise DomainwiseError(f"{file} changed while it was read; run the same command again")
        return image

    expected: Sequence[str | None] = fingerprints or [None] * len(files)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        # In chunks, to bound the memory of images that wait to be written.
        for start in range(0, len(files), _DECODE_CHUNK):
            chunk = slice(start, start + _DECODE_CHUNK)
            with warnings.catch_warnings():
                # Pillow warns about odd headers; what matters here is whether the image can be decoded.
                warnings.simplefilter("ignore")
                images = list(pool.map(decode, files[chunk], expected[chunk]))
            yield from images
            on_progress("decoding", min(start + _DECODE_CHUNK, len(files)), len(files))


# Stands for the digest of a file that could not be read.
UNREADABLE = "unreadable"


def compute_fingerprints(
    files: Sequence[ImageFile], index: Path, on_progress: OnProgress = ignore_progress
) -> list[str]:
    """Return a digest of each file's bytes, or `UNREADABLE`.

    Args:
        index: JSON file that stores size, times and digest of each file, like git's index, to avoid reading it again.
    """
    known = _read_index(index)
    stats = [_stat_file(file) for file in files]
    digests: list[str | None] = []
    for file, stat in zip(files, stats, strict=True):
        entry = known.get(str(file))
        digests.append(entry[3] if entry is not None and entry[:3] == stat else None)
    unknown = [position for position, digest in enumerate(digests) if digest is None]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, len(unknown), _READ_CHUNK):
            chunk = unknown[start : start + _READ_CHUNK]
            for position, digest in zip(chunk, pool.map(_digest_file, [files[i] for i in chunk]), strict=True):
                digests[position] = digest
            on_progress("reading", start + len(chunk), len(unknown))
    if unknown:
        content = {
            str(file): (*stat, digest)
            for file, stat, digest in zip(files, stats, digests, strict=True)
            if stat is not None and digest != UNREADABLE
        }
        with hold_lock(index.with_name(f"{index.name}.lock"), on_wait=lambda: None):
            write_atomic(index, json.dumps(content).encode())
    return [str(digest) for digest in digests]


def _read_index(index: Path) -> dict[str, tuple[int, int, int, str]]:
    try:
        content = json.loads(index.read_text())
        return {file: (size, mtime, ctime, str(digest)) for file, (size, mtime, ctime, digest) in content.items()}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        # The index only saves time.
        return {}


def _stat_file(file: ImageFile) -> tuple[int, int, int] | None:
    if isinstance(file, TableImage):
        return file.table.version
    try:
        stat = file.stat()
    except (OSError, ValueError):
        return None
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _digest_file(file: ImageFile) -> str:
    try:
        return _digest(read_image_file(file))
    except UnreadableFile:
        return UNREADABLE


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()
