"""Unprintable characters are shown, and no cell of a CSV file is a formula."""

from pathlib import Path
from urllib.parse import unquote

import pytest

from domainwise.errors import DomainwiseError, format_error
from domainwise.escaping import escape_spreadsheet, escape_unprintable, quote_file_name
from hostile_names import HOSTILE_NAMES, RAW


@pytest.mark.parametrize("name", HOSTILE_NAMES.values(), ids=HOSTILE_NAMES)
def test_every_name_can_be_shown(name: str) -> None:
    for text in (escape_unprintable(name), format_error(DomainwiseError(f"no {name}")), escape_spreadsheet(name)):
        assert not [character for character in RAW if character in text]
        assert len(text.splitlines()) == 1


def test_escapes_are_those_of_python() -> None:
    assert escape_unprintable("\x1b[0m\n\t\0\udce9\u202e") == r"\x1b[0m\n\t\x00\xe9\u202e"
    assert escape_unprintable("a\nb\t", keep="\n") == "a\nb\\t"
    assert escape_unprintable("C:\\new 領域 👩‍💻 שלום e\u0301") == "C:\\new 領域 👩‍💻 שלום e\u0301"


def test_an_error_about_a_file_shows_its_name_escaped() -> None:
    assert format_error(FileNotFoundError(2, "No such file", "a\x1b\n\udce9")) == r"a\x1b\n\xe9: No such file"


@pytest.mark.parametrize("number", ["-1.5", "+3", "-1e-9", "-inf", "0"])
def test_numbers_are_no_formulas(number: str) -> None:
    assert escape_spreadsheet(number) == number


@pytest.mark.parametrize("text", ["=1", "+a", "-a", "@a", "-1+1"])
def test_formulas_are_text(text: str) -> None:
    assert escape_spreadsheet(text) == f"'{text}"


@pytest.mark.parametrize("name", [*HOSTILE_NAMES.values(), "領域" * 100, "%" * 80, "x" * 300])
def test_every_text_can_name_a_folder(name: str, tmp_path: Path) -> None:
    quoted = quote_file_name(name)
    (tmp_path / f"{quoted}-draw0-trial0").mkdir()
    assert quoted.isascii()
    assert unquote(quoted)[:20] == name[:20] or "\udce9" in name
    assert quote_file_name(name[:-1]) != quoted


def test_short_names_are_only_quoted() -> None:
    assert quote_file_name("pacs-mat-art painting+x") == "pacs-mat-art painting+x"
    assert quote_file_name("[/b]-é") == "%5B%2Fb%5D-%C3%A9"
