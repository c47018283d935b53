"""Locks: one holder at a time."""

import threading
from pathlib import Path

import pytest

from domainwise.storage.files import LockedError, hold_lock


def test_held_lock_is_refused_and_free_afterwards(tmp_path: Path) -> None:
    file = tmp_path / "lock"
    entered = []
    with hold_lock(file):
        with pytest.raises(LockedError, match=r"lock$"), hold_lock(file):
            entered.append("too early")
        entered.append("held")
    with hold_lock(file):
        entered.append("free")
    assert entered == ["held", "free"]
    assert file.exists()


def test_error_inside_releases_the_lock(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), hold_lock(tmp_path / "lock"):
        raise ZeroDivisionError
    with hold_lock(tmp_path / "lock"):
        assert (tmp_path / "lock").exists()


def test_waiting_process_is_notified_once_and_enters_after_the_holder(tmp_path: Path) -> None:
    happened: list[str] = []
    waits = threading.Event()

    def second() -> None:
        def on_wait() -> None:
            happened.append("waits")
            waits.set()

        with hold_lock(tmp_path / "lock", on_wait=on_wait):
            happened.append("second")

    with hold_lock(tmp_path / "lock"):
        thread = threading.Thread(target=second)
        thread.start()
        assert waits.wait(30)
        happened.append("first ends")
    thread.join(30)
    assert happened == ["waits", "first ends", "second"]


def test_no_wait_no_notification(tmp_path: Path) -> None:
    told: list[str] = []
    with hold_lock(tmp_path / "lock", on_wait=lambda: told.append("waits")):
        assert told == []


def test_two_files_are_two_locks(tmp_path: Path) -> None:
    with hold_lock(tmp_path / "one"), hold_lock(tmp_path / "two"):
        assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two"]


def test_lock_file_that_cannot_be_created_raises_oserror(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"), hold_lock(tmp_path / "file" / "lock"):
        pass
