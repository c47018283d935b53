"""CPU and wall seconds of each test file, as a table: `make test-times`.

CPU seconds are those of the process that runs the tests and of the child processes that it waited for, so they
hardly depend on what else the machine does.
"""

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

_COLLECTION = "(imports and collection)"
_LISTED = 60


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--times", metavar="FILE.md", help="Write the seconds of each test file to this table.")


def pytest_configure(config: pytest.Config) -> None:
    # Options of the command line reach the workers of xdist.
    if path := config.getoption("--times"):
        config.pluginmanager.register(_Times(Path(path)), "times")


class _Times:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        self.start = time.time()
        self.seconds: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])

    def pytest_collection_finish(self) -> None:
        self.seconds[_COLLECTION] = [_read_cpu_seconds(), time.time() - self.start, 0]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        cpu, wall = _read_cpu_seconds(), time.time()
        try:
            return (yield)
        finally:
            entry = self.seconds[item.nodeid.partition("::")[0]]
            entry[0] += _read_cpu_seconds() - cpu
            entry[1] += time.time() - wall
            entry[2] += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self.path.with_suffix(f".{self.worker}.json").write_text(json.dumps(self.seconds))
        if not hasattr(session.config, "workerinput"):
            self._write_table()

    def _write_table(self) -> None:
        totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
        for part in self.path.parent.glob(f"{self.path.stem}.*.json"):
            for name, values in json.loads(part.read_text()).items():
                totals[name] = [a + b for a, b in zip(totals[name], values, strict=True)]
            part.unlink()
        rows = sorted(totals.items(), key=lambda item: -item[1][0])
        rest = [sum(values) for values in zip(*(values for _, values in rows[_LISTED:]), strict=True)]
        everything = [sum(values) for values in zip(*totals.values(), strict=True)]
        listed = [*rows[:_LISTED], *([(f"{len(rows) - _LISTED} other files", rest)] if rest else [])]
        clock = time.time() - self.start
        lines = [
            f"{int(everything[2])} tests, {everything[0]:.0f} CPU seconds, {clock:.0f} s by the clock.",
            "",
            "| file | tests | CPU s | wall s |",
            "| --- | ---: | ---: | ---: |",
            *(f"| {name} | {int(count)} | {cpu:.1f} | {wall:.1f} |" for name, (cpu, wall, count) in listed),
        ]
        self.path.write_text("\n".join(lines) + "\n")


def _read_cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
