"""Code from elsewhere: `package.module:Name`, and names that installed packages register as entry points.

Imports no torch, so that lists appear at once.
"""

import importlib
import importlib.metadata
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from domainwise.errors import DomainwiseError

Kind = Literal["algorithm", "dataset", "network", "attack"]


@dataclass(frozen=True)
class Plugin:
    """A name that an installed package registers in the group `domainwise.algorithms`, `.datasets` or `.networks`.

    Args:
        entry_points: one, unless several packages register the name.
    """

    kind: Kind
    name: str
    entry_points: tuple[importlib.metadata.EntryPoint, ...]

    @property
    def package(self) -> str:
        """Name and version of the distribution."""
        distributions = [entry_point.dist for entry_point in self.entry_points]
        # Sorted, because the order in which packages are found is that of folders on disk.
        return " and ".join(sorted(f"{each.name} {each.version}" for each in distributions if each is not None))

    def load(self) -> Any:
        """Import what is registered."""
        if len(self.entry_points) > 1:
            raise DomainwiseError(
                f"{self.kind} {self.name!r} is registered by {self.package}; uninstall one, or use package.module:Name"
            )
        (entry_point,) = self.entry_points
        with explain_failure(f"could not import {self.kind} {self.name!r} of {self.package}", entry_point.module):
            return entry_point.load()


def find_plugins(kind: Kind) -> dict[str, Plugin]:
    """Return what installed packages register, by name in lower case."""
    return _read_plugins(kind, tuple(sys.path))


@cache
def _read_plugins(kind: Kind, path: tuple[str, ...]) -> dict[str, Plugin]:
    # Reading the metadata of all packages takes milliseconds, and a sweep looks a method up thousands of times.
    found: dict[str, list[importlib.metadata.EntryPoint]] = {}
    for entry_point in importlib.metadata.entry_points(group=f"domainwise.{kind}s"):
        found.setdefault(entry_point.name.lower(), []).append(entry_point)
    return {name: Plugin(kind, name, tuple(each)) for name, each in sorted(found.items())}


def import_name(kind: Kind, given: str) -> Any:
    """Import `package.module:Name`, from the current folder or an installed package.

    The current folder becomes importable here rather than when the program starts: whoever only looks at a downloaded
    folder runs none of its code.
    """
    module_name, _, name = given.partition(":")
    if module_name.endswith(".py") or "/" in module_name:
        module_name = ".".join(Path(module_name).with_suffix("").parts)
        raise DomainwiseError(f"{kind} {given!r} is a file; give it as a module, {module_name}:{name}")
    if not all(part.isidentifier() for part in (*module_name.split("."), *name.split("."))):
        raise DomainwiseError(f"could not import {kind} {given!r}: expected package.module:Name")
    if module_name not in sys.modules:
        directory = os.getcwd()
        if "" not in sys.path and directory not in sys.path:
            sys.path.insert(0, directory)
        importlib.invalidate_caches()  # the file may be new
    with explain_failure(f"could not import {kind} {given!r}", module_name):
        module = importlib.import_module(module_name)
    try:
        return attrgetter(name)(module)
    except AttributeError:
        nearest = get_close_matches(name, [each for each in vars(module) if not each.startswith("_")], n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise DomainwiseError(
            f"could not import {kind} {given!r}: {module_name} has no attribute {name!r}{hint}"
        ) from None


@contextmanager
def explain_failure(task: str, module: str) -> Iterator[None]:
    """Turn an exception in someone else's code into one line that says where it was raised.

    Args:
        task: what failed.
        module: the module whose code runs.
    """
    try:
        yield
    except (DomainwiseError, OSError):
        raise
    except Exception as error:
        raise DomainwiseError(f"{task}: {_locate(error, module.partition('.')[0])}") from error


def _locate(error: Exception, package: str) -> str:
    """Return the message of an exception, with the last line of code before it that is not from a library."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename}, line {error.lineno}: {error.msg}"
    frames = [each for each in traceback.extract_tb(error.__traceback__) if _is_theirs(Path(each.filename), package)]
    if not frames:
        return str(error)
    kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
    return f"{frames[-1].filename}, line {frames[-1].lineno}: {kind}{error}"


def _is_theirs(file: Path, package: str) -> bool:
    if str(file).startswith("<") or file.is_relative_to(Path(__file__).parent):
        return False
    if any(part in (package, f"{package}.py") for part in file.parts):
        return True
    is_library = not {"site-packages", "dist-packages"}.isdisjoint(file.parts)
    return not is_library and not file.is_relative_to(sysconfig.get_paths()["stdlib"])
