"""Which folders hold runs, whoever made them, and which are sweeps."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from domainwise.errors import DomainwiseError

# What a run of ours leaves beside its config from its first moment, while it trains, and at its end.
_BESIDE_CONFIG = frozenset((".lock", "records.jsonl", "done"))


@dataclass(frozen=True)
class Folder:
    """A folder with a run or a sweep's plan in it, and the names of its files."""

    path: Path
    files: frozenset[str]

    @property
    def is_ours(self) -> bool:
        return "config.json" in self.files and bool(self.files & _BESIDE_CONFIG)

    @property
    def is_domainbeds(self) -> bool:
        return "results.jsonl" in self.files

    @property
    def is_sweep(self) -> bool:
        return "plan.jsonl" in self.files


def find_folders(paths: Sequence[Path]) -> list[Folder]:
    """Folders with something to read at or below `paths`, each once however many ways lead to it."""
    found: dict[str, Folder] = {}
    for path in paths:
        here = {
            where: folder for where, folder in _walk(path) if folder.is_ours or folder.is_domainbeds or folder.is_sweep
        }
        if not here:
            raise DomainwiseError(
                f"there are no runs in {path}: a run has config.json and records.jsonl, DomainBed's has results.jsonl"
            )
        for where, folder in here.items():
            found.setdefault(where, folder)
    return list(found.values())


def _walk(path: Path) -> Iterator[tuple[str, Folder]]:
    if not path.is_dir():
        raise DomainwiseError(f"{path} is not a folder" if path.exists() else f"there is no folder {path}")
    seen = set()
    for where, below, files in os.walk(path, onerror=_refuse, followlinks=True):
        real = os.path.realpath(where)
        if real in seen:
            below.clear()
            continue
        seen.add(real)
        below[:] = sorted(name for name in below if not name.startswith("."))
        yield real, Folder(Path(where), frozenset(files))


def _refuse(error: OSError) -> NoReturn:
    raise DomainwiseError(f"the folder {error.filename} cannot be read: {error.strerror}") from error
