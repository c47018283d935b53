"""Every format of the same small report, and any table in Markdown."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from report_runs import on_each, run, runs_of

from domainwise.errors import DomainwiseError
from domainwise.reports import FORMATS, Report, build_report, write_report
from domainwise.reports.cells import Cell, Column, Row, Table
from domainwise.reports.formats import escape_latex, format_markdown_table

TABLE = Table(
    title="odd_data",
    selection="training_domain",
    columns=(
        Column("a_b|c", "domain", "odd_data", "a_b|c"),
        Column("[red]50%", "domain", "odd_data", "[red]50%"),
        Column("gap", "gap", "odd_data"),
    ),
    rows=(
        Row("erm", (Cell(81.25, 0.44, 3), Cell(None, reason="no runs"), Cell(-1.26, trials=3))),
        Row("my_*method*", (Cell(82.0, 0.06, 3, is_best=True), Cell(50.0, None, 1), Cell(12.3, trials=3))),
    ),
    footnotes=("± is 5 % & more.", "erm on [red]50%: its run failed: <class 'E'> {x}^2 ~ \\n."),
)
REPORT = Report((TABLE,), ("2 unfinished runs skipped",))


def test_markdown() -> None:
    assert FORMATS["markdown"](REPORT) == (
        "### odd_data, selected by training_domain\n\n"
        "| method | a_b\\|c | \\[red]50% | gap |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| erm | 81.2 ± 0.4 | — | -1.3 |\n"
        "| my_\\*method\\* | **82.0 ± 0.1** | 50.0 | +12.3 |\n\n"
        "- ± is 5 % & more.\n"
        "- erm on \\[red]50%: its run failed: \\<class 'E'> {x}^2 ~ \\\\n.\n\n"
        "> 2 unfinished runs skipped  \n"
    )


def test_latex() -> None:
    text = FORMATS["latex"](REPORT)
    assert r"method & a\_b\textbar{}c & [red]50\% & gap \\" in text
    assert r"    erm & 81.2 $\pm$ 0.4 & --- & $-$1.3 \\" in text
    assert r"    my\_*method* & \textbf{82.0 $\pm$ 0.1} & 50.0 & +12.3 \\" in text
    assert r"\caption{odd\_data, selected by training\_domain}" in text
    assert r"\begin{tabular}{lrrr}" in text
    assert r"\footnotesize $\pm$ is 5 \% \& more." in text
    assert [text.count(rule) for rule in (r"\toprule", r"\midrule", r"\bottomrule", r"\end{table}")] == [1, 1, 1, 1]
    assert text.endswith("% 2 unfinished runs skipped\n")


def test_latex_escapes_every_special_character_once() -> None:
    assert escape_latex('\\{}$&#_%~^<>|"') == (
        r"\textbackslash{}\{\}\$\&\#\_\%\textasciitilde{}\textasciicircum{}\textless{}\textgreater{}\textbar{}"
        r"\textquotedbl{}"
    )
    # No special character is left unescaped in a whole report.
    body = FORMATS["latex"](REPORT).split("% \\usepackage{booktabs}")[1].split("\\midrule")[1].split("\\bottomrule")[0]
    assert not re.search(r"(?<!\\)[#_%^~]", body)


def test_csv_is_unrounded() -> None:
    rows = list(csv.DictReader(io.StringIO(FORMATS["csv"](REPORT))))
    assert len(rows) == 6
    assert rows[0] == {
        "dataset": "odd_data",
        "algorithm": "erm",
        "test_domain": "a_b|c",
        "kind": "domain",
        "mean": "81.25",
        "error": "0.44",
        "trials": "3",
        "selection": "training_domain",
        "reason": "",
        "low": "",
        "high": "",
        "text": "",
        "metric": "accuracy",
    }
    assert (rows[1]["mean"], rows[1]["error"], rows[1]["reason"]) == ("", "", "no runs")
    assert (rows[2]["test_domain"], rows[2]["kind"]) == ("", "gap")


def test_json_is_unrounded() -> None:
    content = json.loads(FORMATS["json"](REPORT))
    (table,) = content["tables"]
    assert content["schema"] == 1
    assert content["notes"] == ["2 unfinished runs skipped"]
    assert table["rows"][0]["cells"][0]["mean"] == 81.25
    assert table["rows"][0]["cells"][1]["mean"] is None
    assert table["rows"][0]["cells"][1]["reason"] == "no runs"
    assert table["rows"][1]["cells"][0]["is_best"] is True
    place = {"name": "[red]50%", "kind": "domain", "dataset": "odd_data", "domain": "[red]50%"}
    assert table["columns"][1] == {**place, "is_lower_better": False}
    assert table["footnotes"] == list(TABLE.footnotes)


def test_text_has_no_colors_and_is_not_wrapped() -> None:
    wide = Table("wide", "training_domain", tuple(Column(f"domain_{n}", "domain") for n in range(20)), (), ("x " * 90,))
    text = FORMATS["text"](Report((wide,), ()))
    (head,) = [line for line in text.splitlines() if "domain_0" in line]
    assert "domain_19" in head
    assert "\x1b" not in text


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_handles_all_tables(name: str) -> None:
    records = [
        *(pair for trial in range(3) for pair in on_each("erm", (0.5, 0.6, 0.7), training=0.8, trial=trial)),
        *(pair for trial in range(3) for pair in on_each("mat", (0.6, 0.7, 0.8 + trial / 100), trial=trial)),
        run("erm", "-90%", 0.281, dataset="colored_mnist", domains=("+90%", "+80%", "-90%")),
    ]
    report = build_report(runs_of(records), ["test_domain"], columns=["worst", "gap"], paper=True, compare_to="erm")
    text = FORMATS[name](report)
    assert "28.1" in text
    # mat is better by 10, 10.33 and 10.67 points.
    assert re.search(r"\b10\.3", text)
    assert "holds" in text


def test_intervals_and_verdicts() -> None:
    columns = (Column("difference", "difference"), Column("verdict", "verdict"))
    row = Row("mat", (Cell(0.41, trials=3, interval=(-0.25, 1.0)), Cell(None, text="no practical difference")))
    report = Report((Table("Compared to erm", "training_domain", columns, (row,), ()),), ())
    assert "| mat | +0.4 [-0.2, +1.0] | no practical difference |" in FORMATS["markdown"](report)
    assert r"mat & +0.4 [$-$0.2, +1.0] & no practical difference \\" in FORMATS["latex"](report)
    difference, verdict = csv.DictReader(io.StringIO(FORMATS["csv"](report)))
    assert difference["kind"] == "difference compared to erm"
    assert (difference["mean"], difference["low"], difference["high"]) == ("0.41", "-0.25", "1.0")
    assert (verdict["mean"], verdict["text"]) == ("", "no practical difference")


def test_markdown_table_aligns_numbers_and_escapes_bars() -> None:
    table = format_markdown_table(("name", "size"), [("a|b", "1"), ("c", "20")], numeric=1)
    assert table.splitlines() == ["| name | size |", "| --- | ---: |", r"| a\|b | 1 |", "| c | 20 |"]
    assert format_markdown_table(("x", "y"), []).splitlines()[1] == "| --- | --- |"


def test_written_format_is_that_of_the_ending(tmp_path: Path) -> None:
    write_report(tmp_path / "new" / "t.csv", REPORT)
    assert (tmp_path / "new" / "t.csv").read_text() == FORMATS["csv"](REPORT)
    write_report(tmp_path / "t.md", REPORT, "json")
    assert (tmp_path / "t.md").read_text() == FORMATS["json"](REPORT)
    with pytest.raises(DomainwiseError, match="unknown format 'html'"):
        write_report(tmp_path / "t.html", REPORT)
