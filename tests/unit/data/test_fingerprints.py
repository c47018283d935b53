"""Fingerprints of files, and the index that avoids reading them again."""

import hashlib
import os
from pathlib import Path

import pytest
from image_kinds import write_photos

from domainwise.data.cache import UNREADABLE, compute_fingerprints


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are read."""
    names: list[str] = []
    read = Path.read_bytes

    def record(file: Path) -> bytes:
        names.append(file.name)
        return read(file)

    monkeypatch.setattr(Path, "read_bytes", record)
    return names


def times(file: Path, nanoseconds: int) -> None:
    os.utime(file, ns=(nanoseconds, nanoseconds))


def test_fingerprint_is_a_digest_of_the_content(tmp_path: Path) -> None:
    files = write_photos(tmp_path, 3)
    expected = [hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest() for file in files]
    assert compute_fingerprints(files, tmp_path / "index") == expected
    assert compute_fingerprints(files[::-1], tmp_path / "index") == expected[::-1]
    assert len(set(expected)) == 3


def test_unchanged_files_are_not_read_again(tmp_path: Path, reads: list[str]) -> None:
    files = write_photos(tmp_path, 3)
    first = compute_fingerprints(files, tmp_path / "index")
    assert sorted(reads) == ["000.png", "001.png", "002.png"]
    reads.clear()
    reports: list[object] = []
    assert compute_fingerprints(files, tmp_path / "index", lambda *report: reports.append(report)) == first
    assert reads == []
    assert reports == []


def test_only_new_files_are_read(tmp_path: Path, reads: list[str]) -> None:
    files = write_photos(tmp_path, 4)
    compute_fingerprints(files[:2], tmp_path / "index")
    reads.clear()
    reports: list[object] = []
    compute_fingerprints(files, tmp_path / "index", lambda *report: reports.append(report))
    assert sorted(reads) == ["002.png", "003.png"]
    assert reports == [("reading", 2, 2)]


@pytest.mark.parametrize("content", [b"another", b"other"], ids=["size", "same size"])
def test_changed_file_is_detected(tmp_path: Path, reads: list[str], content: bytes) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(b"first")
    times(file, 1_000_000_000)
    (before,) = compute_fingerprints([file], tmp_path / "index")
    file.write_bytes(content)
    times(file, 2_000_000_000)
    (after,) = compute_fingerprints([file], tmp_path / "index")
    assert after != before
    assert after == hashlib.blake2b(content, digest_size=16).hexdigest()


def test_changed_size_is_detected_despite_equal_mtime(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(b"first")
    times(file, 1_000_000_000)
    before = compute_fingerprints([file], tmp_path / "index")
    file.write_bytes(b"second")
    times(file, 1_000_000_000)
    assert compute_fingerprints([file], tmp_path / "index") != before


@pytest.mark.skipif(os.name == "nt", reason="Windows has no ctime in this sense")
def test_changed_content_is_detected_despite_equal_size_and_mtime(tmp_path: Path) -> None:
    """tar and rsync preserve times, so different content can have the same mtime."""
    file = tmp_path / "a.png"
    file.write_bytes(b"first")
    times(file, 1_000_000_000)
    before = compute_fingerprints([file], tmp_path / "index")
    changed = file.stat().st_ctime_ns
    while file.stat().st_ctime_ns == changed:
        file.write_bytes(b"other")
        times(file, 1_000_000_000)
    assert compute_fingerprints([file], tmp_path / "index") != before


def test_touched_file_is_read_again(tmp_path: Path, reads: list[str]) -> None:
    (file,) = write_photos(tmp_path, 1)
    times(file, 1_000_000_000)
    before = compute_fingerprints([file], tmp_path / "index")
    reads.clear()
    times(file, 2_000_000_000)
    assert compute_fingerprints([file], tmp_path / "index") == before
    assert reads == ["000.png"]


def test_unreadable_file_is_tried_again(tmp_path: Path) -> None:
    (good,) = write_photos(tmp_path, 1)
    folder, missing = tmp_path / "folder.png", tmp_path / "missing.png"
    folder.mkdir()
    fingerprints = compute_fingerprints([good, folder, missing], tmp_path / "index")
    assert fingerprints[1:] == [UNREADABLE, UNREADABLE]
    assert fingerprints[0] != UNREADABLE
    missing.write_bytes(good.read_bytes())
    assert compute_fingerprints([good, folder, missing], tmp_path / "index") == [
        fingerprints[0],
        UNREADABLE,
        fingerprints[0],
    ]


def test_read_error_is_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (file,) = write_photos(tmp_path, 1)

    def fail(file: Path) -> bytes:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", fail)
        assert compute_fingerprints([file], tmp_path / "index") == [UNREADABLE]
    expected = hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()
    assert compute_fingerprints([file], tmp_path / "index") == [expected]


def test_removed_file_is_unreadable(tmp_path: Path) -> None:
    (file,) = write_photos(tmp_path, 1)
    compute_fingerprints([file], tmp_path / "index")
    file.unlink()
    assert compute_fingerprints([file], tmp_path / "index") == [UNREADABLE]


@pytest.mark.parametrize(
    "damaged",
    [b"", b"{", b"\xff\xfe", b"[]", b"5", b"null", b'{"%s": 5}', b'{"%s": []}', b'{"%s": [1, 2]}', b'{"%s": null}'],
)
def test_damaged_index_is_ignored_and_rewritten(tmp_path: Path, damaged: bytes, reads: list[str]) -> None:
    files, index = write_photos(tmp_path, 2), tmp_path / "index"
    expected = compute_fingerprints(files, index)
    index.write_bytes(damaged.replace(b"%s", str(files[0]).encode()))
    assert compute_fingerprints(files, index) == expected
    reads.clear()
    assert compute_fingerprints(files, index) == expected
    assert reads == []
