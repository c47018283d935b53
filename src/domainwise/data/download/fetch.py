"""Download of a single file over HTTP: resumed where it stopped, and verified against a checksum."""

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

from domainwise.data.download.archives import ARCHIVE_SUFFIXES, is_archive
from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.errors import DomainwiseError
from domainwise.storage.files import write_atomic

_USER_AGENT = "domainwise"
_CHUNK = 1 << 18
_HASH_CHUNK = 1 << 20
_HEX_DIGITS = {"sha256": 64, "md5": 32}


class DownloadFailed(Exception):
    """Why the file could not be downloaded from a URL."""


class NotDownloaded(DomainwiseError):
    """A file could not be downloaded from any URL."""


def fetch_file(
    urls: Sequence[str],
    target: Path,
    *,
    checksum: str | None = None,
    page: str = "",
    on_progress: OnProgress = ignore_progress,
    timeout: float = 30,
) -> Path:
    """Download a file from the first of `urls` that has it; `target` is complete or absent at any time.

    If the name of `target` ends like an archive, anything else that a server sends counts as a failure.

    The bytes received so far are kept in `<target>.partial`; the next call requests only the rest if the server still
    has the same version of the file. The checksum of the download is written to `<target>.sha256`, for comparison if
    none is published. An existing target is returned, after verification if there is a `checksum`.

    Args:
        urls: addresses of the same file, tried in order.
        checksum: "sha256:<hex>" or "md5:<hex>"; None if unknown.
        page: where a person can download the file with a browser; errors name it.
        on_progress: called with the file's name, the bytes received, and the total size (0 if unknown).
        timeout: seconds to wait for the server, to connect and between two chunks.

    Raises:
        NotDownloaded: no URL worked.
        DomainwiseError: the target has the wrong checksum, or it could not be written.
    """
    expected = parse_checksum(checksum) if checksum else None
    try:
        if target.exists():
            _verify_existing(target, expected, on_progress)
            return target
        target.parent.mkdir(parents=True, exist_ok=True)
        failures = []
        for url in urls:
            try:
                _fetch_from(url, target, expected, on_progress, timeout)
                return target
            except DownloadFailed as error:
                failures.append(f"{url}: {error}")
    except OSError as error:
        raise DomainwiseError(f"{target} could not be written: {error.strerror or error}") from error
    raise NotDownloaded(
        f"{target.name} could not be downloaded: {'; '.join(failures) or 'no URL is known'}; "
        f"try again later, or download it by hand{f' from {page}' if page else ''} and save it as {target}"
    )


_WEB_PAGE = "got a web page instead of the file (quota exceeded, or confirmation or sign-in required)"


def _is_web_page(file: Path) -> bool:
    """Return whether a file starts like HTML, as servers answer that have the file but do not send it."""
    with open(file, "rb") as content:
        start = content.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    return start.startswith((b"<!doctype html", b"<html"))


def _verify_existing(target: Path, expected: "Checksum | None", on_progress: OnProgress) -> None:
    what = "an archive" if target.name.endswith(ARCHIVE_SUFFIXES) else "the file of that name"
    if _is_web_page(target):
        raise DomainwiseError(f"{target} is a web page, not {what}; replace it, or delete it to download it again")
    if expected is None:
        return
    digests = compute_digests(target, [expected.algorithm], target.name, on_progress)
    if mismatch := expected.describe_mismatch(digests):
        raise DomainwiseError(f"{target} has the wrong checksum: {mismatch}; delete it to download it again")


