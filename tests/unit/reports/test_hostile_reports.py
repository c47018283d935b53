"""Names come from folders and stored runs: whatever they hold, every format keeps its structure."""

import csv
import io
import json
import re

import pytest

from domainwise.escaping import escape_unprintable
from domainwise.reports import FORMATS, Report
from domainwise.reports.cells import Cell, Column, Row, Table
from hostile_names import HOSTILE_NAMES, RAW


def hostile_report(name: str) -> Report:
    columns = (Column(name, "domain", name, name), Column("gap", "gap", "data"))
    rows = (Row("erm", (Cell(50.0, 1.0, 3), Cell(-1.5, trials=3))), Row(name, (Cell(None, reason=name), Cell(2.0))))
    return Report((Table(name, "training_domain", columns, rows, (f"note on {name}",)),), (f"note on {name}",))


@pytest.mark.parametrize("name", HOSTILE_NAMES.values(), ids=HOSTILE_NAMES)
@pytest.mark.parametrize("kind", FORMATS)
def test_no_raw_character_in_any_format(kind: str, name: str) -> None:
    text = FORMATS[kind](hostile_report(name))
    assert not [character for character in RAW if character in text]
    assert text.encode()


@pytest.mark.parametrize("name", HOSTILE_NAMES.values(), ids=HOSTILE_NAMES)
def test_tables_keep_their_shape(name: str) -> None:
    report = hostile_report(name)
    markdown = [line for line in FORMATS["markdown"](report).splitlines() if line.startswith("| ")]
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in markdown] == [4] * 4
    latex = FORMATS["latex"](report).split(r"\toprule")[1].split(r"\bottomrule")[0].strip().splitlines()
    assert [len(re.findall(r"(?<!\\)&", line)) for line in latex] == [2, 0, 2, 2]
    assert latex[3].lstrip()[0] not in "[*"
    assert len(FORMATS["text"](report).splitlines()) == 7


@pytest.mark.parametrize("name", HOSTILE_NAMES.values(), ids=HOSTILE_NAMES)
def test_no_name_is_a_formula_and_numbers_stay_numbers(name: str) -> None:
    _, *rows = csv.reader(io.StringIO(FORMATS["csv"](hostile_report(name))))
    assert len(rows) == 4
    assert [row[4] for row in rows] == ["50.0", "-1.5", "", "2.0"]
    for cell in (cell for row in rows for cell in (*row[:4], *row[7:])):
        assert cell[:1] not in tuple("=+-@\t\r")
    assert rows[0][2].removeprefix("'") == escape_unprintable(name)


@pytest.mark.parametrize("name", HOSTILE_NAMES.values(), ids=HOSTILE_NAMES)
def test_json_has_the_exact_name(name: str) -> None:
    assert json.loads(FORMATS["json"](hostile_report(name)))["tables"][0]["rows"][1]["algorithm"] == name
