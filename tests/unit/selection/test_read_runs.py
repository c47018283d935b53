"""Run folders of every kind and in every state, read into one frame."""

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from domainwise.errors import DomainwiseError
from domainwise.selection import read_runs
from domainwise.storage.run_folder import RunStatus, write_json_lines
from domainwise.storage.sweep_folder import PlannedRun
from selection_by_hand import Record, record

STEPS = (0, 100, 200)


def make_records(draw: int = 0, tested: str = "c", **changes: Any) -> list[Record]:
    accuracy = dict.fromkeys("abc", (0.5, 0.25))
    return [record(step, accuracy, list(tested), draw=draw) | changes for step in STEPS]


def write_run(folder: Path, records: list[Record], *, done: bool = True, failed: str = "") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"schema": 1, "config": {"steps": 201}, "data": {}}))
    (folder / ".lock").touch()
    if records:
        write_json_lines(folder / "records.jsonl", records)
    if done:
        (folder / "done").touch()
    if failed:
        (folder / "failed.txt").write_text(failed)
    return folder


def write_plan(sweep: Path, *runs: dict[str, Any]) -> None:
    sweep.mkdir(parents=True, exist_ok=True)
    (sweep / "plan.jsonl").write_text("".join(json.dumps(run) + "\n" for run in runs))


def planned(run: str, draw: int) -> dict[str, Any]:
    of = {"dataset": "pacs", "algorithm": "erm", "test_domains": ["c"], "trial_seed": 0, "hparams_seed": draw}
    return {"run": run, **of}


def test_run_folder_of_runs_and_nested_folders_are_read(tmp_path: Path) -> None:
    one = write_run(tmp_path / "all" / "some" / "one", make_records(draw=1))
    two = write_run(tmp_path / "all" / "two", make_records(draw=2))
    (tmp_path / "all" / "notes.txt").write_text("nothing")
    assert read_runs([one]).frame["run"].to_list() == [str(one)] * 3
    for paths in ([tmp_path], [tmp_path / "all"], [two, tmp_path / "all" / "some"]):
        runs = read_runs(paths)
        assert sorted(set(runs.frame["run"].to_list())) == [str(one), str(two)]
        assert runs.frame.height == 6
        assert (runs.planned, runs.notes) == ({}, ())


def test_folder_reached_twice_is_read_once(tmp_path: Path) -> None:
    one = write_run(tmp_path / "all" / "one", make_records())
    (tmp_path / "all" / "again").symlink_to(one)
    (one / "up").symlink_to(tmp_path / "all")
    assert read_runs([tmp_path, one, tmp_path / "all", one]).frame.height == 3


def test_symlink_to_runs_is_followed(tmp_path: Path) -> None:
    write_run(tmp_path / "disk" / "one", make_records())
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "linked").symlink_to(tmp_path / "disk")
    assert read_runs([tmp_path / "all"]).frame["run"].to_list() == [str(tmp_path / "all" / "linked" / "one")] * 3


def test_unfinished_runs_count_only_on_request(tmp_path: Path) -> None:
    write_run(tmp_path / "one", make_records(draw=1))
    write_run(tmp_path / "two", make_records(draw=2)[:1], done=False)
    runs = read_runs([tmp_path])
    assert runs.frame["draw"].to_list() == [1, 1, 1]
    assert runs.notes == ("1 unfinished run skipped",)
    write_run(tmp_path / "three", make_records(draw=3)[:2], done=False, failed="the loss is nan\n")
    write_run(tmp_path / "four", [], done=False)
    runs = read_runs([tmp_path])
    assert runs.frame["draw"].to_list() == [1, 1, 1]
    assert runs.notes == ("3 unfinished runs skipped (1 failed)",)
    runs = read_runs([tmp_path], unfinished=True)
    assert sorted(runs.frame["draw"].to_list()) == [1, 1, 1, 2, 3, 3]
    assert runs.notes == (f"{tmp_path / 'four'} has no records yet",)


