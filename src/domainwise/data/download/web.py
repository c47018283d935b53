"""One request for a file or the rest of it; whatever goes wrong on the way becomes one reason to read."""

import re
from collections.abc import Iterator
from email.message import Message
from http.client import HTTPException, HTTPResponse
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

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
