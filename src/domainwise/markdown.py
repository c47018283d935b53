"""Tables as they stand in README and docs."""

from collections.abc import Iterable, Sequence


def as_markdown(head: Sequence[str], rows: Iterable[Sequence[str]], numbers: int = 0) -> str:
    """A table whose last `numbers` columns are set to the right. A bar inside a cell does not end it."""
    rule = ["---"] * (len(head) - numbers) + ["---:"] * numbers
    lines = [head, rule, *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
