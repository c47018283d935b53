"""A bar for each part of the work on data: reading, decoding, downloading."""

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from domainwise.reports.formats import as_markdown
from domainwise.storage.sweep_folder import Standing
from domainwise.sweeps.plan import PlannedRun


class DataProgress:
    """Shows what an `OnProgress` reports, a line a part of the work, and leaves nothing behind."""

    def __init__(self, console: Console) -> None:
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(compact=True),
            console=console,
            transient=True,
        )
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> "DataProgress":
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def stop(self) -> None:
        # Where nothing was reported nothing was started, and rich would print an empty line.
        if self.tasks:
            self.progress.stop()
            self.tasks.clear()

    def report(self, what: str, done: int, total: int) -> None:
        if not self.tasks:
            self.progress.start()
        if what not in self.tasks:
            self.tasks[what] = self.progress.add_task(what)
        self.progress.update(self.tasks[what], completed=done, total=total or None, visible=not 0 < total <= done)


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


_AT_ONCE: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Yields a function that tells whether to stop."""
    asked = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = True
        for each, at_once in _AT_ONCE.items():
            signal.signal(each, at_once)

    before = {each: signal.signal(each, note) for each in _AT_ONCE}
    try:
        yield lambda: asked
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


STATES = ("done", "running", "failed", "to do")


class SweepProgress:
    """Shows how the runs of a sweep stand, as far as it has been told. Without a terminal: a line a run that ends."""

    def __init__(self, runs: Sequence[PlannedRun], steps: int | None, console: Console) -> None:
        self.console, self.steps = console, steps
        self.names = {run.name: f"{run.config.algorithm_name} on {run.config.dataset_name}" for run in runs}
        self.standings: dict[str, Standing] = {}
        self.is_under_way = False
        self.began, self.fraction_before = time.monotonic(), 0.0
        self.live = Live(get_renderable=self._shown, console=console, transient=True, refresh_per_second=4)

    def __enter__(self) -> "SweepProgress":
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self.console.is_terminal:
            self.live.stop()

    def begin(self) -> None:
        """From here on something happens: until now it was told how things stood before."""
        self.is_under_way = True
        self.began, self.fraction_before = time.monotonic(), self._fraction()

    def tell(self, run: PlannedRun, now: Standing) -> None:
        self.standings[run.name] = now
        if self.is_under_way and now.state in ("done", "failed"):
            ended = sum(each.state in ("done", "failed") for each in self.standings.values())
            words = now.state if now.state == "done" else f"[red]failed[/red]: {now.error}"
            self.console.print(f"{ended}/{len(self.names)} {run.name}: {words}", highlight=False, soft_wrap=True)

    def _shown(self) -> Group:
        return Group(counts_table(self.names, self.standings), Text(self._line(), style="bold"))

    def _line(self) -> str:
        fraction = self._fraction()
        gained, passed = fraction - self.fraction_before, time.monotonic() - self.began
        left = duration(passed * (1 - fraction) / gained) if gained > 1e-6 and passed > 3 else "..."
        return f"{fraction:.0%} in {duration(passed)}, about {left} left; Ctrl-C saves and stops"

    def _fraction(self) -> float:
        """Of all steps, those that are done; a failed run has none left."""
        shares = [
            1.0 if each.state in ("done", "failed") else min(1.0, each.step / self.steps) if self.steps else 0.0
            for each in self.standings.values()
        ]
        return sum(shares) / len(self.names) if self.names else 1.0


def counts_table(names: dict[str, str], standings: dict[str, Standing]) -> Table:
    """How many runs stand how, a row a method and dataset."""
    counts: dict[str, Counter[str]] = {row: Counter() for row in dict.fromkeys(names.values())}
    for name, row in names.items():
        state = standings[name].state if name in standings else "to do"
        counts[row]["to do" if state == "unfinished" else state] += 1
    table = Table("", *STATES, box=box.SIMPLE_HEAD, header_style="bold")
    for column in table.columns[1:]:
        column.justify = "right"
    for row, of_row in counts.items():
        table.add_row(row, *(str(of_row[state]) if of_row[state] else "" for state in STATES))
    if len(counts) > 1:
        table.add_section()
        table.add_row("all", *(str(sum(of_row[state] for of_row in counts.values())) for state in STATES))
    return table


def duration(seconds: float) -> str:
    """`95` to `1 min 35 s`."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    days, hours = divmod(whole // 3600, 24)
    return f"{days} d {hours} h" if days else f"{hours} h {whole % 3600 // 60} min"
