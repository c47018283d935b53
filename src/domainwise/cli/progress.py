"""A bar for each part of the work on data: reading, decoding, downloading."""

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn


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
