"""What commands print: lines, tables, progress bars, durations; and how Ctrl-C reaches them.

Names come from folders and files, and none of them is markup: everything is printed by the functions here.
"""

import json
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, get_args

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from domainwise.escaping import escape_unprintable
from domainwise.storage.run_folder import RunStatus, State
from domainwise.storage.sweep_folder import PlannedRun

if TYPE_CHECKING:
    pass

# A cell of a table; one with a style is made by `style_text`.
Cell = str | Text
# A run in one of these has nothing left to do.
_ENDED: tuple[State, ...] = ("done", "failed", "stopped")
# The signals that ask a command to save and stop, and what the second of them does.
_IMMEDIATE: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
if hasattr(signal, "SIGHUP"):  # sent when the terminal closes; Windows has none
    _IMMEDIATE[signal.SIGHUP] = signal.SIG_DFL


class PlainConsole(Console):
    """A console that shows text as it is, without markup and emoji codes, and unprintable characters escaped."""

    def __init__(self, *, quiet: bool = False, stderr: bool = False, width: int | None = None) -> None:
        super().__init__(quiet=quiet, stderr=stderr, width=width, markup=False, emoji=False, highlight=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else escape_unprintable(text, keep="\n"), style, control)

    def print_line(self, *parts: str | tuple[str, str]) -> None:
        """Print one line, which may be longer than the terminal is wide. A pair is a text and its style."""
        pairs = ((part, "") if isinstance(part, str) else part for part in parts)
        self.print(Text.assemble(*((escape_unprintable(text), style) for text, style in pairs)), soft_wrap=True)


def make_console(quiet: bool = False, *, stderr: bool = False) -> PlainConsole:
    """Return the console to print to: stdout for results, stderr for progress next to a table or JSON."""
    return PlainConsole(quiet=quiet, stderr=stderr)


def style_text(text: str, style: str = "") -> Text:
    """Return text with a style; unprintable characters are escaped, some of which rich would drop."""
    return Text(escape_unprintable(text), style=style)


def print_line(*parts: str | tuple[str, str], stderr: bool = False) -> None:
    """Print one line to stdout, or to stderr, as `PlainConsole.print_line` does."""
    make_console(stderr=stderr).print_line(*parts)


def print_text(text: str = "", *, end: str = "\n") -> None:
    """Print lines without style to stdout."""
    print(escape_unprintable(text, keep="\n"), end=end)


