"""What is in each file, as a digest; files that have not changed since are not read again."""

import hashlib
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from domainwise.atomic import write_atomically
from domainwise.data.places import OnProgress, silent
from domainwise.locks import locked

_CHUNK = 1024
_Seen = dict[str, tuple[int, int, int, str]]

UNREADABLE = "unreadable"


def fingerprints(files: Sequence[Path], memory: Path, on_progress: OnProgress = silent) -> list[str]:
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
        for start in range(0, len(unknown), _CHUNK):
            some = unknown[start : start + _CHUNK]
            for index, found in zip(some, pool.map(_digest, [files[index] for index in some]), strict=True):
                digests[index] = found
            on_progress("reading", start + len(some), len(unknown))
    if unknown:
        remembered = {
            str(file): (*stat, known)
            for file, stat, known in zip(files, stats, digests, strict=True)
            if stat is not None and known != UNREADABLE
        }
        with locked(memory.with_name(f"{memory.name}.lock"), on_wait=lambda: None):
            write_atomically(memory, json.dumps(remembered).encode())
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
