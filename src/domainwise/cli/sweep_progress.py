"""The live table of a sweep: a row a dataset and method, and the time that is left."""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from domainwise.sweeps.folder import Standing
from domainwise.sweeps.plan import PlannedRun

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