def _fetch_from(url: str, target: Path, expected: "Checksum | None", on_progress: OnProgress, timeout: float) -> None:
    partial = PartialDownload(target)
    _complete_download(url, partial, expected, on_progress, timeout)
    if _is_web_page(partial.path):
        partial.delete()
        raise DownloadFailed(_WEB_PAGE)
    suffix = next((each for each in ARCHIVE_SUFFIXES if target.name.endswith(each)), None)
    if suffix and not is_archive(partial.path, target.name):
        partial.delete()
        raise DownloadFailed(f"got a file that is not a {suffix} archive")
    algorithms = {"sha256", *([expected.algorithm] if expected else [])}
    digests = compute_digests(partial.path, algorithms, target.name, on_progress)
    if expected and (mismatch := expected.describe_mismatch(digests)):
        partial.delete()
        raise DownloadFailed(f"wrong checksum: {mismatch}")
    write_atomic(target.with_name(f"{target.name}.sha256"), f"{digests['sha256']}  {target.name}\n".encode())
    os.replace(partial.path, target)
    partial.delete()


def _complete_download(
    url: str, partial: "PartialDownload", expected: "Checksum | None", on_progress: OnProgress, timeout: float
) -> None:
    """Download the missing bytes of `partial`."""
    request = _request_rest(url, partial, expected, timeout)
    if request is None:
        return
    response, done = request
    with response, open(partial.path, "ab") as file:
        total = 0 if response.length is None else done + response.length
        on_progress(partial.target.name, done, total)
        for chunk in _read_chunks(response, timeout):
            file.write(chunk)
            # If the process is killed now, this chunk is not downloaded again.
            file.flush()
            done += len(chunk)
            on_progress(partial.target.name, done, total)
        os.fsync(file.fileno())
    if done < total:
        raise DownloadFailed(f"connection lost after {done} of {total} bytes (kept; the next attempt resumes)")


def _request_rest(
    url: str, partial: "PartialDownload", expected: "Checksum | None", timeout: float
) -> tuple[HTTPResponse, int] | None:
    """Request the bytes after those of `partial`, or all of them if it cannot be continued.

    Returns:
        The response and the position of its first byte; None if `partial` is already complete.
    """
    # Without a version, the rest could belong to a different file.
    version = partial.read_version(url)
    offset = partial.size() if version else 0
    try:
        response = _open_url(url, offset, version, timeout)
        if response.status == 206:
            if _parse_version(response.headers) in (None, version) and _parse_start(response.headers) == offset:
                return response, offset
            response.close()
            response = _open_url(url, 0, None, timeout)
    except RangeNotSatisfiable as error:
        if _is_complete(partial, expected, error.total):
            return None
        response = _open_url(url, 0, None, timeout)
    partial.start(url, _parse_version(response.headers))
    return response, 0


def _is_complete(partial: "PartialDownload", expected: "Checksum | None", total: int | None) -> bool:
    if expected:
        return expected.describe_mismatch(compute_digests(partial.path, [expected.algorithm])) is None
    return partial.size() == total


@dataclass(frozen=True)
class PartialDownload:
    """The bytes received so far, `<target>.partial`, and their URL and version, `<target>.partial.from`."""

    target: Path

    @property
    def path(self) -> Path:
        return self.target.with_name(f"{self.target.name}.partial")

    @property
    def _origin(self) -> Path:
        return self.target.with_name(f"{self.target.name}.partial.from")

    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def read_version(self, url: str) -> str | None:
        """Return the version of the file at `url`; None if the bytes are from another URL or the version is unknown."""
        origin = self._origin.read_text().splitlines() if self._origin.exists() else []
        return origin[1] if len(origin) == 2 and origin[0] == url else None

    def start(self, url: str, version: str | None) -> None:
        """Start again with no bytes."""
        # In this order, a process killed in between leaves an empty file, never bytes with the wrong version.
        self.path.write_bytes(b"")
        self._origin.unlink(missing_ok=True)
        if version:
            write_atomic(self._origin, f"{url}\n{version}\n".encode())

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)
        self._origin.unlink(missing_ok=True)


class RangeNotSatisfiable(Exception):
    """The server has no bytes at the requested offset (HTTP 416); `total` is the size of the file, if it says so."""

    def __init__(self, total: int | None) -> None:
        super().__init__(total)
        self.total = total


