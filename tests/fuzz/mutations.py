"""Damages files in the ways that a crash, an edit by hand or somebody hostile would."""

import json
import os
import random
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import tomli_w
import torch

DELETED = object()


def nest(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


# What may stand in for any value of a JSON file.
HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 1.5, -0.5, 1e9, 1e300, 10**12, 2**63, 10**30, 10**400),
    *(float("nan"), float("inf"), -float("inf")),
    *("", "x", "nan", "1", "/", "..", "../../x", "/dev/null", "[/b]", "[red]"),
    *("\x1b[31m", "a\x00b", "\ud800", "\U0001f600" * 300),
    *([], {}, [None], [[]], ["x"], {"x": 1}, [1, 2, 3], {"": None}, nest(50), nest(900)),
    DELETED,
)


def list_places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every value within a JSON value, itself included."""
    yield place
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from list_places(child, (*place, key))


def replace_at(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    if not place:
        return None if new is DELETED else new
    parent = value
    for key in place[:-1]:
        parent = parent[key]
    if new is not DELETED:
        parent[place[-1]] = new
    else:
        del parent[place[-1]]
    return value


def mutate_value(value: Any, draw: random.Random) -> Any:
    # Places near the top are few, but matter most.
    places = list(list_places(value))
    depth = draw.choice(sorted({len(place) for place in places}))
    place = draw.choice([each for each in places if len(each) == depth])
    return replace_at(value, place, draw.choice(HOSTILE))


def mutate_json(content: bytes, draw: random.Random) -> bytes:
    return json.dumps(mutate_value(json.loads(content), draw)).encode()


def mutate_json_lines(content: bytes, draw: random.Random) -> bytes:
    lines = content.splitlines()
    index = draw.randrange(len(lines))
    change = draw.choice(("value", "value", "value", "drop", "repeat", "swap"))
    if change == "value":
        lines[index] = mutate_json(lines[index], draw)
    elif change == "drop":
        del lines[index]
    elif change == "repeat":
        lines.insert(index, lines[index])
    else:
        lines.reverse()
    return b"".join(line + b"\n" for line in lines)


def mutate_toml(content: bytes, draw: random.Random) -> bytes:
    while True:
        try:
            return tomli_w.dumps(mutate_value(tomllib.loads(content.decode()), draw)).encode("utf-8", "surrogatepass")
        except (TypeError, ValueError, AttributeError):  # TOML has no null, and is an object
            continue


def mutate_checkpoint(file: Path, draw: random.Random) -> None:
    checkpoint = torch.load(file, weights_only=True)
    key = draw.choice(list(checkpoint))
    value = draw.choice((*HOSTILE, torch.zeros(3), torch.zeros(2, 2, dtype=torch.int8), {"weight": torch.zeros(1)}))
    if value is DELETED:
        del checkpoint[key]
    else:
        checkpoint[key] = value
    torch.save(checkpoint, file)


def mutate_bytes(content: bytes, draw: random.Random) -> bytes:
    position = draw.randrange(len(content) + 1)
    change = draw.choice(("flip", "cut", "insert", "empty", "repeat", "zeros"))
    if change == "flip" and content:
        position %= len(content)
        return content[:position] + bytes([content[position] ^ 1 << draw.randrange(8)]) + content[position + 1 :]
    if change == "cut":
        return content[:position]
    if change == "insert":
        noise = draw.choice((b"\x00", b"\xff\xfe", b"\n", b"{", b"]", b"NaN", b"\x1b[2J", b'"', b"\xf0\x9f"))
        return content[:position] + noise + content[position:]
    if change == "repeat":
        return content + content
    return b"" if change == "empty" else b"\0" * len(content)


def make_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def make_loop(file: Path) -> None:
    file.unlink()
    file.symlink_to(file.name)


def make_pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


def link_to_device(file: Path) -> None:
    file.unlink()
    file.symlink_to("/dev/zero")


STRUCTURED: dict[str, Callable[[bytes, random.Random], bytes]] = {
    ".json": mutate_json,
    ".jsonl": mutate_json_lines,
    ".toml": mutate_toml,
}
REPLACEMENTS: tuple[Callable[[Path], None], ...] = (make_directory, make_loop, make_pipe, link_to_device, Path.unlink)


def damage(folder: Path, draw: random.Random) -> str:
    """Damage one file of a folder, and return what was done to it."""
    file = draw.choice(sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"))
    kind = draw.choices(("structure", "bytes", "replace"), (6, 3, 1))[0]
    if kind == "replace":
        replacement = draw.choice(REPLACEMENTS)
        replacement(file)
        return f"{replacement.__name__} {file.name}"
    if kind == "structure" and file.suffix in STRUCTURED:
        file.write_bytes(STRUCTURED[file.suffix](file.read_bytes(), draw))
    elif kind == "structure" and file.suffix == ".pt":
        mutate_checkpoint(file, draw)
    else:
        file.write_bytes(mutate_bytes(file.read_bytes(), draw))
    return f"{kind} of {file.name}"