def test_incomplete_last_line_is_dropped_and_noted(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one", make_records(), done=False)
    file = folder / "records.jsonl"
    file.write_bytes(file.read_bytes()[:-5])
    runs = read_runs([tmp_path], unfinished=True)
    assert runs.frame["step"].to_list() == [0, 100]
    assert runs.notes == (f"{file}: ignored an incomplete last line",)


@pytest.mark.parametrize("cut", ["part of a line", "a line", "all"])
def test_done_run_without_its_last_record_is_skipped(tmp_path: Path, cut: str) -> None:
    write_run(tmp_path / "one", make_records(draw=1))
    folder = write_run(tmp_path / "two", make_records(draw=2))
    file = folder / "records.jsonl"
    if cut == "all":
        file.unlink()
    else:
        write_json_lines(file, make_records(draw=2)[:2])
    if cut == "part of a line":
        file.write_text(file.read_text() + '{"schema": 1, "ste')
    runs = read_runs([tmp_path])
    assert runs.frame["draw"].to_list() == [1, 1, 1]
    assert runs.notes == (f"{folder} skipped: it is done, but {file} does not reach step 200",)


def test_damaged_line_skips_its_run(tmp_path: Path) -> None:
    write_run(tmp_path / "one", make_records(draw=1))
    folder = write_run(tmp_path / "two", make_records(draw=2))
    file = folder / "records.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join((lines[0], lines[1][:30] + "\n", lines[2])))
    runs = read_runs([tmp_path])
    assert runs.frame["draw"].to_list() == [1, 1, 1]
    assert len(runs.notes) == 1
    assert runs.notes[0].startswith(f"{folder} skipped: {file} is damaged at line 2: ")


@pytest.mark.parametrize(
    "missing",
    [
        *("dataset", "algorithm", "trial_seed", "hparams_seed", "train_domains", "validation_domains", "test_domains"),
        "accuracy",
    ],
)
def test_record_with_a_missing_key_skips_its_run(tmp_path: Path, missing: str) -> None:
    write_run(tmp_path / "one", make_records(draw=1))
    records = make_records(draw=2)
    del records[1][missing]
    folder = write_run(tmp_path / "two", records)
    runs = read_runs([tmp_path])
    assert runs.frame["draw"].to_list() == [1, 1, 1]
    assert runs.notes == (
        f"{folder} skipped: {folder / 'records.jsonl'} is damaged at line 2: missing key '{missing}'; restore it",
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"accuracy": {"a": {"holdout": 0.5}}},
        {"accuracy": None},
        {"accuracy": {"a": 0.5, "b": 0.5, "c": 0.5}},
        {"accuracy": {"a": {}, "b": {}, "c": {"main": "high"}}},
        {"accuracy": {"a": {"holdout": "high"}, "b": {"holdout": "low"}, "c": {"main": 0.5}}},
        {"step": [1]},
        {"step": 1.5},
        {"trial_seed": 2**70},
        {"hparams_seed": None},
        {"test_domains": "cd"},
        {"test_domains": 3},
        {"train_domains": None},
    ],
)
def test_record_of_the_wrong_type_skips_its_run(tmp_path: Path, wrong: dict[str, Any]) -> None:
    write_run(tmp_path / "one", make_records(draw=1))
    folder = write_run(tmp_path / "two", [*make_records(draw=2)[:2], make_records(draw=2)[2] | wrong])
    runs = read_runs([tmp_path])
    assert runs.frame["draw"].to_list() == [1, 1, 1]
    assert len(runs.notes) == 1
    assert runs.notes[0].startswith(f"{folder} skipped: {folder / 'records.jsonl'} is damaged at line 3: ")


def test_missing_path_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DomainwiseError, match=f"folder {tmp_path / 'gone'} not found"):
        read_runs([tmp_path / "gone"])


def test_file_is_not_a_folder_of_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DomainwiseError, match=f"{tmp_path / 'file'} is not a folder"):
        read_runs([tmp_path / "file"])


def test_path_without_runs_is_an_error_even_next_to_one_with_runs(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "one", make_records())
    (tmp_path / "empty").mkdir()
    # A config.json of something else is not a run.
    (tmp_path / "empty" / "config.json").write_text("{}")
    with pytest.raises(DomainwiseError, match=f"no runs found in {tmp_path / 'empty'}"):
        read_runs([run, tmp_path / "empty"])


def test_unreadable_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_run(tmp_path / "one", make_records())
    closed = tmp_path / "closed"
    closed.mkdir()
    scan = os.scandir

    def refuse(folder: str) -> Iterator[os.DirEntry[str]]:
        if Path(folder) == closed:
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return scan(folder)

    # Permissions of folders do not bind the superuser.
    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DomainwiseError, match=f"folder {closed} could not be read: Permission denied"):
        read_runs([tmp_path])


