"""The environment and order of tests, the time limit of each, and the command line called in this process."""

import gc
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from domainwise.cli import main

SECONDS = 420
# Variables of a developer's shell that change what commands print or where they read; tests that need one set it.
SHELL_VARIABLES = (
    *("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"),
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    "DOMAINWISE_HUB",
)


# Collecting creates a few million objects that all stay. The garbage collector need not go through them, now or later.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    # Or libraries report everything as leaked.
    gc.unfreeze()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Make tests independent of the shell, the terminal's width and the user's cache. Workers inherit it."""
    if hasattr(session.config, "workerinput"):
        return
    for name in SHELL_VARIABLES:
        os.environ.pop(name, None)
    os.environ["COLUMNS"] = "80"
    cache = tempfile.TemporaryDirectory(prefix="domainwise-test-cache-", ignore_cleanup_errors=True)
    session.config.add_cleanup(cache.cleanup)
    os.environ["DOMAINWISE_CACHE"] = cache.name


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run first what takes longest: tests that start processes or a browser, build the site or load large libraries."""
    items.sort(key=lambda item: {"system", "docs", "browser", "integrations"}.isdisjoint(item.path.parts))


@pytest.fixture(autouse=True)
def time_limit(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a test that hangs: raise in whatever it waits for, and again in the clean-up if that hangs, too."""
    seconds = SECONDS if request.node.get_closest_marker("slow") is None else 10 * SECONDS

    def fail(*_: object) -> None:
        raise TimeoutError(f"the test took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, seconds, 20)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def domainwise(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    def call(*words: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["domainwise", *map(str, words)])
        monkeypatch.setattr("warnings.showwarning", None, raising=False)
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return call
