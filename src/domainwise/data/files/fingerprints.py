"""What is in each file, as a digest; files that have not changed since are not read again."""

import hashlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from domainwise.atomic import write_atomically
from domainwise.data.places import OnProgress, silent

_CHUNK = 1024
_Seen = dict[str, tuple[int, int, str]]


def fingerprints(files: Sequence[Path], memory: Path, on_progress: OnProgress = silent) -> list[str]:
    """A digest of each file's bytes; of one that cannot be read, a word that stands for that.

    Args:
        memory: a JSON file that remembers size, time and digest of each file, as git's index does.
    """
    seen = _remembered(memory)
    stats = [_stat(file) for file in files]
    digests = [
        known[2] if (known := seen.get(str(file))) is not None and tuple(known[:2]) == stat else None
        for file, stat in zip(files, stats, strict=True)
    ]
    unknown = [index for index, digest in enumerate(digests) if digest is None]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for start in range(0, len(unknown), _CHUNK):
            some = unknown[start : start + _CHUNK]
            for index, digest in zip(some, pool.map(_digest, [files[index] for index in some]), strict=True):
                digests[index] = digest
            on_progress("reading", start + len(some), len(unknown))
    found = {
        str(file): (*stat, digest)
        for file, stat, digest in zip(files, stats, digests, strict=True)
        if stat is not None and digest != UNREADABLE
    }
    if unknown:
        write_atomically(memory, json.dumps(found).encode())
    return [str(digest) for digest in digests]


UNREADABLE = "unreadable"


def _remembered(memory: Path) -> _Seen:
    try:
        seen: _Seen = json.loads(memory.read_text())
    except (OSError, ValueError):
        return {}  # it only saves time
    return seen


def _stat(file: Path) -> tuple[int, int] | None:
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_size, stat.st_mtime_ns


def _digest(file: Path) -> str:
    try:
        return hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return UNREADABLE
