"""The list of datasets, and that it needs no torch."""

import subprocess
import sys
from pathlib import Path

from domainwise.data import DATASETS, DESCRIPTIONS, list_datasets


def test_every_dataset_has_a_description() -> None:
    assert list(DESCRIPTIONS) == list(DATASETS)
    assert all(description.endswith(".") for description in DESCRIPTIONS.values())


def test_datasets_are_available_if_synthetic_or_in_the_data_folder(tmp_path: Path) -> None:
    (tmp_path / "PACS").mkdir()
    statuses = {status.name: status for status in list_datasets(tmp_path)}
    assert {name for name, status in statuses.items() if status.is_available} == {
        *("silhouettes", "silhouettes_spurious", "pacs")
    }
    assert statuses["silhouettes"].folder is None
    assert statuses["pacs"].folder == tmp_path / "PACS"
    assert statuses["vlcs"].megabytes == 3600
    assert statuses["nico"].megabytes is None


def test_torch_free_modules_import_no_torch() -> None:
    modules = ("cli.data", "data", "data.catalog", "data.listing", "data.paths", "data.decoding")
    modules += ("data.download.dataset", "data.download.sources")
    code = f"import sys\nfor name in {modules}: __import__('domainwise.' + name)\nprint('torch' in sys.modules)"
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert outcome.stdout == "False\n"
