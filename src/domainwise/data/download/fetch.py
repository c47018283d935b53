"""Checksums written as "sha256:<hex>" or "md5:<hex>", and those of a file."""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.errors import DomainwiseError
from domainwise.storage.files import write_atomic

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


def digests(
    path: Path, algorithms: Iterable[str], name: str = "", on_progress: OnProgress = ignore_progress
) -> dict[str, str]:
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
            write_atomic(self._origin, f"{url}\n{version}\n".encode())

    def discard(self) -> None:
        self.path.unlink(missing_ok=True)
        self._origin.unlink(missing_ok=True)


_CHUNK = 1 << 18
_AGENT = "domainwise"


class NoFile(Exception):
    """Why an address did not give the file."""


class NothingLeft(Exception):
    """The server has no bytes from the asked place on. `total` is the size it says the file has, or None."""

    def __init__(self, total: int | None) -> None:
        super().__init__(total)
        self.total = total


def ask(url: str, offset: int, version: str | None, timeout: float) -> HTTPResponse:
    """The server's answer; from byte `offset` on if it is above 0 and the file is still `version`."""
    headers = {"User-Agent": _AGENT}
    if offset:
        headers |= {"Range": f"bytes={offset}-", "If-Range": version or ""}
    try:
        response: HTTPResponse = urlopen(Request(url, headers=headers), timeout=timeout)
    except HTTPError as error:
        with error:
            if error.code == 416 and offset:
                raise NothingLeft(_size_in(error.headers)) from error
            raise NoFile(f"the server answers {error.code} {error.reason}") from error
    except (OSError, HTTPException, ValueError) as error:
        raise NoFile(_reason(error, timeout)) from error
    try:
        _check_answer(response, offset)
    except NoFile:
        response.close()
        raise
    return response


def chunks(response: HTTPResponse, timeout: float) -> Iterator[bytes]:
    """What arrives, as it arrives."""
    try:
        while chunk := response.read1(_CHUNK):
            yield chunk
    except (OSError, HTTPException) as error:
        raise NoFile(_reason(error, timeout)) from error


def version_in(headers: Message) -> str | None:
    """What tells this version of the file from others; a weak ETag does not say that the bytes are the same."""
    etag: str | None = headers.get("ETag")
    if etag and not etag.startswith("W/"):
        return etag
    return headers.get("Last-Modified")


def start_in(headers: Message) -> int | None:
    """The place in the file of an answer's first byte."""
    found = re.match(r"bytes (\d+)-", headers.get("Content-Range", ""))
    return int(found[1]) if found else None


def _check_answer(response: HTTPResponse, offset: int) -> None:
    if response.headers.get_content_type() == "text/html":
        raise NoFile("the server sends a web page instead of the file, as it does past a quota or for a sign-in")
    if response.status != 200 and not (offset and response.status == 206):
        raise NoFile(f"the server answers {response.status} {response.reason}")


def _size_in(headers: Message) -> int | None:
    found = re.match(r"bytes \*/(\d+)", headers.get("Content-Range", ""))
    return int(found[1]) if found else None


def _reason(error: Exception, timeout: float) -> str:
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, TimeoutError):
        return f"no answer within {timeout:g} seconds"
    # Some of these messages have several lines, and some have none.
    return " ".join(str(cause).split()) or type(cause).__name__


def fetch(
    urls: Sequence[str],
    target: Path,
    *,
    checksum: str | None = None,
    on_progress: OnProgress = ignore_progress,
    timeout: float = 30,
) -> Path:
    """Downloads the file at the first of `urls` that gives it; `target` is complete or absent at any moment.

    What has arrived is kept in `<target>.partial`, and a later call asks for the rest only, if the server still has
    the same version of the file. The sum of what was downloaded is written to `<target>.sha256`, for comparison
    where none is published. A target that is there already is returned, after a check if there is a `checksum`.

    Args:
        urls: addresses of the same file, tried in order.
        checksum: "sha256:<hex>" or "md5:<hex>", or None where none is known.
        on_progress: told the file's name, the bytes that are there, and the bytes of the whole or 0 if unknown.
        timeout: seconds to wait for the server, at the start and between any two pieces.
    """
    wanted = parse_checksum(checksum) if checksum else None
    try:
        if target.exists():
            _check_given(target, wanted, on_progress)
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        failures = []
        for url in urls:
            try:
                _fetch_from(url, target, wanted, on_progress, timeout)
                return target
            except NoFile as reason:
                failures.append(f"{url}: {reason}")
    except OSError as error:
        raise DomainwiseError(f"cannot write {target}: {error.strerror or error}") from error
    raise DomainwiseError(
        f"cannot download {target.name}: {'; '.join(failures) or 'no address is known'}. "
        f"Try again later, or download it by hand and put it at {target}"
    )


def _check_given(target: Path, wanted: Checksum | None, on_progress: OnProgress) -> None:
    if wanted and (wrong := _mismatch(digests(target, [wanted.algorithm], target.name, on_progress), wanted)):
        raise DomainwiseError(f"{target} is not the file it should be: {wrong}. Delete it to download it again")


def _fetch_from(url: str, target: Path, wanted: Checksum | None, on_progress: OnProgress, timeout: float) -> None:
    half = Half(target)
    _receive(url, half, wanted, on_progress, timeout)
    sums = digests(half.path, {"sha256", *([wanted.algorithm] if wanted else [])}, target.name, on_progress)
    if wanted and (wrong := _mismatch(sums, wanted)):
        half.discard()
        raise NoFile(wrong)
    write_atomic(target.with_name(f"{target.name}.sha256"), f"{sums['sha256']}  {target.name}\n".encode())
    os.replace(half.path, target)
    half.discard()


def _receive(url: str, half: Half, wanted: Checksum | None, on_progress: OnProgress, timeout: float) -> None:
    """Completes `half` from `url`."""
    opened = _open_rest(url, half, wanted, timeout)
    if opened is None:
        return
    response, done = opened
    with response, open(half.path, "ab") as file:
        total = 0 if response.length is None else done + response.length
        on_progress(half.target.name, done, total)
        for chunk in chunks(response, timeout):
            file.write(chunk)
            # So that a process killed now has to ask for the rest only.
            file.flush()
            done += len(chunk)
            on_progress(half.target.name, done, total)
        os.fsync(file.fileno())
    if done < total:
        raise NoFile(f"the connection ended after {done} of {total} bytes (they are kept, and the next try goes on)")


def _open_rest(url: str, half: Half, wanted: Checksum | None, timeout: float) -> tuple[HTTPResponse, int] | None:
    """An answer with what `half` lacks, and the size of `half`, emptied if it must be; None if it is whole already."""
    # Without a version, nothing says that the rest belongs to what is here.
    version = half.version_from(url)
    offset = half.size() if version else 0
    try:
        response = ask(url, offset, version, timeout)
        if response.status == 206:
            if version_in(response.headers) in (None, version) and start_in(response.headers) == offset:
                return response, offset
            response.close()
            response = ask(url, 0, None, timeout)
    except NothingLeft as answer:
        if _is_whole(half, wanted, answer.total):
            return None
        response = ask(url, 0, None, timeout)
    half.begin(url, version_in(response.headers))
    return response, 0


def _is_whole(half: Half, wanted: Checksum | None, total: int | None) -> bool:
    if wanted:
        return _mismatch(digests(half.path, [wanted.algorithm]), wanted) is None
    return half.size() == total


def _mismatch(sums: dict[str, str], wanted: Checksum) -> str | None:
    found = sums[wanted.algorithm]
    return None if found == wanted.digest else f"its {wanted.algorithm} is {found}, but should be {wanted.digest}"
