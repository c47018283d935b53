"""A run's `records.jsonl`, a JSON line a record: how it is written, and read after anything that may happen to it."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from domainwise.atomic import write_atomically
from domainwise.errors import DomainwiseError

SCHEMA = 1
Record = dict[str, Any]


def read_records(path: Path) -> tuple[list[Record], bool]:
    """The records of a file, none where there is no file, and whether a half-written last line was dropped.

    What is lost with that line is known elsewhere: a checkpoint and a finished run say how far their records reach.
    """
    return read_lines(path, _check)


def read_lines(path: Path, check: Callable[[Record], None] = lambda line: None) -> tuple[list[Record], bool]:
    """The objects of a file of JSON lines, and whether a half-written last line was dropped.

    Args:
        check: raises a ValueError or KeyError for an object that does not belong into such a file.
    """
    try:
        *lines, rest = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return [], False
    except OSError as error:
        raise DomainwiseError(f"{path} cannot be read: {error.strerror}") from error
    # Every line ends with a newline; what comes after the last one was cut off, even where it happens to parse.
    is_cut = bool(rest)
    records: list[Record] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line.decode())
        except ValueError as error:
            if number == len(lines) and not is_cut:
                return records, True
            raise _damaged(path, number, error) from error
        try:
            if not isinstance(record, dict):
                raise ValueError("it is no object")
            check(record)
        except (ValueError, KeyError) as error:
            raise _damaged(path, number, error) from error
        records.append(record)
    return records, is_cut


def write_records(path: Path, records: Sequence[Record]) -> None:
    lines = [json.dumps(record, allow_nan=False) + "\n" for record in records]
    write_atomically(path, "".join(lines).encode())


def _check(record: Record) -> None:
    if record["schema"] != SCHEMA:
        raise ValueError(f"schema {record['schema']}")
    if "step" not in record:
        raise KeyError("step")


def _damaged(path: Path, number: int, error: Exception) -> DomainwiseError:
    said = f"it has no {error}" if isinstance(error, KeyError) else error
    return DomainwiseError(f"{path} is damaged at line {number}: {said}; restore it")
