"""The table of settings in the docs is the one generated from `RunConfig`."""

from pathlib import Path

from domainwise.cli.options import list_run_settings
from domainwise.reports.formats import format_markdown_table

PAGE = Path(__file__).parents[2] / "docs" / "training.md"


def test_settings_in_the_docs_match_run_config() -> None:
    table = format_markdown_table(("option", "default", "meaning"), list_run_settings())
    assert f"\n{table}\n" in PAGE.read_text(), "paste the output of `domainwise train --markdown` into docs/training.md"
