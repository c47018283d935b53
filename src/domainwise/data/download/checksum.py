"""Checksums written as "sha256:<hex>" or "md5:<hex>", and those of a file."""

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from domainwise.data.places import OnProgress, silent
from domainwise.errors import DomainwiseError

_HEX_DIGITS = {"sha256": 64, "md5": 32}
_BLOCK = 1 << 20


class Checksum(NamedTuple):
    algorithm: str
    digest: str


def parse_checksum(text: str) -> Checksum:
    """The checksum that `text` names; refuses what could never match a file."""
    algorithm, _, digest = text.partition(":")
    digits = _HEX_DIGITS.get(algorithm)
    if digits is None or not re.fullmatch(rf"[0-9a-fA-F]{{{digits}}}", digest):
        raise DomainwiseError(f"a checksum is written sha256:<64 hex digits> or md5:<32 hex digits>, not {text!r}")
    return Checksum(algorithm, digest.lower())


def digests(path: Path, algorithms: Iterable[str], name: str = "", on_progress: OnProgress = silent) -> dict[str, str]:
    """The file's digest by every one of `algorithms`, from one reading; progress calls the file `name`."""
    # Not for secrecy: md5 is all that some datasets publish, and systems that ban it for secrets allow this.
    hashes = {algorithm: hashlib.new(algorithm, usedforsecurity=False) for algorithm in algorithms}
    done, total = 0, path.stat().st_size
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            for each in hashes.values():
                each.update(block)
            done += len(block)
            on_progress(f"checking {name}", done, total)
    return {algorithm: each.hexdigest() for algorithm, each in hashes.items()}
