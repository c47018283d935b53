"""DecodedImage images on disk: a file of bytes a domain, named after what is in it, that training maps into memory.

An entry is a folder `<key>` with `images` (n x size x size x 3 bytes) and `entry.json`. The key is a digest of the
source files' contents, in order, the size and the rule of decoding: what is found under it is right, wherever they lie.
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

from domainwise.data.decoding import DECODING_RULE, DecodedImage, decode_image
from domainwise.data.paths import OnProgress, cache_folder, ignore_progress
from domainwise.errors import DomainwiseError
from domainwise.storage.files import hold_lock, write_atomic

_CHUNK = 256
_IMAGES, _ENTRY, _SEEN = "images", "entry.json", "seen.json"
# What is made in the folder, but for locks: an entry, or what was seen of the files of a listing; maybe half done.
_OURS = re.compile(rf"\.?[0-9a-f]{{32}}(\.{re.escape(_SEEN)})?(\.partial)?")


@dataclass(frozen=True)
class Cached:
    """A domain's decoded images, uint8, (n, 3, size, size), and what was found in its files.

    Args:
        kept: positions of the files that the images are of, in order.
        faults: position of each file that could not be decoded, and why.
        notes: position of each file that was converted, and from what.
    """

    images: Tensor
    kept: list[int]
    faults: dict[int, str]
    notes: dict[int, str]


def load_cached_images(files: Sequence[Path], size: int, on_progress: OnProgress = ignore_progress) -> Cached:
    """The images of `files`, decoded now or found decoded before.

    Two processes that want the same images at once: one builds them and the other waits. A process that is killed while
    it builds leaves nothing that is taken for an entry.
    """
    folder = cache_folder()
    files = [file.absolute() for file in files]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        listing = hashlib.blake2b(b"\n".join(map(os.fsencode, files)), digest_size=16).hexdigest()
        digests = compute_fingerprints(files, folder / f"{listing}.{_SEEN}", on_progress)
        key = hashlib.blake2b(json.dumps([DECODING_RULE, size, digests]).encode(), digest_size=16).hexdigest()
        entry = folder / key
        if not entry.is_dir():
            waiting = "waiting for another process that decodes"
            with hold_lock(folder / f"{key}.lock", on_wait=lambda: on_progress(waiting, 0, 0)):
                if not entry.is_dir():
                    _build(entry, files, digests, size, on_progress)
    except OSError as error:
        raise DomainwiseError(
            f"decoded images cannot be kept in {folder}: {error.strerror or error}; "
            "choose another folder with $DOMAINWISE_CACHE"
        ) from error
    return _open(entry, len(files), size)


def decode_files(
    files: Sequence[Path], size: int, on_progress: OnProgress = ignore_progress, digests: Sequence[str] | None = None
) -> Iterator[DecodedImage]:
    """Every file decoded, in order, by all processors: decoding lets go of Python's lock.

    Args:
        digests: what each file held before; one that holds something else now is refused.
    """

    def read(file: Path, before: str | None) -> DecodedImage:
        try:
            content = file.read_bytes()
        except OSError as error:
            image, now = DecodedImage(None, error=f"cannot be read: {error.strerror or error}"), UNREADABLE
        else:
            image, now = decode_image(content, size), digest(content)
        if before not in (None, now):
            raise DomainwiseError(f"{file} changed while it was read; run the same command again")
        return image

    expected: Sequence[str | None] = digests or [None] * len(files)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        # In chunks, so that what waits to be written stays small.
        for start in range(0, len(files), _CHUNK):
            some = slice(start, start + _CHUNK)
            with warnings.catch_warnings():
                # What decoders say of odd headers is no news: an image can be used, or it has a fault.
                warnings.simplefilter("ignore")
                images = list(pool.map(read, files[some], expected[some]))
            yield from images
            on_progress("decoding", min(start + _CHUNK, len(files)), len(files))


def cache_size() -> tuple[int, int]:
    """How many entries there are, and their bytes."""
    entries = [path for path in _ours() if (path / _ENTRY).is_file()]
    return len(entries), sum(file.stat().st_size for entry in entries for file in entry.iterdir())


def clear_cache() -> None:
    """Remove every entry and nothing else. Processes that have one open keep it until they end; locks stay."""
    for path in _ours():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _ours() -> list[Path]:
    """What this module made in the folder, which may be one that the user keeps other things in."""
    folder = cache_folder()
    return [path for path in folder.iterdir() if _OURS.fullmatch(path.name)] if folder.is_dir() else []


def _build(entry: Path, files: Sequence[Path], digests: Sequence[str], size: int, on_progress: OnProgress) -> None:
    partial = entry.with_name(f".{entry.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed: nobody else has the lock
    partial.mkdir()
    needed, free = len(files) * size * size * 3, shutil.disk_usage(partial).free
    if needed > free:
        raise DomainwiseError(
            f"{len(files)} decoded images of {size} x {size} need {needed / 1e9:.1f} GB in {entry.parent}, which has "
            f"{free / 1e9:.1f}; choose another folder with $DOMAINWISE_CACHE, or a smaller --image-size"
        )
    faults, notes = {}, {}
    with open(partial / _IMAGES, "wb") as out:
        for index, image in enumerate(decode_files(files, size, on_progress, digests)):
            if image.pixels is None:
                faults[index] = image.error
            else:
                out.write(image.pixels)
            if image.note:
                notes[index] = image.note
        out.flush()
        os.fsync(out.fileno())
    write_atomic(partial / _ENTRY, json.dumps({"faults": faults, "notes": notes}).encode())
    os.rename(partial, entry)


def _open(entry: Path, count: int, size: int) -> Cached:
    try:
        content = json.loads((entry / _ENTRY).read_text())
        faults = {int(index): str(fault) for index, fault in content["faults"].items()}
        notes = {int(index): str(note) for index, note in content["notes"].items()}
        kept = [index for index in range(count) if index not in faults]
        shape = (len(kept), size, size, 3)
        there, needed = (entry / _IMAGES).stat().st_size, len(kept) * size * size * 3
        if there != needed:
            raise ValueError(f"{there} bytes of images, not {needed}")
        if not kept:
            return Cached(torch.empty(0, 3, size, size, dtype=torch.uint8), kept, faults, notes)
        # Copy-on-write: nobody writes, but torch wants memory that could be.
        rows = np.memmap(entry / _IMAGES, np.uint8, "c", shape=shape)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DomainwiseError(
            f"the decoded images in {entry} are damaged ({error}); run `domainwise data clear-cache`"
        ) from error
    return Cached(torch.from_numpy(rows).permute(0, 3, 1, 2), kept, faults, notes)


_FINGERPRINT_CHUNK = 1024
_Seen = dict[str, tuple[int, int, int, str]]

UNREADABLE = "unreadable"


def compute_fingerprints(files: Sequence[Path], memory: Path, on_progress: OnProgress = ignore_progress) -> list[str]:
    """A digest of each file's bytes; of one that cannot be read, a word that stands for that.

    Args:
        memory: a JSON file that remembers size, times and digest of each file, as git's index does.
    """
    seen = _remembered(memory)
    stats = [_stat(file) for file in files]
    digests = [
        known[3] if (known := seen.get(str(file))) is not None and known[:3] == stat else None
        for file, stat in zip(files, stats, strict=True)
    ]
    unknown = [index for index, known in enumerate(digests) if known is None]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, len(unknown), _FINGERPRINT_CHUNK):
            some = unknown[start : start + _FINGERPRINT_CHUNK]
            for index, found in zip(some, pool.map(_digest, [files[index] for index in some]), strict=True):
                digests[index] = found
            on_progress("reading", start + len(some), len(unknown))
    if unknown:
        remembered = {
            str(file): (*stat, known)
            for file, stat, known in zip(files, stats, digests, strict=True)
            if stat is not None and known != UNREADABLE
        }
        with hold_lock(memory.with_name(f"{memory.name}.lock"), on_wait=lambda: None):
            write_atomic(memory, json.dumps(remembered).encode())
    return [str(known) for known in digests]


def digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _remembered(memory: Path) -> _Seen:
    try:
        seen = json.loads(memory.read_text())
        return {file: (size, time, change, str(known)) for file, (size, time, change, known) in seen.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}  # it only saves time


def _stat(file: Path) -> tuple[int, int, int] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def _digest(file: Path) -> str:
    try:
        return digest(file.read_bytes())
    except OSError:
        return UNREADABLE
