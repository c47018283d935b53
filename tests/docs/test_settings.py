"""The table of settings in the docs is the one generated from `RunConfig`."""

from pathlib import Path

from domainwise.cli.options import list_run_settings
from domainwise.reports.formats import as_markdown

PAGE = Path(__file__).parents[2] / "docs" / "training.md"


def test_settings_in_the_docs_match_run_config() -> None:
    table = as_markdown(("option", "default", "meaning"), list_run_settings())
    assert f"\n{table}\n" in PAGE.read_text(), "paste the output of `domainwise train --markdown` into docs/training.md"
