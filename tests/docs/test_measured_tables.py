"""Tables in README and the docs are what their commands print from the committed records."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"


@pytest.fixture(scope="module")
def structured() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        yield import_module("structured")
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


def read_rows(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


def test_readme_selects_radii_by_the_rule_of_the_package(structured: ModuleType) -> None:
    records = [
        each for each in structured.read_records(RESULTS / "structured.jsonl") if each["dataset"] == "silhouettes"
    ]
    header, _, *rows = read_rows(structured.tabulate_selected("silhouettes", records))
    columns = [index for index, name in enumerate(header) if name != "shift 4"]
    in_readme = read_rows((ROOT / "README.md").read_text())
    in_study = read_rows((RESULTS / "structured.md").read_text())
    for row in (header, *rows):
        assert [row[index] for index in columns] in in_readme
        assert row in in_study
