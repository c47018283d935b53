"""Downloads one file: goes on where it stopped, tries the mirrors in turn, and checks what it got."""

import os
from collections.abc import Sequence
from http.client import HTTPResponse
from pathlib import Path

from domainwise.atomic import write_atomically
from domainwise.data.download.checksum import Checksum, digests, parse_checksum
from domainwise.data.download.half import Half
from domainwise.data.download.web import NoFile, NothingLeft, ask, chunks, start_in, version_in
from domainwise.data.places import OnProgress, silent
from domainwise.errors import DomainwiseError


def fetch(
    urls: Sequence[str],
    target: Path,
    *,
    checksum: str | None = None,
    on_progress: OnProgress = silent,
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
    write_atomically(target.with_name(f"{target.name}.sha256"), f"{sums['sha256']}  {target.name}\n".encode())
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
