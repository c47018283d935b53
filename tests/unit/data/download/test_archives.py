"""Unpacking of archives: complete or not at all, and never outside the folder."""

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

from domainwise.data.download.archives import unpack_archive
from domainwise.errors import DomainwiseError

FILES = {"kfold/photo/dog/1.jpg": b"one" * 1000, "kfold/sketch/cat/2.jpg": b"two", "notes.txt": b""}
OUTSIDE = ["../out.txt", "a/../../out.txt"]
# zipfile would rename these silently; in a tar, they stay inside the folder, as with every tar program.
NOT_PLAIN = ["/tmp/out.txt", "C:/out.txt", "c:out.txt", "a\\..\\..\\out.txt", "a/d:/x"]


@pytest.fixture(autouse=True, params=["filters", "no filters"])
def tarfile_edition(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python before 3.11.4 has no filters for tar files."""
    if request.param == "no filters":
        for name in [name for name in vars(tarfile) if name.endswith("_filter") or name == "FilterError"]:
            monkeypatch.delattr(tarfile, name)


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
def test_all_members_are_unpacked(tmp_path: Path, name: str) -> None:
    archive = make(tmp_path / name, FILES)
    reports: list[tuple[str, int, int]] = []
    target = tmp_path / "deep" / "new"
    assert unpack_archive(archive, target, on_progress=lambda *each: reports.append(each)) == target
    assert contents(target) == FILES
    assert reports == [(f"unpacking {name}", done, 3) for done in (1, 2, 3)]
    assert {path.name for path in tmp_path.iterdir()} == {name, "deep"}
    assert [path.name for path in target.parent.iterdir()] == ["new"]


def test_folders_are_readable_whatever_their_mode(tmp_path: Path) -> None:
    closed = tarfile.TarInfo("closed")
    closed.type, closed.mode = tarfile.DIRTYPE, 0
    target = unpack_archive(make_tar(tmp_path / "data.tar", FILES, closed), tmp_path / "new")
    assert stat.S_IMODE((target / "closed").stat().st_mode) & 0o700 == 0o700


def test_modes_of_a_tar_are_ignored(tmp_path: Path) -> None:
    bold = tarfile.TarInfo("bold")
    bold.mode = 0o7777
    target = unpack_archive(make_tar(tmp_path / "data.tar", FILES, bold), tmp_path / "new")
    (tmp_path / "usual").touch()
    assert (target / "bold").stat().st_mode == (tmp_path / "usual").stat().st_mode


@pytest.mark.parametrize(
    ("bad", "kind"),
    [(bad, kind) for bad in OUTSIDE for kind in ("zip", "tar", "tar.gz")] + [(bad, "zip") for bad in NOT_PLAIN],
)
def test_member_outside_the_folder_raises(tmp_path: Path, bad: str, kind: str) -> None:
    archive = make(tmp_path / f"data.{kind}", FILES | {bad: b"bad"})
    target = tmp_path / "inner" / "new"
    target.parent.mkdir()
    with pytest.raises(DomainwiseError) as caught:
        unpack_archive(archive, target)
    assert str(caught.value) == (f"refused to unpack {archive.name}: member {bad!r} is not a file or folder inside it")
    assert set(tmp_path.rglob("*")) == {archive, target.parent}


def test_name_that_no_file_can_have_raises(tmp_path: Path) -> None:
    odd = tarfile.TarInfo("odd")
    odd.pax_headers = {"path": "a\0b"}
    archive = make_tar(tmp_path / "data.tar", FILES, odd)
    with pytest.raises(DomainwiseError, match=r"refused to unpack data.tar: member 'a\\x00b'"):
        unpack_archive(archive, tmp_path / "new")


@pytest.mark.parametrize("odd", NOT_PLAIN)
def test_odd_names_in_a_tar_stay_in_the_folder(tmp_path: Path, odd: str) -> None:
    archive = make(tmp_path / "data.tar", FILES | {odd: b"odd"})
    target = unpack_archive(archive, tmp_path / "inner" / "new")
    assert len(contents(target)) == len(FILES) + 1
    assert {path for path in tmp_path.rglob("*") if path.is_file() and target not in path.parents} == {archive}


@pytest.mark.parametrize(
    ("links", "refused"),
    [
        ([link("a", "/etc")], "a"),
        ([link("a", "..")], "a"),
        ([link("a/b", "../../x")], "a/b"),
        ([link("a", "b/../../x")], "a"),
        # Each points inside by its name alone, but together they lead out.
        ([link("a", "."), link("b", "a/..")], "b"),
        ([link("a", "."), link("a/b", "..")], "a/b"),
        # The second is in another folder than its name says.
        ([link("x/y/a", "../../kfold"), link("x/y/a/up", "../../..")], "x/y/a/up"),
        ([link("a", "b/.."), link("b", ".")], "a"),
        # A copy of a symlink in another folder, before or after that symlink.
        ([link("x/y/a", "../../kfold"), link("h", "x/y/a", tarfile.LNKTYPE)], "h"),
        ([link("h", "x/y/a", tarfile.LNKTYPE), link("x/y/a", "../../kfold")], "h"),
        ([link("s", "x/y"), link("x/y/a", "../../kfold"), link("h", "s/a", tarfile.LNKTYPE)], "h"),
        ([link("h", "/etc/passwd", tarfile.LNKTYPE)], "h"),
        ([link("h", "../secret", tarfile.LNKTYPE)], "h"),
        ([link("pipe", "", tarfile.FIFOTYPE)], "pipe"),
        ([link("device", "", tarfile.CHRTYPE)], "device"),
        ([link("disk", "", tarfile.BLKTYPE)], "disk"),
        ([link("label", "", b"V")], "label"),
    ],
)
def test_link_to_the_outside_or_device_raises(tmp_path: Path, links: list[tarfile.TarInfo], refused: str) -> None:
    archive = make_tar(tmp_path / "data.tar", FILES, *links)
    with pytest.raises(DomainwiseError, match=f"refused to unpack data.tar: member '{refused}'"):
        unpack_archive(archive, tmp_path / "new")
    assert list(tmp_path.iterdir()) == [archive]


def test_nothing_is_written_through_a_link_to_the_outside(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    later = tarfile.TarInfo("b/out.txt")
    # In the second, "b" leads outside only once "a" exists.
    for links in ([link("b", "..")], [link("b", "a/.."), link("a", ".")]):
        archive = make_tar(tmp_path / "data.tar", FILES, *links, later)
        with pytest.raises(DomainwiseError, match="member 'b'"):
            unpack_archive(archive, tmp_path / "inner" / "new")
        assert set(tmp_path.rglob("*")) == {archive, tmp_path / "inner"}


def test_links_inside_the_folder_are_unpacked(tmp_path: Path) -> None:
    inside = [link("kfold/all", "../kfold/photo"), link("same.txt", "notes.txt", tarfile.LNKTYPE)]
    target = unpack_archive(make_tar(tmp_path / "data.tar.gz", FILES, *inside), tmp_path / "new")
    assert (target / "kfold/all/dog/1.jpg").read_bytes() == FILES["kfold/photo/dog/1.jpg"]
    assert (target / "same.txt").is_file()


def test_link_in_a_zip_raises(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "data.zip", FILES)
    with zipfile.ZipFile(archive, "a") as file:
        info = zipfile.ZipInfo("a")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        file.writestr(info, "/etc")
    with pytest.raises(DomainwiseError, match="member 'a' is not a file or folder"):
        unpack_archive(archive, tmp_path / "new")


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
        # After the end of the tar: gzip's own checksum and length.
        ("data.tar.gz", lambda good: good[:-8] + bytes([good[-8] ^ 0xFF]) + good[-7:]),
        ("data.tar.gz", lambda good: good[:-2]),
        ("data.tar.gz", lambda good: b"<html>quota</html>"),
        ("data.tar", lambda good: good[:1500]),
        # Truncated exactly where the second member starts, which tarfile does not notice.
        ("data.tar", lambda good: good[: 512 + 3072]),
        ("data.tar", lambda good: good[: 512 + 3072 + 100]),
        ("data.tar", lambda good: b""),
    ],
)
def test_damaged_archive_raises_and_leaves_nothing(tmp_path: Path, name: str, damage: Callable[[bytes], bytes]) -> None:
    archive = make(tmp_path / name, FILES)
    archive.write_bytes(damage(archive.read_bytes()))
    with pytest.raises(DomainwiseError, match=f"{name} is damaged .*: delete it to download it again") as caught:
        unpack_archive(archive, tmp_path / "new")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [archive]


def test_other_files_and_existing_folders_raise(tmp_path: Path) -> None:
    (tmp_path / "data.gz").write_bytes(gzip.compress(b"one file"))
    with pytest.raises(
        DomainwiseError, match=r"unsupported archive .*data\.gz; expected \.zip, \.tar, \.tar\.gz, \.tgz"
    ):
        unpack_archive(tmp_path / "data.gz", tmp_path / "new")
    with pytest.raises(DomainwiseError, match="already exists"):
        unpack_archive(make_zip(tmp_path / "data.zip", FILES), tmp_path)


def test_target_that_cannot_be_created_raises(tmp_path: Path) -> None:
    archive = make_zip(tmp_path / "data.zip", FILES)
    with pytest.raises(DomainwiseError, match=r"data\.zip could not be unpacked to .*new: Not a directory$"):
        unpack_archive(archive, archive / "new")


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_killed_process_leaves_no_folder(tmp_path: Path) -> None:
    archive, target = make_zip(tmp_path / "data.zip", FILES), tmp_path / "new"
    code = (
        "import time; from pathlib import Path; from domainwise.data.download.archives import unpack_archive; "
        "unpack_archive(Path(sys.argv[1]), Path(sys.argv[2]), on_progress=lambda *each: time.sleep(20))"
    )
    first = next(iter(FILES))
    with python_process(code, str(archive), str(target)) as child:
        wait_until(lambda: any(tmp_path.rglob(Path(first).name)))
        child.send_signal(signal.SIGKILL)
        assert child.wait(10) == -signal.SIGKILL
    assert not target.exists()
    assert contents(unpack_archive(archive, target)) == FILES
    assert {path.name for path in tmp_path.iterdir()} == {"data.zip", "new"}
