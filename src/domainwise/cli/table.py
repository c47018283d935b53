"""A table of words as a command prints it: for the window, a pipe, or as Markdown."""

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from domainwise.markdown import as_markdown


def show_table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: int, is_markdown: bool = False) -> None:
    """Print the table; its last `numbers` columns are set to the right."""
    if is_markdown:
        print(as_markdown(head, rows, numbers))
        return
    table = Table(box=None, header_style="bold")
    for place, name in enumerate(head):
        table.add_column(name, justify="left" if place < len(head) - numbers else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    console = Console()
    if not console.is_terminal:
        # Into a pipe or file nothing is cut to the width of a window.
        console = Console(width=1000)
    console.print(table)