@contextmanager
def show_status(console: PlainConsole, text: str) -> Iterator[Callable[[str], None]]:
    """Show a spinner and a text inside the block; yields a function that replaces the text."""
    # A spinner of rich would read markup, and dots are not in every encoding.
    name = "dots" if console.encoding.startswith("utf") else "line"

    def update(text: str) -> None:
        live.update(Spinner(name, style_text(text), style="status.spinner"))

    with Live(console=console, transient=True, refresh_per_second=12.5) as live:
        update(text)
        yield update


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether to save and stop: after one Ctrl-C, SIGTERM or SIGHUP.

    A second signal stops at once. One that is ignored, as by nohup, stays ignored.
    """
    is_interrupted = False
    watched = {each: handler for each, handler in _IMMEDIATE.items() if signal.getsignal(each) != signal.SIG_IGN}

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        for each, handler in watched.items():
            signal.signal(each, handler)

    before = {each: signal.signal(each, interrupt) for each in watched}
    try:
        yield lambda: is_interrupted
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def text_column(template: str) -> ProgressColumn:
    """Return a column of a progress bar that shows fields of the task as they are."""
    return TextColumn(template, markup=False)


class DataProgress:
    """One progress bar per task that an `OnProgress` reports: reading, decoding, downloading."""

    def __init__(self, console: Console) -> None:
        self.progress = Progress(
            text_column("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
            # Without a terminal, rich would print every bar again at the end.
            disable=not console.is_terminal,
        )
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "DataProgress":
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def stop(self) -> None:
        # If nothing was reported the bar never started, and rich would print an empty line.
        if self.tasks:
            self.progress.stop()
            self.tasks.clear()

    def report(self, task: str, done: int, total: int) -> None:
        if not self.tasks:
            self.progress.start()
        if task not in self.tasks:
            self.tasks[task] = self.progress.add_task(escape_unprintable(task))
        self.progress.update(self.tasks[task], completed=done, total=total or None, visible=not 0 < total <= done)


def print_table(
    header: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    numeric: int = 0,
    *,
    is_markdown: bool = False,
    has_lines: bool = False,
) -> None:
    """Print a table to stdout.

    Args:
        numeric: number of columns at the end that are right-aligned, and wrap only if nothing else helps.
        has_lines: draw lines between rows.
    """
    if is_markdown:
        from domainwise.reports.formats import format_markdown_table

        print_text(format_markdown_table(header, [[str(cell) for cell in row] for row in rows], numeric))
        return
    cells = [[cell if isinstance(cell, Text) else style_text(cell) for cell in row] for row in rows]
    names = [style_text(name) for name in header]
    console = make_console()
    # In a pipe or file, nothing is cut to the width of a terminal.
    margin = 3 * len(names) + 1 if has_lines else 2 * len(names)
    total = console.width - margin if console.is_terminal else 10_000
    widths = _fit_columns([[cell.plain for cell in row] for row in (names, *cells)], numeric, total)
    table = Table(box=box.SQUARE if has_lines else None, show_lines=has_lines, header_style="bold")
    for index, (name, width) in enumerate(zip(names, widths, strict=True)):
        justify: JustifyMethod = "left" if index < len(names) - numeric else "right"
        table.add_column(name, justify=justify, width=width, overflow="fold")
    for row in cells:
        table.add_row(*row)
    # A table that does not fit even if its text wraps runs over the edge: rich would drop columns.
    PlainConsole(width=sum(widths) + margin).print(table)


def _fit_columns(lines: Sequence[Sequence[str]], numeric: int, total: int) -> list[int]:
    """Return the width of each column: its widest cell, or less if text has to wrap, but at least its longest word."""
    columns = [list(column) for column in zip(*lines, strict=True)]
    widest = [max(map(cell_len, column)) for column in columns]
    longest = [max(cell_len(word) for cell in column for word in cell.split() or [""]) for column in columns]
    # Only the names of numeric columns wrap.
    numbers = [max(longest[index], *map(cell_len, column[1:]), 0) for index, column in enumerate(columns)]
    widths = longest[: len(columns) - numeric] + numbers[len(columns) - numeric :]
    if sum(widths) > total:
        widths = longest
    spare = max(0, total - sum(widths))
    # The columns that need least are filled first.
    order = sorted(range(len(columns)), key=lambda index: widest[index] - widths[index])
    for position, index in enumerate(order):
        extra = min(widest[index] - widths[index], spare // (len(order) - position))
        widths[index] += extra
        spare -= extra
    return widths


def print_json(value: Any) -> None:
    """Print JSON; what a terminal could act on is escaped as JSON does it."""
    is_unicode = (getattr(sys.stdout, "encoding", None) or "utf-8").lower().startswith("utf")
    text = json.dumps(value, indent=2, ensure_ascii=not is_unicode, default=str)
    print(re.sub(r"[^\n\x20-\x7e]", lambda match: _escape_json(match[0]), text))


def _escape_json(character: str) -> str:
    return character if escape_unprintable(character) == character else f"\\u{ord(character):04x}"


class SweepProgress:
    """Shows the status of every run of a sweep as a live table; without a terminal, one line per finished run."""

    def __init__(self, runs: Iterable[PlannedRun], steps: int | None, console: PlainConsole) -> None:
        self.console, self.steps = console, steps
        self.statuses: dict[PlannedRun, RunStatus] = {}
        self.reported: set[PlannedRun] = set()
        self.ended: set[PlannedRun] = set()
        self.start_time, self.start_fraction = time.monotonic(), 0.0
        self.share = 1.0
        self.live = Live(get_renderable=self._render, console=console, transient=True, refresh_per_second=4)
        self.restart(runs)

    def __enter__(self) -> "SweepProgress":
        return self

    def __exit__(self, *_: Any) -> None:
        self.live.stop()

    def restart(self, runs: Iterable[PlannedRun]) -> None:
        """Show these runs from now on; the table appears with the first of them."""
        self.statuses = dict.fromkeys(runs, RunStatus("pending"))
        self.reported.clear()
        self.ended.clear()
        self.shares = 0.0
        if self.statuses and self.console.is_terminal:
            self.live.start()

    def expect(self, steps: int, shares: Sequence[float]) -> None:
        """Expect these shares of the steps of the runs, because a race stops some of them early."""
        self.steps = self.steps or steps
        self.shares = sum(map(self._share, self.statuses.values()))
        self.share = sum(shares) / len(shares)

    def update(self, run: PlannedRun, status: RunStatus) -> None:
        """Show the new status of a run; its first one is stored, and the clock starts after it."""
        # Counted as they change: to count all runs again for each of them would take hours in a sweep of 100,000.
        self.shares += self._share(status) - (self._share(self.statuses[run]) if run in self.statuses else 0.0)
        (self.ended.add if status.state in _ENDED else self.ended.discard)(run)
        self.statuses[run] = status
        if run not in self.reported:
            self.reported.add(run)
            self.start_time, self.start_fraction = time.monotonic(), self._fraction()
        elif status.state in _ENDED:
            place = f"{len(self.ended)}/{len(self.statuses)} {run.name}: "
            if status.state == "failed":
                self.console.print_line(place, ("failed", "red"), f": {status.error}")
            else:
                self.console.print_line(f"{place}{status.state} {status.reason}".rstrip())

    def _render(self) -> Group:
        return Group(status_table(self.statuses), Text(self._summary(), style="bold"))

    def _summary(self) -> str:
        fraction = self._fraction()
        gained, elapsed = fraction - self.start_fraction, time.monotonic() - self.start_time
        left = format_duration(elapsed * (1 - fraction) / gained) if gained > 1e-6 and elapsed > 3 else "..."
        return f"{fraction:.0%} in {format_duration(elapsed)}, estimated time left: {left}; Ctrl-C saves and stops"

    def _fraction(self) -> float:
        """Return the share of all steps that are done; a failed run has none left."""
        return min(1.0, self.shares / (len(self.statuses) * self.share)) if self.statuses else 1.0

    def _share(self, status: RunStatus) -> float:
        if status.state in ("done", "failed"):
            return 1.0
        return min(1.0, status.step / self.steps) if self.steps else 0.0


def status_table(statuses: Mapping[PlannedRun, RunStatus]) -> Table:
    """Return a table of how many runs are in which state, one row per method and dataset."""
    counts: dict[str, Counter[str]] = {}
    for run, status in statuses.items():
        counts.setdefault(f"{run.algorithm} on {run.dataset}", Counter())[status.state] += 1
    states = [state for state in get_args(State) if state != "stopped" or any(each[state] for each in counts.values())]
    table = Table("", *states, box=box.SIMPLE_HEAD, header_style="bold")
    table.columns[0].overflow = "fold"  # rich would cut a long name
    for column in table.columns[1:]:
        column.justify = "right"
    for row, by_state in counts.items():
        table.add_row(style_text(row), *(str(by_state[state]) if by_state[state] else "" for state in states))
    if len(counts) > 1:
        table.add_section()
        table.add_row("all", *(str(sum(by_state[state] for by_state in counts.values())) for state in states))
    return table


def format_duration(seconds: float) -> str:
    """Format seconds, such as 95 as `1 min 35 s`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    days, hours = divmod(whole // 3600, 24)
    return f"{days} d {hours} h" if days else f"{hours} h {whole % 3600 // 60} min"
