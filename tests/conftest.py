"""Test order, and the command line called in this process."""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from domainwise.cli import main


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests that start processes first, because they take longest."""
    items.sort(key=lambda item: "system" not in item.path.parts)


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
