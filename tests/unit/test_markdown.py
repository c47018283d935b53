"""Markdown tables: numbers to the right, and bars that do not end a cell."""

from domainwise.reports.formats import as_markdown


def test_a_table_has_a_head_a_rule_and_rows() -> None:
    table = as_markdown(("name", "size"), [("a|b", "1"), ("c", "20")], numbers=1)
    assert table.splitlines() == ["| name | size |", "| --- | ---: |", r"| a\|b | 1 |", "| c | 20 |"]
    assert as_markdown(("x", "y"), []).splitlines()[1] == "| --- | --- |"
