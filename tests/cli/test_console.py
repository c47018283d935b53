"""What commands print: names as they are, never markup or terminal codes, and tables that lose no cell."""

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

import domainwise.cli
from domainwise.cli import COMMANDS
from domainwise.cli.console import (
    DataProgress,
    SweepProgress,
    make_console,
    print_json,
    print_line,
    print_table,
    print_text,
    show_status,
    status_table,
    style_text,
)
from domainwise.cli.report import print_report
from domainwise.escaping import escape_unprintable
from domainwise.reports import Report
from domainwise.reports.cells import Cell, Column, Row, Table
from domainwise.storage.run_folder import RunStatus
from domainwise.storage.sweep_folder import PlannedRun
from hostile_names import HOSTILE_NAMES, RAW

FILES = sorted(Path(domainwise.cli.__file__).parent.glob("*.py"))


@pytest.fixture(params=["terminal", "pipe"])
def is_terminal(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether rich believes that it writes to a terminal."""
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    is_terminal = request.param == "terminal"
    monkeypatch.setenv("TTY_COMPATIBLE", "1" if is_terminal else "0")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "100")
    return is_terminal


def strip_styles(text: str) -> str:
    """Remove the codes that rich writes: styles, cursor movements, clearing lines."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "")


def show_everywhere(name: str) -> None:
    """Print a name in every way that commands have."""
    run = PlannedRun(Path(name.replace("\0", "")), name, name, name, (name,), 0, 0)
    console = make_console()
    console.print(name)
    console.print(Text(name, style="bold"))
    console.print_line((name, "bold"), f": {name}")
    print_line(name, stderr=True)
    print_text(name)
    print_table((name, "b"), [(name, "1"), (style_text(name, "red"), "2")], numeric=1)
    print_table((name, "b"), [(name, "1")], is_markdown=True)
    print_table((name,), [(name,)], has_lines=True)
    console.print(status_table({run: RunStatus("failed", error=name)}))
    with show_status(make_console(stderr=True), name) as update:
        update(name)
    with DataProgress(make_console(stderr=True)) as progress:
        progress.report(name, 1, 2)
    with SweepProgress((run,), 10, make_console(stderr=True)) as sweep:
        for state in ("pending", "failed", "done"):
            sweep.update(run, RunStatus(state, error=name, reason=name))
    table = Table(name, name, (Column(name, "domain", name, name),), (Row(name, (Cell(1.0, is_best=True),)),), (name,))
    print_report(Report((table,), (name,)))


@pytest.mark.parametrize("name", HOSTILE_NAMES.values(), ids=HOSTILE_NAMES)
def test_names_are_shown_as_they_are(name: str, is_terminal: bool, capsys: pytest.CaptureFixture[str]) -> None:
    show_everywhere(name)
    captured = capsys.readouterr()
    assert ("\x1b[1m" in captured.out) == is_terminal
    for text in (captured.out, captured.err):
        shown = strip_styles(text)
        assert not [character for character in RAW if character in shown]
        assert "⚠" not in shown
    # Everywhere but in the Markdown table, which escapes bars.
    assert strip_styles(captured.out).count(escape_unprintable(name, keep="\n").split("\n")[0]) >= 15


@pytest.mark.parametrize("name", HOSTILE_NAMES.values(), ids=HOSTILE_NAMES)
def test_json_is_exact_and_cannot_control_a_terminal(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_json({name: [name]})
    text = capsys.readouterr().out
    assert not [character for character in RAW if character in text]
    assert json.loads(text) == {name: [name]}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_only_the_console_prints(path: Path) -> None:
    """Whatever is printed in another way could be markup, or reach the terminal raw."""
    if path.stem in ("console", "streams"):
        return
    tree = ast.parse(path.read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not modules & {"rich", "rich.console", "rich.markup", "rich.panel", "rich.table", "rich.text", "rich.live"}
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    assert not names & {"print", "TextColumn", "Console"}
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not attributes & {"from_markup", "from_ansi", "render_str", "stdout", "stderr"}
    keywords = {node.arg for node in ast.walk(tree) if isinstance(node, ast.keyword)}
    assert "markup" not in keywords


HEADER = ("recipe", "in the paper", "a rather long header of a column", "verdict", "art painting", "average")
ROWS = [
    ("table_1 (at_against_erm)", "Table 1, Figure 5", "26 runs, 13 min 42 s", "does not hold", "84.2 ± 1.3", "-0.1"),
    ("領域" * 12, "x" * 60, "", "holds", "100.0 ± 10.0", "+12.3"),
]


@pytest.mark.parametrize("columns", [40, 80, 100, 120, 160])
@pytest.mark.parametrize("has_lines", [False, True])
def test_tables_wrap_and_drop_nothing(
    columns: int,
    has_lines: bool,
    is_terminal: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    print_table(HEADER, ROWS, numeric=2, has_lines=has_lines)
    lines = strip_styles(capsys.readouterr().out).splitlines()
    for cell in (*HEADER, *(cell for row in ROWS for cell in row)):
        for word in cell.split():
            assert any(word in line for line in lines), word
    if not is_terminal and not has_lines:
        assert len(lines) == 3


def test_the_status_of_a_sweep_shows_long_names(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name = "".join(f"{number:03}" for number in range(30))
    run = PlannedRun(Path(name), name, name, "erm", (name,), 0, 0)
    make_console().print(status_table({run: RunStatus("failed", error="x")}))
    text = capsys.readouterr().out
    assert "failed" in text
    assert name in "".join(re.findall(r"^ +(?:erm on )?(\d+)", text, re.MULTILINE))


def test_a_report_that_is_too_wide_drops_nothing(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    columns = tuple(Column(f"domain_{number}", "domain", "data", f"domain_{number}") for number in range(12))
    row = Row("a_method", tuple(Cell(50.0 + number, 1.0, 3) for number in range(12)))
    print_report(Report((Table("data", "training_domain", columns, (row,), ()),), ()))
    text = strip_styles(capsys.readouterr().out)
    for number in range(12):
        assert f"domain_{number}" in text
        assert f"{50 + number}.0" in text


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_the_list_of_recipes_is_complete(
    width: int, is_terminal: bool, monkeypatch: pytest.MonkeyPatch, domainwise: Callable[..., Any]
) -> None:
    from domainwise.reproduction.recipe import load_recipes

    monkeypatch.setenv("COLUMNS", str(width))
    words = set(strip_styles(domainwise("reproduce", "--list").out).split())
    for recipe in load_recipes().values():
        expected = f"{recipe.key} ({recipe.name})" if recipe.name != recipe.key else recipe.key
        assert {*expected.split(), *recipe.about.split(), *", ".join(recipe.numbers).split()} <= words


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_narrow_terminal_and_cuts_no_word(
    command: str, monkeypatch: pytest.MonkeyPatch, domainwise: Callable[..., Any]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    outcome = domainwise(command, "--help")
    assert outcome.code == 0, outcome.err
    assert "…" not in outcome.out
    text, _, examples = outcome.out.partition("  Example")
    assert max(map(len, text.splitlines())) <= 80
    assert command == "data" or f"\n    domainwise {command}" in examples


def test_the_list_of_commands_is_in_order_and_complete(domainwise: Callable[..., Any]) -> None:
    lines = domainwise("--help").out.partition("Commands:\n")[2].splitlines()
    assert [line.split()[0] for line in lines if line[:2] == "  " and line[2:3] not in ("", " ")] == list(COMMANDS)
    assert not [line for line in lines if "..." in line]


@pytest.mark.parametrize("command", ["", "sweep", "data"])
def test_without_arguments_the_help_is_printed(command: str, domainwise: Callable[..., Any]) -> None:
    outcome = domainwise(*command.split())
    assert outcome.code == 2
    assert domainwise(*command.split(), "--help").out.strip() in outcome.out + outcome.err
