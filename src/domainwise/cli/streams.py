"""stdout and stderr as a command needs them: any encoding, closed or broken, and the last line of an error."""

import codecs
import io
import os
import platform
import sys
import tempfile
import traceback
from contextlib import suppress
from typing import TextIO

import domainwise
from domainwise.escaping import escape_unprintable

_CRASHED = 70  # EX_SOFTWARE of sysexits.h
_ASCII = {"±": "+-", "—": "-", "…": "...", "→": "->", "≤": "<=", "≥": ">="}


def configure_streams() -> None:
    """Let every character be printed in any encoding, and drop what is printed to a closed stream."""
    codecs.register_error("domainwise", _replace_unencodable)
    # In the order of their numbers, because a file that is opened gets the lowest free one.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8", errors="backslashreplace"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and mode == "w":
            stream.reconfigure(errors="domainwise")


def flush_output() -> None:
    """Write what is still buffered, so that a full disk is an error of the command, not of the interpreter's end."""
    sys.stdout.flush()


def close_streams(code: int) -> int:
    """Drop what could not be written, and return the exit code: the given one, unless there was something to drop."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # The interpreter would try again when it ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
            code = code or 1
    return code


def print_error(message: str, *, label: str = "error: ", file: TextIO | None = None) -> None:
    """Print one line to stderr, or to another file."""
    print_lines(escape_unprintable(label + message), file=file)


def print_lines(text: str, *, file: TextIO | None = None) -> None:
    """Print to stderr, or to another file; if that is impossible, nobody can be told."""
    with suppress(OSError):
        print(escape_unprintable(text, keep="\n"), file=file or sys.stderr)


def report_crash(error: Exception, is_debug: bool) -> int:
    """Print one line for an error that nobody expected, and write its traceback to a file; return the exit code.

    Args:
        is_debug: print the traceback instead.
    """
    text = "".join(traceback.format_exception(error))
    if is_debug:
        print_lines(text.rstrip("\n"))
        return _CRASHED
    rank = f" in rank {os.environ['RANK']}" if "RANK" in os.environ else ""
    line = f"unexpected {type(error).__name__}{rank}: {' '.join(str(error).split())}"
    try:
        handle, path = tempfile.mkstemp(prefix="domainwise-", suffix=".txt")  # only the user can read it
        with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"domainwise {domainwise.__version__}, Python {platform.python_version()}\n{sys.argv}\n{text}")
    except OSError:
        print_error(f"{line}; use `domainwise --debug` to see the traceback")
    else:
        print_error(f"{line}; traceback in {path}, or use `domainwise --debug`")
    return _CRASHED


def _replace_unencodable(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    characters = error.object[error.start : error.end]
    return "".join(
        _ASCII.get(each) or each.encode("ascii", "backslashreplace").decode() for each in characters
    ), error.end
