"""Test order: those that start processes first, because they take longest."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: "system" not in item.path.parts)
