"""Run folders of all kinds and in every state, read into one frame."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from selection_by_hand import Record, record

from domainwise.errors import DomainwiseError
from domainwise.selection.runs import Planned, read_runs
from domainwise.storage.run_folder import write_records

STEPS = (0, 100, 200)


def made(draw: int = 0, tested: str = "c", **changes: Any) -> list[Record]:
    accuracy = dict.fromkeys("abc", (0.5, 0.25))
    return [record(step, accuracy, list(tested), draw=draw) | changes for step in STEPS]


def write_run(folder: Path, records: list[Record], *, done: bool = True, failed: str = "") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"schema": 1, "config": {"steps": 201}, "data": {}}))
    (folder / ".lock").touch()
    if records:
        write_records(folder / "records.jsonl", records)
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


def test_a_run_a_folder_of_runs_and_folders_of_such_folders_are_read(tmp_path: Path) -> None:
    one = write_run(tmp_path / "all" / "some" / "one", made(draw=1))
    two = write_run(tmp_path / "all" / "two", made(draw=2))
    (tmp_path / "all" / "notes.txt").write_text("nothing")
    assert read_runs([one]).frame["run"].to_list() == [str(one)] * 3
    for paths in ([tmp_path], [tmp_path / "all"], [two, tmp_path / "all" / "some"]):
        runs = read_runs(paths)
        assert sorted(set(runs.frame["run"].to_list())) == [str(one), str(two)]
        assert runs.frame.height == 6
        assert (runs.planned, runs.notes) == ((), ())


def test_a_folder_that_is_reached_twice_is_read_once(tmp_path: Path) -> None:
    one = write_run(tmp_path / "all" / "one", made())
    (tmp_path / "all" / "again").symlink_to(one)
    (one / "up").symlink_to(tmp_path / "all")
    assert read_runs([tmp_path, one, tmp_path / "all", one]).frame.height == 3


def test_a_link_to_runs_elsewhere_is_followed(tmp_path: Path) -> None:
    write_run(tmp_path / "disk" / "one", made())
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "linked").symlink_to(tmp_path / "disk")
    assert read_runs([tmp_path / "all"]).frame["run"].to_list() == [str(tmp_path / "all" / "linked" / "one")] * 3


def test_unfinished_runs_count_only_when_asked_for(tmp_path: Path) -> None:
    write_run(tmp_path / "one", made(draw=1))
    write_run(tmp_path / "two", made(draw=2)[:1], done=False)
    runs = read_runs([tmp_path])
    assert runs.frame["draw"].to_list() == [1, 1, 1]
    assert runs.notes == ("1 run is left out because not finished",)
    write_run(tmp_path / "three", made(draw=3)[:2], done=False, failed="the loss is nan\n")
    write_run(tmp_path / "four", [], done=False)
    runs = read_runs([tmp_path])
    assert runs.frame["draw"].to_list() == [1, 1, 1]
    assert runs.notes == ("3 runs are left out because not finished, 1 of them because of an error",)
    runs = read_runs([tmp_path], unfinished=True)
    assert sorted(runs.frame["draw"].to_list()) == [1, 1, 1, 2, 3, 3]
    assert runs.notes == (f"{tmp_path / 'four'} has no records yet",)


def test_a_half_written_last_line_is_dropped_and_noted(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one", made(), done=False)
    file = folder / "records.jsonl"
    file.write_bytes(file.read_bytes()[:-5])
    runs = read_runs([tmp_path], unfinished=True)
    assert runs.frame["step"].to_list() == [0, 100]
    assert runs.notes == (f"the last line of {file} is half-written and does not count",)


@pytest.mark.parametrize("cut", ["half a line", "a line", "all"])
def test_a_run_that_is_done_but_lost_its_last_record_is_left_out(tmp_path: Path, cut: str) -> None:
    write_run(tmp_path / "one", made(draw=1))
    folder = write_run(tmp_path / "two", made(draw=2))
    file = folder / "records.jsonl"
    if cut == "all":
        file.unlink()
    else:
        write_records(file, made(draw=2)[:2])
    if cut == "half a line":
        file.write_text(file.read_text() + '{"schema": 1, "ste')
    runs = read_runs([tmp_path])
    assert runs.frame["draw"].to_list() == [1, 1, 1]
    assert runs.notes == (f"{folder} is left out: it is done, but {file} does not reach step 200",)


def test_a_damaged_line_leaves_its_run_out(tmp_path: Path) -> None:
    write_run(tmp_path / "one", made(draw=1))
    folder = write_run(tmp_path / "two", made(draw=2))
    file = folder / "records.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join((lines[0], lines[1][:30] + "\n", lines[2])))
    runs = read_runs([tmp_path])
    assert runs.frame["draw"].to_list() == [1, 1, 1]
    assert len(runs.notes) == 1
    assert runs.notes[0].startswith(f"{folder} is left out: {file} is damaged at line 2: ")


@pytest.mark.parametrize(
    "missing",
    [
        *("dataset", "algorithm", "trial_seed", "hparams_seed", "train_domains", "validation_domains", "test_domains"),
        "accuracy",
    ],
)
def test_a_record_with_a_missing_key_leaves_its_run_out(tmp_path: Path, missing: str) -> None:
    write_run(tmp_path / "one", made(draw=1))
    records = made(draw=2)
    del records[1][missing]
    folder = write_run(tmp_path / "two", records)
    runs = read_runs([tmp_path])
    assert runs.frame["draw"].to_list() == [1, 1, 1]
    assert runs.notes == (f"{folder} is left out: line 2 of {folder / 'records.jsonl'} has no '{missing}'",)


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
def test_a_record_with_something_else_in_it_leaves_its_run_out(tmp_path: Path, wrong: dict[str, Any]) -> None:
    write_run(tmp_path / "one", made(draw=1))
    folder = write_run(tmp_path / "two", [*made(draw=2)[:2], made(draw=2)[2] | wrong])
    runs = read_runs([tmp_path])
    assert runs.frame["draw"].to_list() == [1, 1, 1]
    assert len(runs.notes) == 1
    assert runs.notes[0].startswith(f"{folder} is left out: line 3 of {folder / 'records.jsonl'} ")


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DomainwiseError, match=f"there is no folder {tmp_path / 'gone'}"):
        read_runs([tmp_path / "gone"])


def test_a_file_is_no_folder_of_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DomainwiseError, match=f"{tmp_path / 'file'} is not a folder"):
        read_runs([tmp_path / "file"])


def test_a_path_without_runs_is_refused_even_beside_one_that_has_some(tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs" / "one", made())
    (tmp_path / "empty").mkdir()
    # A config of something else makes no run.
    (tmp_path / "empty" / "config.json").write_text("{}")
    with pytest.raises(DomainwiseError, match=f"there are no runs in {tmp_path / 'empty'}"):
        read_runs([run, tmp_path / "empty"])


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / "one", made())
    (tmp_path / "closed").mkdir(mode=0o000)
    with pytest.raises(DomainwiseError, match=f"the folder {tmp_path / 'closed'} cannot be read"):
        read_runs([tmp_path])


def test_the_same_run_in_two_folders_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "a" / "one", made())
    write_run(tmp_path / "b" / "two", made())
    with pytest.raises(DomainwiseError) as error:
        read_runs([tmp_path / "a", tmp_path / "b"])
    assert str(error.value) == (
        f"{tmp_path / 'a' / 'one'} and {tmp_path / 'b' / 'two'} are both erm on pacs, tested on c, trial 0, draw 0; "
        "a table would count it twice: leave one of them out"
    )


def test_the_same_pair_left_out_the_other_way_round_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "one", made(tested="ab"))
    write_run(tmp_path / "two", made(tested="ba"))
    with pytest.raises(DomainwiseError, match="both erm on pacs, tested on a and b, trial 0, draw 0"):
        read_runs([tmp_path])


def test_runs_that_differ_in_anything_stand_beside_each_other(tmp_path: Path) -> None:
    variants: list[dict[str, Any]] = [
        *({}, {"dataset": "vlcs"}, {"algorithm": "mat"}, {"trial_seed": 1}, {"hparams_seed": 1}),
        *({"test_domains": ["a"]}, {"test_domains": ["a", "c"]}, {"roles": "named"}),
    ]
    for number, changes in enumerate(variants):
        write_run(tmp_path / str(number), made(**changes))
    runs = read_runs([tmp_path])
    assert runs.frame["run"].n_unique() == len(variants)
    assert runs.notes == ()


def test_a_sweep_says_how_each_planned_run_stands(tmp_path: Path) -> None:
    write_plan(tmp_path, *(planned(name, draw) for draw, name in enumerate(("d", "f", "u", "t", "g"))))
    write_run(tmp_path / "d", made(draw=0))
    write_run(tmp_path / "f", made(draw=1)[:1], done=False, failed="Traceback:\n  ...\nValueError: it broke \n\n")
    write_run(tmp_path / "u", made(draw=2)[:1], done=False)
    # One that failed before it had a config.
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "failed.txt").write_text("")
    runs = read_runs([tmp_path])
    of = ("pacs", "erm", ("c",), 0)
    assert runs.planned == (
        Planned(str(tmp_path / "d"), *of, 0, "done"),
        Planned(str(tmp_path / "f"), *of, 1, "failed", "ValueError: it broke"),
        Planned(str(tmp_path / "u"), *of, 2, "unfinished"),
        Planned(str(tmp_path / "t"), *of, 3, "to do"),
        Planned(str(tmp_path / "g"), *of, 4, "failed"),
    )
    assert runs.frame["run"].to_list() == [str(tmp_path / "d")] * 3
    assert runs.notes == ("2 runs are left out because not finished, 1 of them because of an error",)


def test_a_run_that_failed_and_then_ended_well_is_done(tmp_path: Path) -> None:
    write_plan(tmp_path, planned("one", 0))
    write_run(tmp_path / "one", made(), failed="out of memory")
    assert [run.state for run in read_runs([tmp_path]).planned] == ["done"]


def test_a_sweep_that_has_not_begun_has_its_plan(tmp_path: Path) -> None:
    write_plan(tmp_path / "sweep", planned("one", 0), planned("two", 1))
    runs = read_runs([tmp_path])
    assert [run.state for run in runs.planned] == ["to do", "to do"]
    assert runs.frame.is_empty()
    assert runs.frame.columns == read_runs([write_run(tmp_path / "x", made())]).frame.columns


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (json.dumps(planned("one", 0)) + '\n{"run": "two"', "plan.jsonl is cut off after line 1"),
        (json.dumps(planned("one", 0)) + '\n{"run": "two"}\n', "plan.jsonl is damaged at line 2: it has no 'dataset'"),
        (json.dumps(planned("one", 0) | {"run": 3}) + "\n", "plan.jsonl is damaged at line 1: "),
    ],
)
def test_a_damaged_plan_is_an_error(tmp_path: Path, plan: str, said: str) -> None:
    (tmp_path / "plan.jsonl").write_text(plan)
    with pytest.raises(DomainwiseError, match=said):
        read_runs([tmp_path])
