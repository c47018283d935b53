"""A run's records file: written whole, and readable after its end was lost."""

import json
from pathlib import Path

import pytest

from domainwise.errors import DomainwiseError
from domainwise.storage.run_folder import RunFolder, read_json_lines, read_record_file, write_json_lines
from domainwise.storage.schemas import parse_domainbed_line
from selection_by_hand import record

RECORDS = [record(step, {"a": (None, 0.5), "b": (0.25, 0.75)}, ["b"]) for step in (0, 100, 200)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_json_lines(tmp_path / "records.jsonl", RECORDS)
    return tmp_path / "records.jsonl"


def test_round_trip(file: Path) -> None:
    assert read_record_file(file) == (RECORDS, False)
    assert RunFolder(file.parent).read_records() == RECORDS
    assert file.read_text().count("\n") == 3


def test_metrics_are_optional_and_checked(file: Path) -> None:
    metrics = {"ece": {"b": {"main": 0.1}}, "confusion": {"b": {"main": [[3, 0], [1, 2]]}}, "newer": 1}
    write_json_lines(file, [{**RECORDS[0], "metrics": metrics}])
    assert read_record_file(file)[0][0]["metrics"] == metrics
    for wrong, message in (
        ({"ece": {"b": {"main": 1.5}}}, r"metrics\.ece\.\*\.\*: expected a number <= 1"),
        ({"macro_f1": 0.5}, r"metrics\.macro_f1: expected object"),
        ({"confusion": {"b": {"main": [[-1]]}}}, r"metrics\.confusion.*: expected int >= 0"),
        ({"confusion": {"b": {"main": [[1, 2]]}}}, r"metrics\.confusion\.b\.main: expected as many columns as rows"),
    ):
        write_json_lines(file, [{**RECORDS[0], "metrics": wrong}])
        with pytest.raises(DomainwiseError, match=message):
            read_record_file(file)


def test_missing_file_has_no_records(tmp_path: Path) -> None:
    assert read_record_file(tmp_path / "records.jsonl") == ([], False)


def test_empty_file_is_complete(file: Path) -> None:
    write_json_lines(file, [])
    assert read_record_file(file) == ([], False)


def test_truncated_last_line_is_dropped_wherever_it_was_cut(file: Path) -> None:
    whole = file.read_bytes()
    last = len(whole.splitlines(keepends=True)[-1])
    for cut in range(1, last):
        file.write_bytes(whole[:-cut])
        assert read_record_file(file) == (RECORDS[:2], True), cut
    file.write_bytes(whole[:-last])
    assert read_record_file(file) == (RECORDS[:2], False)


@pytest.mark.parametrize("rest", [b'{"schema": 1, "st\n', b"\x00\x00\x00\x00", b"\x00\x00\n", b"\xff\n", b"\n"])
def test_last_line_that_is_not_json_is_dropped(file: Path, rest: bytes) -> None:
    file.write_bytes(file.read_bytes() + rest)
    assert read_record_file(file) == (RECORDS, True)


def test_run_folder_drops_it_too(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])
    assert RunFolder(file.parent).read_records() == RECORDS[:2]


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        ('{"schema": 1, "st', "Input data was truncated"),
        ("", "Input data was truncated"),
        ("[1, 2]", "expected object, got array"),
        ('{"step": 5}', "missing key 'schema'"),
        ('{"schema": 1}', "missing key 'step'"),
        ('{"schema": 2, "step": 5}', "unsupported schema 2; expected 1"),
    ],
)
def test_damage_before_the_last_line_is_an_error(file: Path, damaged: str, message: str) -> None:
    lines = file.read_text().splitlines()
    file.write_text("\n".join((lines[0], damaged, lines[2], lines[1][:20])))
    with pytest.raises(DomainwiseError) as error:
        read_record_file(file)
    assert str(error.value).startswith(f"{file} is damaged at line 2: {message}")
    assert str(error.value).endswith("; restore it")


def test_complete_last_line_of_another_schema_is_an_error(file: Path) -> None:
    file.write_text(file.read_text() + '{"schema": 2, "step": 5}\n')
    with pytest.raises(DomainwiseError, match="is damaged at line 4: unsupported schema 2"):
        read_record_file(file)


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DomainwiseError, match=f"{tmp_path} could not be read: Is a directory"):
        read_record_file(tmp_path)


def test_other_json_lines_need_no_schema(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text(json.dumps({"env0_in_acc": 0.5}) + "\n")
    assert read_json_lines(tmp_path / "results.jsonl", parse_domainbed_line) == ([{"env0_in_acc": 0.5}], False)


def test_nan_is_refused(file: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json_lines(file, [{**RECORDS[0], "loss": float("nan")}])
    assert read_record_file(file) == (RECORDS, False)
