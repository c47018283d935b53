"""A run's file of records: written whole, and read after its end was lost."""

import json
from pathlib import Path

import pytest
from selection_by_hand import record

from domainwise.errors import DomainwiseError
from domainwise.storage.run_folder import RunFolder, read_json_lines, read_records, write_records

RECORDS = [record(step, {"a": (None, 0.5), "b": (0.25, 0.75)}, ["b"]) for step in (0, 100, 200)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_records(tmp_path / "records.jsonl", RECORDS)
    return tmp_path / "records.jsonl"


def test_what_is_written_is_read(file: Path) -> None:
    assert read_records(file) == (RECORDS, False)
    assert RunFolder(file.parent).read_records() == RECORDS
    assert file.read_text().count("\n") == 3


def test_no_file_has_no_records(tmp_path: Path) -> None:
    assert read_records(tmp_path / "records.jsonl") == ([], False)


def test_an_empty_file_lost_nothing(file: Path) -> None:
    write_records(file, [])
    assert read_records(file) == ([], False)


def test_a_last_line_is_dropped_wherever_it_was_cut(file: Path) -> None:
    whole = file.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    for cut in range(1, last):
        file.write_bytes(whole[:-cut])
        assert read_records(file) == (RECORDS[:2], True), cut
    file.write_bytes(whole[:-last])
    assert read_records(file) == (RECORDS[:2], False)


@pytest.mark.parametrize("rest", [b'{"schema": 1, "st\n', b"\x00\x00\x00\x00", b"\x00\x00\n", b"\xff\n", b"\n"])
def test_a_last_line_that_is_no_json_is_dropped(file: Path, rest: bytes) -> None:
    file.write_bytes(file.read_bytes() + rest)
    assert read_records(file) == (RECORDS, True)


def test_a_run_folder_drops_it_too(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])
    assert RunFolder(file.parent).read_records() == RECORDS[:2]


@pytest.mark.parametrize(
    ("damaged", "said"),
    [
        ('{"schema": 1, "st', "Unterminated string"),
        ("", "Expecting value"),
        ("[1, 2]", "it is no object"),
        ('{"step": 5}', "it has no 'schema'"),
        ('{"schema": 1}', "it has no 'step'"),
        ('{"schema": 2, "step": 5}', "schema 2"),
    ],
)
def test_damage_before_the_last_line_is_an_error(file: Path, damaged: str, said: str) -> None:
    lines = file.read_text().splitlines()
    file.write_text("\n".join((lines[0], damaged, lines[2], lines[1][:20])))
    with pytest.raises(DomainwiseError) as error:
        read_records(file)
    assert str(error.value).startswith(f"{file} is damaged at line 2: {said}")
    assert str(error.value).endswith("; restore it")


def test_a_whole_last_line_of_another_schema_is_not_dropped(file: Path) -> None:
    file.write_text(file.read_text() + '{"schema": 2, "step": 5}\n')
    with pytest.raises(DomainwiseError, match="is damaged at line 4: schema 2"):
        read_records(file)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DomainwiseError, match=f"{tmp_path} cannot be read: Is a directory"):
        read_records(tmp_path)


def test_lines_of_others_need_no_schema(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text(json.dumps({"env0_in_acc": 0.5}) + "\n")
    assert read_json_lines(tmp_path / "results.jsonl") == ([{"env0_in_acc": 0.5}], False)


def test_records_are_numbers(file: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_records(file, [{**RECORDS[0], "loss": float("nan")}])
    assert read_records(file) == (RECORDS, False)
