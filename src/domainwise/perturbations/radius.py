"""Radii as numbers, or as text with a unit that a person can judge. Imports no torch."""

import math
import re
from collections.abc import Sequence

_RADIUS = re.compile(r"\s*([\d.eE+-]+)\s*(?:/\s*([\d.]+))?\s*(rms)?\s*")


def split_radius(value: float | str, name: str = "epsilon") -> tuple[float, str]:
    """Split a radius into its number and its unit: `0.5` has none, that of `"2/255 rms"` is `rms`.

    Raises:
        ValueError: it is neither a finite number of at least 0 nor such a text.
    """
    match = _RADIUS.fullmatch(value) if isinstance(value, str) else None
    try:
        number = float(match[1]) / float(match[2] or 1) if match else float(value)
    except (TypeError, ValueError, ArithmeticError, RuntimeError):  # RuntimeError: a tensor of several values
        number = math.nan
    if isinstance(value, bool) or not 0 <= number < math.inf:
        raise ValueError(f"{name} must be a number of at least 0, such as 0.5 or '2/255 rms', got {value!r}")
    return number, (match[3] or "") if match else ""


def parse_radius(value: float | str, shape: Sequence[int], norm: str = "l2", name: str = "epsilon") -> float:
    """Return a radius as a number in the units of the norm.

    The meaning of an l2 radius depends on the image size: 0.5 is a root mean square of 2.3/255 per pixel on a 3 x 32 x
    32 image, and 0.3/255 on a 3 x 224 x 224 image. A radius given as `"2/255 rms"` means the same on both.

    Args:
        value: A number, or a string: `"0.5"`, `"8/255"`, or either followed by `rms` for a root mean square per pixel
            and channel (l2 only).
        shape: Shape of one input.
        name: Name in errors.
    """
    number, unit = split_radius(value, name)
    if unit and norm != "l2":
        raise ValueError(f"{name} must be a number without unit for norm={norm!r}, got {value!r}; rms needs norm='l2'")
    return number * math.sqrt(math.prod(shape)) if unit else number


def format_radius(value: float, norm: str = "l2") -> str:
    """Format a radius: for linf as `0.1` or `4/255`, whichever is shorter."""
    choices = (f"{value:g}", f"{255 * value:g}/255") if norm == "linf" else (f"{value:g}",)
    return min(choices, key=len)
