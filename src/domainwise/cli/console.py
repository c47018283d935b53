"""What commands print: progress bars, tables, durations; and how Ctrl-C reaches them."""

import json
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, get_args

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from domainwise.storage.run_folder import RunStatus, State
from domainwise.storage.sweep_folder import PlannedRun

# A run in one of these has nothing left to do.
_ENDED: tuple[State, ...] = ("done", "failed", "stopped")
_IMMEDIATE: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


def make_console(quiet: bool = False, *, stderr: bool = False) -> Console:
    """Return the console to print to: stdout for results, stderr for progress next to a table or JSON."""
    return Console(quiet=quiet, stderr=stderr)


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether to save and stop: after one Ctrl-C or SIGTERM. A second stops at once."""
    is_interrupted = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_interrupted
        is_interrupted = True
        for each, handler in _IMMEDIATE.items():
            signal.signal(each, handler)

    before = {each: signal.signal(each, interrupt) for each in _IMMEDIATE}
    try:
        yield lambda: is_interrupted
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


class DataProgress:
    """One progress bar per task that an `OnProgress` reports: reading, decoding, downloading."""

    def __init__(self, console: Console) -> None:
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
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
            self.tasks[task] = self.progress.add_task(task)
        self.progress.update(self.tasks[task], completed=done, total=total or None, visible=not 0 < total <= done)


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], numeric: int = 0, *, is_markdown: bool = False
) -> None:
    """Print a table to stdout; its last `numeric` columns are right-aligned, the others wrap on a narrow terminal."""
    if is_markdown:
        from domainwise.reports.formats import format_markdown_table

        print(format_markdown_table(header, rows, numeric))
        return
    console = Console()
    # In a pipe or file, nothing is cut to the width of a terminal.
    widths = _fit_columns([header, *rows], numeric, console.width if console.is_terminal else 10_000)
    table = Table(box=None, header_style="bold")
    for index, (name, width) in enumerate(zip(header, widths, strict=True)):
        table.add_column(name, justify="left" if index < len(header) - numeric else "right", width=width)
    for row in rows:
        table.add_row(*map(Text, row))
    # A table that does not fit even if its text wraps runs over the edge: rich would drop columns.
    Console(width=sum(widths) + 2 * len(widths)).print(table)


def _fit_columns(lines: Sequence[Sequence[str]], numeric: int, total: int) -> list[int]:
    """Return the width of each column: its widest cell, or less if text has to wrap, but at least its longest word."""
    columns = [list(column) for column in zip(*lines, strict=True)]
    widest = [max(map(cell_len, column)) for column in columns]
    texts = columns[: len(columns) - numeric]
    widths = [max(cell_len(word) for cell in column for word in cell.split() or [""]) for column in texts]
    widths += widest[len(texts) :]
    spare = max(0, total - sum(widths) - 2 * len(widths))
    # The columns that need least are filled first.
    order = sorted(range(len(texts)), key=lambda index: widest[index] - widths[index])
    for position, index in enumerate(order):
        extra = min(widest[index] - widths[index], spare // (len(order) - position))
        widths[index] += extra
        spare -= extra
    return widths


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))


class SweepProgress:
    """Shows the status of every run of a sweep as a live table; without a terminal, one line per finished run."""

    def __init__(self, runs: Iterable[PlannedRun], steps: int | None, console: Console) -> None:
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
            failure = f"[red]failed[/red]: {escape(status.error)}"
            outcome = failure if status.state == "failed" else f"{status.state} {escape(status.reason)}".strip()
            self.console.print(
                f"{len(self.ended)}/{len(self.statuses)} {escape(run.name)}: {outcome}", highlight=False, soft_wrap=True
            )

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
    for column in table.columns[1:]:
        column.justify = "right"
    for row, by_state in counts.items():
        table.add_row(escape(row), *(str(by_state[state]) if by_state[state] else "" for state in states))
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
