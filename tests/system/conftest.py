"""Fixtures of tests that start processes."""

from collections.abc import Iterator

import pytest
from warm_python import WarmPython


@pytest.fixture(scope="session")
def warm_python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPython]:
    server = WarmPython(tmp_path_factory.mktemp("warm_python"))
    yield server
    server.close()
