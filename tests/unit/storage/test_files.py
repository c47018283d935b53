"""Files are replaced as a whole, and nothing but regular files is replaced or read."""

import multiprocessing
import os
import socket
import stat
from pathlib import Path

import pytest

from domainwise.errors import DomainwiseError
from domainwise.storage.files import hold_lock, is_locked, open_atomic, read_regular, write_atomic


def test_the_temporary_file_follows_no_link(tmp_path: Path) -> None:
    """Whoever can guess its name could otherwise have any file overwritten."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    for name in (".plan.jsonl.partial", ".plan.jsonl"):
        (tmp_path / name).symlink_to(victim)
    write_atomic(tmp_path / "plan.jsonl", b"new")
    names = set()
    for _ in range(3):
        with open_atomic(tmp_path / "plan.jsonl") as file:
            names.add(os.readlink(f"/proc/self/fd/{file.fileno()}"))
    assert len(names) == 3
    assert victim.read_bytes() == b"precious"


def test_a_link_is_replaced_and_its_target_kept(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write_atomic(tmp_path / "link", b"new")
    assert (tmp_path / "target").read_bytes() == b"old"
    assert not (tmp_path / "link").is_symlink()


def test_the_mode_is_that_of_any_new_file(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_atomic(tmp_path / "file", b"")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    write_atomic(tmp_path / "file", b"old")
    with pytest.raises(TypeError), open_atomic(tmp_path / "file") as file:
        file.writelines([b"half", None])  # type: ignore[list-item]
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_an_error_names_the_file_and_not_the_temporary_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        write_atomic(tmp_path / "gone" / "file", b"")
    assert error.value.filename == str(tmp_path / "gone" / "file")


def _write_repeatedly(path: Path, letter: str, count: int) -> None:
    for _ in range(count):
        write_atomic(path, letter.encode() * 100_000)


def test_two_writers_of_one_path_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, b"a" * 100_000)
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_repeatedly, args=(path, letter, 60)) for letter in "ab"]
    for writer in writers:
        writer.start()
    reads = 0
    while any(writer.is_alive() for writer in writers) or not reads:
        content = path.read_bytes()
        assert len(content) == 100_000
        assert len(set(content)) == 1
        reads += 1
    for writer in writers:
        writer.join(30)
        assert writer.exitcode == 0
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def _make_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


def _make_socket(folder: Path) -> Path:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "socket"))
    return folder / "socket"


def _link_to_device(folder: Path) -> Path:
    (folder / "link").symlink_to("/dev/null")
    return folder / "link"


SPECIAL = [_make_pipe, _make_socket, _link_to_device]


@pytest.mark.parametrize("make", SPECIAL)
def test_other_things_than_files_are_not_replaced(tmp_path: Path, make: "type[Path]") -> None:
    path = make(tmp_path)
    with pytest.raises(DomainwiseError, match=f"{path} is not a regular file"):
        write_atomic(path, b"")
    assert path.is_symlink() or not path.is_file()


@pytest.mark.parametrize("device", ["/dev/null", "/dev/stdout", "/proc/self/fd/1", "/dev/fd/1"])
def test_devices_are_not_replaced(device: str) -> None:
    before = os.lstat(device)
    with pytest.raises(DomainwiseError, match=f"{device} is not a regular file; choose another output"):
        write_atomic(Path(device), b"")
    assert os.lstat(device).st_mode == before.st_mode


@pytest.mark.parametrize("make", SPECIAL[::2])
def test_other_things_than_files_are_not_read(tmp_path: Path, make: "type[Path]") -> None:
    path = make(tmp_path)
    with pytest.raises(DomainwiseError, match=f"{path} is not a regular file"):
        read_regular(path)


def test_asking_for_a_lock_writes_nothing(tmp_path: Path) -> None:
    lock = tmp_path / ".lock"
    assert not is_locked(lock)
    assert not is_locked(tmp_path / "gone" / ".lock")
    assert list(tmp_path.iterdir()) == []
    with hold_lock(lock):
        assert is_locked(lock)
    assert not is_locked(lock)
    os.chmod(tmp_path, 0o500)
    assert not is_locked(lock)
    os.chmod(tmp_path, 0o700)
