"""A local HTTP server that can misbehave like those of datasets, and processes that use it."""

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from children import start_child


@dataclass
class Served:
    """A file on the server, and how the server behaves about it."""

    body: bytes
    headers: dict[str, str] = field(default_factory=lambda: {"ETag": '"one"'})
    status: int = 200
    takes_ranges: bool = True
    takes_if_range: bool = True
    says_length: bool = True
    # Offset of a part's first byte from the requested one.
    misses_by: int = 0
    says_total: bool = True
    # Number of bytes after which the connection is closed, or held until `go_on` is set.
    cut_after: int | None = None
    hold_after: int | None = None
    go_on: threading.Event = field(default_factory=threading.Event)


@dataclass
class Received:
    """A request, and the number of bytes sent in response."""

    path: str
    byte_range: str | None
    if_range: str | None
    status: int = 0
    sent: int = 0


class FileServer:
    def __init__(self) -> None:
        self.files: dict[str, Served] = {}
        self.requests: list[Received] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/{name}"

    def close(self) -> None:
        for served in self.files.values():
            served.go_on.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                request = Received(self.path, self.headers["Range"], self.headers["If-Range"])
                server.requests.append(request)
                try:
                    server.answer(self, request)
                except (BrokenPipeError, ConnectionResetError):
                    # Some tests kill the client.
                    self.close_connection = True

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler

    def answer(self, handler: BaseHTTPRequestHandler, request: Received) -> None:
        served = self.files.get(request.path.lstrip("/")) or Served(b"not here", {}, status=404)
        start = self._start(served, request)
        total = len(served.body)
        request.status = served.status
        if start is not None and served.status == 200:
            request.status = 206 if start < total else 416
        body = b"" if request.status == 416 else served.body[start or 0 :]
        handler.send_response(request.status)
        for name, value in served.headers.items():
            handler.send_header(name, value)
        if request.status == 206:
            handler.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        if request.status == 416 and served.says_total:
            handler.send_header("Content-Range", f"bytes */{total}")
        if served.says_length:
            handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        self._send(handler, served, request, body)

    def _start(self, served: Served, request: Received) -> int | None:
        found = re.fullmatch(r"bytes=(\d+)-", request.byte_range or "")
        if not found or not served.takes_ranges:
            return None
        if served.takes_if_range and request.if_range not in served.headers.values():
            return None
        return int(found[1]) + served.misses_by

    def _send(self, handler: BaseHTTPRequestHandler, served: Served, request: Received, body: bytes) -> None:
        for place in range(0, len(body), 1000):
            if served.hold_after is not None and request.sent >= served.hold_after:
                served.go_on.wait(20)
            piece = body[place : place + 1000]
            if served.cut_after is not None:
                piece = piece[: served.cut_after - request.sent]
                if not piece:
                    return
            handler.wfile.write(piece)
            request.sent += len(piece)


@contextmanager
def file_server() -> Iterator[FileServer]:
    server = FileServer()
    try:
        yield server
    finally:
        server.close()


@contextmanager
def python_process(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that runs `code`, with `arguments` in sys.argv; it is killed at the end of the block."""
    with start_child([sys.executable, "-c", "import sys\n" + code, *arguments]) as process:
        yield process


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.005)
