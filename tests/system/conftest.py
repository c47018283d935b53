"""Fixtures of tests that start processes."""

import signal
from collections.abc import Iterator

import pytest
from warm_python import WarmPython

SECONDS = 420


@pytest.fixture(autouse=True)
def time_limit() -> Iterator[None]:
    """Fail a test that hangs: raise in whatever it waits for, and again in the clean-up if that hangs, too."""

    def fail(*_: object) -> None:
        raise TimeoutError(f"the test took more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, SECONDS, 20)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPython]:
    server = WarmPython(tmp_path_factory.mktemp("warm_python"))
    yield server
    server.close()
