"""Tables of words that a caller adds to the page, such as a comparison with what others found."""

from dataclasses import dataclass


@dataclass(frozen=True)
class WordTable:
    """A table; its last `numbers` columns are set to the right, and `notes` stand under it."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: int = 0
    notes: tuple[str, ...] = ()
