"""Exports that are imported on first use, so that help, tables and status appear without waiting for torch."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def export_lazily(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package.

    Args:
        modules: the module below the package that defines each exported name.
    """

    def get_attribute(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{modules[name]}"), name)

    return get_attribute
