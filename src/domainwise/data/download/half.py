"""The part of a file that has arrived, kept beside its target, with the version of the file it is a part of."""

from dataclasses import dataclass
from pathlib import Path

from domainwise.atomic import write_atomically


@dataclass(frozen=True)
class Half:
    """`<target>.partial` and what says where it came from, `<target>.partial.from`."""

    target: Path

    @property
    def path(self) -> Path:
        return self.target.with_name(f"{self.target.name}.partial")

    @property
    def _origin(self) -> Path:
        return self.target.with_name(f"{self.target.name}.partial.from")

    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def version_from(self, url: str) -> str | None:
        """The version that `url` gave; None if this part is another address's, or cannot be told from others."""
        origin = self._origin.read_text().splitlines() if self._origin.exists() else []
        return origin[1] if len(origin) == 2 and origin[0] == url else None

    def begin(self, url: str, version: str | None) -> None:
        """Empties it for the bytes of `version`."""
        # In this order a process killed in between leaves an empty part, never bytes under another version's name.
        self.path.write_bytes(b"")
        self._origin.unlink(missing_ok=True)
        if version:
            write_atomically(self._origin, f"{url}\n{version}\n".encode())

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self._origin.unlink(missing_ok=True)
