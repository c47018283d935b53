"""Digests of files, and the memory that saves reading them again."""

import hashlib
import os
from pathlib import Path

import pytest
from image_kinds import write_photos

from domainwise.data.cache import UNREADABLE, compute_fingerprints


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are read, as they are."""
    names: list[str] = []
    read = Path.read_bytes

    def noted(file: Path) -> bytes:
        names.append(file.name)
        return read(file)

    monkeypatch.setattr(Path, "read_bytes", noted)
    return names


def times(file: Path, nanoseconds: int) -> None:
    os.utime(file, ns=(nanoseconds, nanoseconds))


def test_a_fingerprint_is_a_digest_of_the_content(tmp_path: Path) -> None:
    files = write_photos(tmp_path, 3)
    expected = [hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest() for file in files]
    assert compute_fingerprints(files, tmp_path / "memory") == expected
    assert compute_fingerprints(files[::-1], tmp_path / "memory") == expected[::-1]
    assert len(set(expected)) == 3


def test_unchanged_files_are_not_read_again(tmp_path: Path, reads: list[str]) -> None:
    files = write_photos(tmp_path, 3)
    first = compute_fingerprints(files, tmp_path / "memory")
    assert sorted(reads) == ["000.png", "001.png", "002.png"]
    reads.clear()
    told: list[object] = []
    assert compute_fingerprints(files, tmp_path / "memory", lambda *words: told.append(words)) == first
    assert reads == []
    assert told == []


def test_only_new_files_are_read(tmp_path: Path, reads: list[str]) -> None:
    files = write_photos(tmp_path, 4)
    compute_fingerprints(files[:2], tmp_path / "memory")
    reads.clear()
    told: list[object] = []
    compute_fingerprints(files, tmp_path / "memory", lambda *words: told.append(words))
    assert sorted(reads) == ["002.png", "003.png"]
    assert told == [("reading", 2, 2)]


@pytest.mark.parametrize("content", [b"another", b"other"], ids=["size", "same size"])
def test_changed_files_are_found(tmp_path: Path, reads: list[str], content: bytes) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(b"first")
    times(file, 1_000_000_000)
    (before,) = compute_fingerprints([file], tmp_path / "memory")
    file.write_bytes(content)
    times(file, 2_000_000_000)
    (after,) = compute_fingerprints([file], tmp_path / "memory")
    assert after != before
    assert after == hashlib.blake2b(content, digest_size=16).hexdigest()


def test_a_file_of_another_size_is_found_though_its_time_was_set_back(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(b"first")
    times(file, 1_000_000_000)
    before = compute_fingerprints([file], tmp_path / "memory")
    file.write_bytes(b"second")
    times(file, 1_000_000_000)
    assert compute_fingerprints([file], tmp_path / "memory") != before


@pytest.mark.skipif(os.name == "nt", reason="Windows keeps no time of a file's last change of status")
def test_a_file_of_the_same_size_is_found_though_its_time_was_set_back(tmp_path: Path) -> None:
    """As archives do that keep times: git, tar and rsync write the same time into other content."""
    file = tmp_path / "a.png"
    file.write_bytes(b"first")
    times(file, 1_000_000_000)
    before = compute_fingerprints([file], tmp_path / "memory")
    changed = file.stat().st_ctime_ns
    while file.stat().st_ctime_ns == changed:
        file.write_bytes(b"other")
        times(file, 1_000_000_000)
    assert compute_fingerprints([file], tmp_path / "memory") != before


def test_a_touched_file_is_read_again_and_has_the_same_fingerprint(tmp_path: Path, reads: list[str]) -> None:
    (file,) = write_photos(tmp_path, 1)
    times(file, 1_000_000_000)
    before = compute_fingerprints([file], tmp_path / "memory")
    reads.clear()
    times(file, 2_000_000_000)
    assert compute_fingerprints([file], tmp_path / "memory") == before
    assert reads == ["000.png"]


def test_a_file_that_cannot_be_read_has_a_word_and_is_tried_again(tmp_path: Path) -> None:
    (good,) = write_photos(tmp_path, 1)
    folder, missing = tmp_path / "folder.png", tmp_path / "missing.png"
    folder.mkdir()
    found = compute_fingerprints([good, folder, missing], tmp_path / "memory")
    assert found[1:] == [UNREADABLE, UNREADABLE]
    assert found[0] != UNREADABLE
    missing.write_bytes(good.read_bytes())
    assert compute_fingerprints([good, folder, missing], tmp_path / "memory") == [found[0], UNREADABLE, found[0]]


def test_an_error_of_the_disk_is_not_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file,) = write_photos(tmp_path, 1)

    def fail(file: Path) -> bytes:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", fail)
        assert compute_fingerprints([file], tmp_path / "memory") == [UNREADABLE]
    expected = hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()
    assert compute_fingerprints([file], tmp_path / "memory") == [expected]


def test_a_file_that_is_removed_is_not_remembered(tmp_path: Path) -> None:
    (file,) = write_photos(tmp_path, 1)
    compute_fingerprints([file], tmp_path / "memory")
    file.unlink()
    assert compute_fingerprints([file], tmp_path / "memory") == [UNREADABLE]


@pytest.mark.parametrize(
    "damaged",
    [b"", b"{", b"\xff\xfe", b"[]", b"5", b"null", b'{"%s": 5}', b'{"%s": []}', b'{"%s": [1, 2]}', b'{"%s": null}'],
)
def test_a_damaged_memory_is_ignored_and_written_anew(tmp_path: Path, damaged: bytes, reads: list[str]) -> None:
    files, memory = write_photos(tmp_path, 2), tmp_path / "memory"
    expected = compute_fingerprints(files, memory)
    memory.write_bytes(damaged.replace(b"%s", str(files[0]).encode()))
    assert compute_fingerprints(files, memory) == expected
    reads.clear()
    assert compute_fingerprints(files, memory) == expected
    assert reads == []
