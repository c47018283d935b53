"""The order of the tests: whole processes first, because they take longest and nothing should wait for them alone."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: "system" not in item.path.parts)