def test_same_run_in_two_folders_is_an_error(tmp_path: Path) -> None:
    write_run(tmp_path / "a" / "one", make_records())
    write_run(tmp_path / "b" / "two", make_records())
    with pytest.raises(DomainwiseError) as error:
        read_runs([tmp_path / "a", tmp_path / "b"])
    assert str(error.value) == (
        f"{tmp_path / 'a' / 'one'} and {tmp_path / 'b' / 'two'} are both erm on pacs, tested on c, trial 0, draw 0, "
        "and would be counted twice: leave one of them out"
    )


def test_same_pair_in_the_other_order_is_an_error(tmp_path: Path) -> None:
    write_run(tmp_path / "one", make_records(tested="ab"))
    write_run(tmp_path / "two", make_records(tested="ba"))
    with pytest.raises(DomainwiseError, match="both erm on pacs, tested on a and b, trial 0, draw 0"):
        read_runs([tmp_path])


def test_runs_that_differ_in_anything_are_kept(tmp_path: Path) -> None:
    variants: list[dict[str, Any]] = [
        *({}, {"dataset": "vlcs"}, {"algorithm": "mat"}, {"trial_seed": 1}, {"hparams_seed": 1}),
        *({"test_domains": ["a"]}, {"test_domains": ["a", "c"]}, {"roles": "named"}),
    ]
    for number, changes in enumerate(variants):
        write_run(tmp_path / str(number), make_records(**changes))
    runs = read_runs([tmp_path])
    assert runs.frame["run"].n_unique() == len(variants)
    assert runs.notes == ()


def test_sweep_gives_the_status_of_each_planned_run(tmp_path: Path) -> None:
    write_plan(tmp_path, *(planned(name, draw) for draw, name in enumerate(("d", "f", "u", "t", "g"))))
    write_run(tmp_path / "d", make_records(draw=0))
    write_run(
        tmp_path / "f", make_records(draw=1)[:1], done=False, failed="Traceback:\n ...\nValueError: it broke \n\n"
    )
    write_run(tmp_path / "u", make_records(draw=2)[:1], done=False)
    # A run that failed before it had a config.
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "failed.txt").write_text("")
    runs = read_runs([tmp_path])
    statuses = {
        "d": RunStatus("done"),
        "f": RunStatus("failed", error="ValueError: it broke"),
        "u": RunStatus("unfinished"),
        "t": RunStatus("pending"),
        "g": RunStatus("failed"),
    }
    assert runs.planned == {
        PlannedRun(tmp_path / name, name, "pacs", "erm", ("c",), 0, draw): status
        for draw, (name, status) in enumerate(statuses.items())
    }
    assert runs.frame["run"].to_list() == [str(tmp_path / "d")] * 3
    assert runs.notes == ("2 unfinished runs skipped (1 failed)",)


def test_run_that_failed_and_then_finished_is_done(tmp_path: Path) -> None:
    write_plan(tmp_path, planned("one", 0))
    write_run(tmp_path / "one", make_records(), failed="out of memory")
    assert [status.state for status in read_runs([tmp_path]).planned.values()] == ["done"]


def test_sweep_that_has_not_started_has_its_plan(tmp_path: Path) -> None:
    write_plan(tmp_path / "sweep", planned("one", 0), planned("two", 1))
    runs = read_runs([tmp_path])
    assert [status.state for status in runs.planned.values()] == ["pending", "pending"]
    assert runs.frame.is_empty()
    assert runs.frame.columns == read_runs([write_run(tmp_path / "x", make_records())]).frame.columns


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (json.dumps(planned("one", 0)) + '\n{"run": "two"', "plan.jsonl is truncated after line 1"),
        (
            json.dumps(planned("one", 0)) + '\n{"run": "two"}\n',
            "plan.jsonl is damaged at line 2: missing key",
        ),
        (json.dumps(planned("one", 0) | {"run": 3}) + "\n", "plan.jsonl is damaged at line 1: "),
    ],
)
def test_damaged_plan_is_an_error(tmp_path: Path, plan: str, message: str) -> None:
    (tmp_path / "plan.jsonl").write_text(plan)
    with pytest.raises(DomainwiseError, match=message):
        read_runs([tmp_path])
