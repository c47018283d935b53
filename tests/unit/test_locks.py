"""One holder at a time."""

import sys
import threading
from pathlib import Path

import pytest

from domainwise.storage.files import LockedError, locked

pytest.importorskip("fcntl", reason="Windows has no such lock")


def test_a_lock_that_is_held_is_refused_and_free_afterwards(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    entered = []
    with locked(file):
        with pytest.raises(LockedError, match=r"lock$"), locked(file):
            entered.append("too early")
        entered.append("held")
    with locked(file):
        entered.append("free")
    assert entered == ["held", "free"]
    assert file.exists()


def test_an_error_inside_lets_go_of_the_lock(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "lock"):
        raise ZeroDivisionError
    with locked(tmp_path / "lock"):
        assert (tmp_path / "lock").exists()


def test_who_waits_is_told_once_and_enters_after_the_holder(tmp_path: Path) -> None:
    happened: list[str] = []
    waits = threading.Event()

    def second() -> None:
        def on_wait() -> None:
            happened.append("waits")
            waits.set()

        with locked(tmp_path / "lock", on_wait=on_wait):
            happened.append("second")

    with locked(tmp_path / "lock"):
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(30)
        happened.append("first ends")
    thread.join(30)
    assert happened == ["waits", "first ends", "second"]


def test_who_need_not_wait_is_told_nothing(tmp_path: Path) -> None:
    told: list[str] = []
    with locked(tmp_path / "lock", on_wait=lambda: told.append("waits")):
        assert told == []


def test_two_files_are_two_locks(tmp_path: Path) -> None:
    with locked(tmp_path / "one"), locked(tmp_path / "two"):
        assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_a_file_that_cannot_be_made_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), locked(tmp_path / "no such folder" / "lock"):
        pass


def test_a_system_without_locks_goes_on_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    entered = []
    with locked(tmp_path / "lock"), locked(tmp_path / "lock"):
        entered.append("both")
    assert entered == ["both"]
