"""Plain values to TOML, which the standard library only reads."""

import json
from collections.abc import Mapping
from typing import Any


def as_toml(values: Mapping[str, Any]) -> str:
    """A line a value; mappings inside become tables of one line. None is left out: TOML has no word for it."""
    return "".join(f"{_key(name)} = {_value(value)}\n" for name, value in values.items() if value is not None)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        inside = ", ".join(f"{_key(name)} = {_value(each)}" for name, each in value.items() if each is not None)
        return f"{{{inside}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    # A string of JSON is one of TOML, but for the character 127, which only TOML wants escaped.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(name: str) -> str:
    is_bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if is_bare else json.dumps(name, ensure_ascii=False)
