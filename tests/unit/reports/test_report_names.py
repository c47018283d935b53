"""Reports know methods and datasets by name only, without loading them; the names must be the real ones."""

import subprocess
import sys

from domainwise.algorithms import ALGORITHMS
from domainwise.data import DATASETS
from domainwise.reports import published
from domainwise.reports.cells import METHOD_ORDER
from domainwise.selection import SELECTIONS


def test_every_method_has_its_place() -> None:
    assert sorted(METHOD_ORDER) == sorted(ALGORITHMS)


def test_the_papers_numbers_go_by_our_names() -> None:
    values = [one for table in published().values() for one in table.values]
    assert {one.algorithm for one in values} <= set(ALGORITHMS)
    assert {one.dataset.split(" from ")[0] for one in values if one.dataset} <= set(DATASETS)
    assert {one.selection for one in values if one.selection} <= set(SELECTIONS)
    assert all(one.error is None or 0 <= one.error < one.mean < 100 for one in values)


def test_tables_are_made_without_torch() -> None:
    code = "import sys; import domainwise.reports; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