def _open_url(url: str, offset: int, version: str | None, timeout: float) -> HTTPResponse:
    """Request the file, from byte `offset` on if that is above 0 and the file is still `version`."""
    headers = {"User-Agent": _USER_AGENT}
    if offset:
        headers |= {"Range": f"bytes={offset}-", "If-Range": version or ""}
    try:
        response: HTTPResponse = urlopen(Request(url, headers=headers), timeout=timeout)
    except HTTPError as error:
        with error:
            if error.code == 416 and offset:
                raise RangeNotSatisfiable(_parse_number(r"bytes \*/(\d+)", error.headers)) from error
            raise DownloadFailed(f"HTTP {error.code} {error.reason}") from error
    except (OSError, HTTPException, ValueError) as error:
        raise DownloadFailed(_describe_error(error, timeout)) from error
    problem = ""
    if response.headers.get_content_type() == "text/html":
        problem = _WEB_PAGE
    elif response.status != 200 and not (offset and response.status == 206):
        problem = f"HTTP {response.status} {response.reason}"
    if problem:
        response.close()
        raise DownloadFailed(problem)
    return response


def _read_chunks(response: HTTPResponse, timeout: float) -> Iterator[bytes]:
    try:
        while chunk := response.read1(_CHUNK):
            yield chunk
    except (OSError, HTTPException) as error:
        raise DownloadFailed(_describe_error(error, timeout)) from error


def _parse_version(headers: Message) -> str | None:
    """Return what identifies this version of the file; a weak ETag does not guarantee equal bytes."""
    etag: str | None = headers.get("ETag")
    if etag and not etag.startswith("W/"):
        return etag
    return headers.get("Last-Modified")


def _parse_start(headers: Message) -> int | None:
    """Return the position of the response's first byte in the file."""
    return _parse_number(r"bytes (\d+)-", headers)


def _parse_number(pattern: str, headers: Message) -> int | None:
    match = re.match(pattern, headers.get("Content-Range", ""))
    return int(match[1]) if match else None


def _describe_error(error: Exception, timeout: float) -> str:
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, TimeoutError):
        return f"no response within {timeout:g} seconds"
    # Some of these messages have several lines, and some are empty.
    return " ".join(str(cause).split()) or type(cause).__name__


class Checksum(NamedTuple):
    """A digest of a file and the algorithm that computes it."""

    algorithm: str
    digest: str

    def describe_mismatch(self, digests: dict[str, str]) -> str | None:
        """Return how a file's digest differs, or None if it does not."""
        actual = digests[self.algorithm]
        return None if actual == self.digest else f"{self.algorithm} {actual}, expected {self.digest}"


def parse_checksum(text: str) -> Checksum:
    """Parse "sha256:<hex>" or "md5:<hex>"."""
    algorithm, _, digest = text.partition(":")
    digits = _HEX_DIGITS.get(algorithm)
    if digits is None or not re.fullmatch(rf"[0-9a-fA-F]{{{digits}}}", digest):
        raise DomainwiseError(f"invalid checksum {text!r}; expected sha256:<64 hex digits> or md5:<32 hex digits>")
    return Checksum(algorithm, digest.lower())


def compute_digests(
    path: Path, algorithms: Iterable[str], name: str = "", on_progress: OnProgress = ignore_progress
) -> dict[str, str]:
    """Return the file's digest per algorithm, reading it once; progress is reported for `name`."""
    # Some datasets publish only md5. It guards against damage here, which systems that forbid it for security allow.
    hashes = {algorithm: hashlib.new(algorithm, usedforsecurity=False) for algorithm in algorithms}
    done, total = 0, path.stat().st_size
    with open(path, "rb") as file:
        while chunk := file.read(_HASH_CHUNK):
            for each in hashes.values():
                each.update(chunk)
            done += len(chunk)
            on_progress(f"verifying {name}", done, total)
    return {algorithm: each.hexdigest() for algorithm, each in hashes.items()}
