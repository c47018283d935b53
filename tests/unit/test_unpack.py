"""Archives that are unpacked whole or not at all, and those that would write elsewhere."""

import gzip
import io
import signal
import stat
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from download_server import python_process, wait_until

from domainwise.data.download.archives import unpack
from domainwise.errors import DomainwiseError

FILES = {"kfold/photo/dog/1.jpg": b"one" * 1000, "kfold/sketch/cat/2.jpg": b"two", "notes.txt": b""}
OUTSIDE = ["../out.txt", "a/../../out.txt", "/tmp/out.txt", "C:/out.txt", "c:out.txt", "a\\..\\..\\out.txt", "a/d:/x"]


def make_zip(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in files.items():
            file.writestr(name, content)
    return path


def make_tar(path: Path, files: dict[str, bytes], *others: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:" if path.suffix == ".tar" else "w:gz") as file:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
        for info in others:
            file.addfile(info)
    return path


def make(path: Path, files: dict[str, bytes]) -> Path:
    return make_zip(path, files) if path.suffix == ".zip" else make_tar(path, files)


def link(name: str, to: str, kind: bytes = tarfile.SYMTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, to
    return info


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["data.zip", "data.tar", "data.tar.gz", "data.tgz"])
def test_everything_is_unpacked_and_nothing_else_left(tmp_path: Path, name: str) -> None:
    archive = make(tmp_path / name, FILES)
    told: list[tuple[str, int, int]] = []
    into = tmp_path / "deep" / "new"
    assert unpack(archive, into, on_progress=lambda *each: told.append(each)) == into
    assert contents(into) == FILES
    assert told == [(f"unpacking {name}", done, 3) for done in (1, 2, 3)]
    assert {path.name for path in tmp_path.iterdir()} == {name, "deep"}
    assert [path.name for path in into.parent.iterdir()] == ["new"]


def test_folders_of_an_archive_can_be_read_and_removed_whatever_their_mode(tmp_path: Path) -> None:
    closed = tarfile.TarInfo("closed")
    closed.type, closed.mode = tarfile.DIRTYPE, 0
    into = unpack(make_tar(tmp_path / "data.tar", FILES, closed), tmp_path / "new")
    assert stat.S_IMODE((into / "closed").stat().st_mode) & 0o700 == 0o700


@pytest.mark.parametrize("kind", ["zip", "tar", "tar.gz"])
@pytest.mark.parametrize("bad", OUTSIDE)
def test_a_name_outside_the_folder_refuses_all_of_it(tmp_path: Path, bad: str, kind: str) -> None:
    archive = make(tmp_path / f"data.{kind}", FILES | {bad: b"bad"})
    into = tmp_path / "inner" / "new"
    into.parent.mkdir()
    with pytest.raises(DomainwiseError) as caught:
        unpack(archive, into)
    assert f"refused to unpack {archive.name}: its member {bad!r}" in str(caught.value)
    assert list(tmp_path.rglob("*")) in ([archive, into.parent], [into.parent, archive])


@pytest.mark.parametrize(
    ("links", "refused"),
    [
        ([link("a", "/etc")], "a"),
        ([link("a", "..")], "a"),
        ([link("a/b", "../../x")], "a/b"),
        ([link("a", "b/../../x")], "a"),
        ([link("a", "b\\..\\..")], "a"),
        # Each points inside by its name alone, but together they lead out.
        ([link("a", "."), link("b", "a/..")], "b"),
        ([link("a", "."), link("a/b", "..")], "a/b"),
        ([link("a", "kfold"), link("a/x", "notes.txt", tarfile.LNKTYPE)], "a/x"),
        ([link("x/y/a", "../../kfold"), link("h", "x/y/a", tarfile.LNKTYPE)], "h"),
        ([link("h", "/etc/passwd", tarfile.LNKTYPE)], "h"),
        ([link("h", "../secret", tarfile.LNKTYPE)], "h"),
        ([link("pipe", "", tarfile.FIFOTYPE)], "pipe"),
        ([link("device", "", tarfile.CHRTYPE)], "device"),
    ],
)
def test_a_link_or_device_that_leads_outside_refuses_all_of_it(
    tmp_path: Path, links: list[tarfile.TarInfo], refused: str
) -> None:
    archive = make_tar(tmp_path / "data.tar", FILES, *links)
    with pytest.raises(DomainwiseError, match=f"its member '{refused}'"):
        unpack(archive, tmp_path / "new")
    assert list(tmp_path.iterdir()) == [archive]


def test_links_within_the_folder_are_unpacked(tmp_path: Path) -> None:
    inside = [link("kfold/all", "../kfold/photo"), link("same.txt", "notes.txt", tarfile.LNKTYPE)]
    into = unpack(make_tar(tmp_path / "data.tar.gz", FILES, *inside), tmp_path / "new")
    assert (into / "kfold/all/dog/1.jpg").read_bytes() == FILES["kfold/photo/dog/1.jpg"]
    assert (into / "same.txt").is_file()


def test_a_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "data.zip", FILES)
    with zipfile.ZipFile(archive, "a") as file:
        info = zipfile.ZipInfo("a")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        file.writestr(info, "/etc")
    with pytest.raises(DomainwiseError, match="its member 'a' is neither a file"):
        unpack(archive, tmp_path / "new")


def damage_zip_content(good: bytes) -> bytes:
    place = good.index(b"kfold/photo/dog/1.jpg") + 30
    return good[:place] + bytes([good[place] ^ 0xFF]) + good[place + 1 :]


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("data.zip", lambda good: good[:-40]),
        ("data.zip", damage_zip_content),
        ("data.zip", lambda good: b"<html>quota</html>"),
        ("data.tar.gz", lambda good: good[: len(good) // 2]),
        # Past the end of the tar within: gzip's own sum and length.
        ("data.tar.gz", lambda good: good[:-8] + bytes([good[-8] ^ 0xFF]) + good[-7:]),
        ("data.tar.gz", lambda good: good[:-2]),
        ("data.tar.gz", lambda good: b"<html>quota</html>"),
        ("data.tar", lambda good: good[:1500]),
        # Cut exactly where the second member starts: tarfile sees nothing wrong.
        ("data.tar", lambda good: good[: 512 + 3072]),
        ("data.tar", lambda good: good[: 512 + 3072 + 100]),
        ("data.tar", lambda good: b""),
    ],
)
def test_a_damaged_archive_is_told_and_leaves_nothing(
    tmp_path: Path, name: str, damage: Callable[[bytes], bytes]
) -> None:
    archive = make(tmp_path / name, FILES)
    archive.write_bytes(damage(archive.read_bytes()))
    with pytest.raises(DomainwiseError, match=f"{name} is damaged .*: delete it to download it again") as caught:
        unpack(archive, tmp_path / "new")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [archive]


def test_other_files_and_folders_that_are_there_are_refused(tmp_path: Path) -> None:
    (tmp_path / "data.gz").write_bytes(gzip.compress(b"one file"))
    with pytest.raises(DomainwiseError, match=r"it is none of \.zip, \.tar, \.tar\.gz, \.tgz"):
        unpack(tmp_path / "data.gz", tmp_path / "new")
    with pytest.raises(DomainwiseError, match="is already there"):
        unpack(make_zip(tmp_path / "data.zip", FILES), tmp_path)


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "data.zip", FILES)
    with pytest.raises(DomainwiseError, match=r"^cannot unpack .*data\.zip to .*new: Not a directory$"):
        unpack(archive, archive / "new")


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_killed_in_the_middle_it_leaves_no_folder_and_can_be_done_again(tmp_path: Path) -> None:
    archive, into = make_zip(tmp_path / "data.zip", FILES), tmp_path / "new"
    code = (
        "import time; from pathlib import Path; from domainwise.data.download.archives import unpack; "
        "unpack(Path(sys.argv[1]), Path(sys.argv[2]), on_progress=lambda *each: time.sleep(20))"
    )
    first = next(iter(FILES))
    with python_process(code, str(archive), str(into)) as child:
        wait_until(lambda: any(tmp_path.rglob(Path(first).name)))
        child.send_signal(signal.SIGKILL)
        assert child.wait(10) == -signal.SIGKILL
    assert not into.exists()
    assert contents(unpack(archive, into)) == FILES
    assert {path.name for path in tmp_path.iterdir()} == {"data.zip", "new"}
