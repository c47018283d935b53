"""Download of a dataset from archives to its folder: once, resumed, and shared between processes."""

import errno
import hashlib
import io
import re
import signal
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from download_server import FileServer, Served, file_server, python_process, wait_until
from torchvision.datasets import MNIST

from domainwise.data.download.archives import find_parent
from domainwise.data.download.dataset import download_dataset
from domainwise.data.download.fetch import parse_checksum
from domainwise.data.download.sources import SOURCES, RemoteFile, Source
from domainwise.data.published_listings import SPAWRIOUS
from domainwise.errors import DomainwiseError

CHILD = """
from functools import partial
from pathlib import Path
from domainwise.data.download.dataset import download_dataset
from domainwise.data.download.sources import RemoteFile, Source
from domainwise.data.download.archives import find_parent
files = (RemoteFile("tiny.zip", (sys.argv[1],), None),)
source = Source("TINY", "", "", files, partial(find_parent, names=("photo",)))
print(download_dataset("tiny", Path(sys.argv[2]), source=source, on_progress=lambda what, *_: print(what, flush=True)))
"""


def zipped(**files: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name, content in files.items():
            file.writestr(name.replace("__", "/") + ".jpg", content)
    return buffer.getvalue()


ARCHIVE = zipped(kfold__photo__dog__1="x" * 30_000, kfold__photo__cat__2="two")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with file_server() as server:
        server.files["tiny.zip"] = Served(ARCHIVE)
        server.files["list.txt"] = Served(b"hello\n")
        yield server


@pytest.fixture
def source(server: FileServer) -> Source:
    files = (
        RemoteFile("tiny.zip", (server.url("tiny.zip"),), "sha256:" + hashlib.sha256(ARCHIVE).hexdigest()),
        RemoteFile("list.txt", (server.url("list.txt"),), None),
    )
    return Source("TINY", "home", "free", files, partial(find_parent, names=["photo"]))


def check_folder(data_dir: Path) -> None:
    files = {path.relative_to(data_dir).as_posix() for path in data_dir.rglob("*") if path.is_file()}
    assert files == {
        "TINY/photo/dog/1.jpg",
        "TINY/photo/cat/2.jpg",
        ".downloads/TINY.lock",
        ".downloads/TINY.sha256",
    }
    assert not (data_dir / ".downloads" / "TINY").exists()
    assert (data_dir / "TINY" / "photo" / "cat" / "2.jpg").read_text() == "two"


def test_dataset_is_downloaded_once(server: FileServer, source: Source, tmp_path: Path) -> None:
    reports: list[str] = []
    data_dir = tmp_path / "new" / "data"
    assert (
        download_dataset("tiny", data_dir, source=source, on_progress=lambda what, *_: reports.append(what))
        == data_dir / "TINY"
    )
    check_folder(data_dir)
    sums = [(hashlib.sha256(served.body).hexdigest(), name) for name, served in sorted(server.files.items())]
    assert (data_dir / ".downloads" / "TINY.sha256").read_text() == "".join(f"{sum_}  {name}\n" for sum_, name in sums)
    assert list(dict.fromkeys(reports)) == [
        "tiny.zip",
        "verifying tiny.zip",
        "list.txt",
        "verifying list.txt",
        "unpacking tiny.zip",
        "arranging TINY",
    ]
    server.files.clear()
    assert download_dataset("tiny", data_dir, source=source) == data_dir / "TINY"
    assert len(server.requests) == 2


def test_existing_folder_is_not_changed(server: FileServer, source: Source, tmp_path: Path) -> None:
    (tmp_path / "TINY").mkdir()
    assert download_dataset("tiny", tmp_path, source=source) == tmp_path / "TINY"
    assert list(tmp_path.rglob("*")) == [tmp_path / "TINY"]
    assert server.requests == []


def test_archives_left_by_a_killed_process_are_removed(source: Source, tmp_path: Path) -> None:
    (tmp_path / "TINY").mkdir()
    left = tmp_path / ".downloads" / "TINY" / "tiny.zip"
    left.parent.mkdir(parents=True)
    left.write_bytes(ARCHIVE)
    download_dataset("tiny", tmp_path, source=source)
    assert not left.parent.exists()


def test_file_downloaded_by_hand_is_used(server: FileServer, source: Source, tmp_path: Path) -> None:
    del server.files["tiny.zip"]
    by_hand = tmp_path / ".downloads" / "TINY" / "tiny.zip"
    with pytest.raises(DomainwiseError, match=f"by hand and save it as {re.escape(str(by_hand))}$"):
        download_dataset("tiny", tmp_path, source=source)
    by_hand.write_bytes(ARCHIVE)
    download_dataset("tiny", tmp_path, source=source)
    check_folder(tmp_path)


def test_archives_are_kept_when_a_later_step_fails(server: FileServer, source: Source, tmp_path: Path) -> None:
    def fail(unpacked: Path) -> Path:
        (unpacked / "tiny.zip" / "kfold" / "photo").rename(unpacked / "half-arranged")
        raise DomainwiseError("not today")

    with pytest.raises(DomainwiseError, match=r"^not today$"):
        download_dataset("tiny", tmp_path, source=Source("TINY", "", "", source.files, fail))
    assert not (tmp_path / "TINY").exists()
    assert {path.name for path in (tmp_path / ".downloads" / "TINY").iterdir()} == {
        name + end for name in ("tiny.zip", "list.txt") for end in ("", ".sha256")
    }
    download_dataset("tiny", tmp_path, source=source)
    check_folder(tmp_path)
    assert len(server.requests) == 2


def test_partially_arranged_folder_is_not_used(source: Source, tmp_path: Path) -> None:
    stale = tmp_path / ".downloads" / "TINY" / "unpacked" / "photo" / "stale.jpg"
    stale.parent.mkdir(parents=True)
    stale.write_text("stale")
    download_dataset("tiny", tmp_path, source=source)
    check_folder(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_killed_download_of_a_dataset_is_resumed(server: FileServer, source: Source, tmp_path: Path) -> None:
    server.files["tiny.zip"].hold_after = 10_000
    half = tmp_path / ".downloads" / "TINY" / "tiny.zip.partial"
    with python_process(CHILD, server.url("tiny.zip"), str(tmp_path)) as child:
        wait_until(lambda: half.exists() and half.stat().st_size == 10_000)
        child.send_signal(signal.SIGKILL)
        assert child.wait(10) == -signal.SIGKILL
    server.files["tiny.zip"].go_on.set()
    download_dataset("tiny", tmp_path, source=source)
    check_folder(tmp_path)
    assert [request.sent for request in server.requests if request.path == "/tiny.zip"][1] == len(ARCHIVE) - 10_000


@pytest.mark.skipif(sys.platform == "win32", reason="needs flock")
def test_two_processes_download_once(server: FileServer, tmp_path: Path) -> None:
    served = server.files["tiny.zip"]
    served.hold_after = 10_000
    arguments = (CHILD, server.url("tiny.zip"), str(tmp_path))
    with python_process(*arguments) as first:
        wait_until(lambda: bool(server.requests))
        with python_process(*arguments) as second:
            assert second.stdout is not None
            assert second.stdout.readline() == "waiting for another process to download tiny\n"
            served.go_on.set()
            output, errors = second.communicate(timeout=10)
        first_said, first_errors = first.communicate(timeout=10)
    assert (first.returncode, second.returncode) == (0, 0), first_errors + errors
    assert output == f"{tmp_path / 'TINY'}\n"
    assert "arranging TINY" in first_said
    assert len(server.requests) == 1
    check_folder(tmp_path)


def test_invalid_data_folder_raises(source: Source, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(DomainwiseError, match=r"^tiny could not be prepared in .*file: Not a directory$"):
        download_dataset("tiny", tmp_path / "file", source=source)


def test_read_only_data_folder_raises(source: Source, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(folder: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(folder))

    # Permissions of files do not bind the superuser.
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(DomainwiseError, match=r"^tiny could not be prepared in .*: Permission denied$"):
        download_dataset("tiny", tmp_path, source=source)


def test_unknown_dataset_suggests_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(DomainwiseError, match="unknown dataset to download 'pac'; did you mean 'pacs'"):
        download_dataset("pac", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_nico_raises_with_instructions(tmp_path: Path) -> None:
    with pytest.raises(DomainwiseError) as caught:
        download_dataset("nico", tmp_path)
    output = str(caught.value)
    assert output.startswith("dataset nico cannot be downloaded automatically: in the data folder, put the images")
    assert "NICO/<class>/<context>/*.jpg" in output
    assert "NICO/mixed_split_corrected" in output
    assert "\n" not in output


def test_error_says_where_copies_are(server: FileServer, source: Source, tmp_path: Path) -> None:
    server.files["tiny.zip"] = Served(b"<!doctype html>Sign in", {"Content-Type": "application/zip"})
    with pytest.raises(DomainwiseError) as caught:
        download_dataset("tiny", tmp_path, source=replace(source, copies="--dataset hf:owner/tiny"))
    assert "got a web page instead of the file" in str(caught.value)
    assert str(caught.value).endswith(
        f"save it as {tmp_path / '.downloads' / 'TINY' / 'tiny.zip'}; copies elsewhere: --dataset hf:owner/tiny"
    )


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_is_complete(name: str) -> None:
    source = SOURCES[name]
    assert source.homepage.startswith("http")
    assert source.licence
    assert bool(source.files) != bool(source.instructions)
    assert bool(source.files) == bool(source.arrange)
    assert source.files or not source.megabytes
    assert len({file.name for file in source.files}) == len(source.files)
    for file in source.files:
        assert Path(file.name).name == file.name
        assert file.urls
        assert all(urlsplit(url).scheme in ("http", "https") and urlsplit(url).hostname for url in file.urls)
        if file.checksum:
            parse_checksum(file.checksum)


def test_folders_equal_those_of_domainbed_and_wilds() -> None:
    assert {name: source.folder for name, source in SOURCES.items()} == {
        "mnist": "MNIST",
        "colored_mnist": "MNIST",
        "rotated_mnist": "MNIST",
        "pacs": "PACS",
        "vlcs": "VLCS",
        "office_home": "office_home",
        "terra_incognita": "terra_incognita",
        "domainnet": "domain_net",
        "nico": "NICO",
        "sviro": "sviro",
        **dict.fromkeys(SPAWRIOUS, "spawrious224"),
        "camelyon17": "camelyon17_v1.0",
        "fmow": "fmow_v1.1",
        "imagenet_r": "imagenet-r",
        "imagenet_a": "imagenet-a",
        "imagenet_sketch": "imagenet-sketch",
        "imagenet_v2": "imagenetv2-matched-frequency-format-val",
    }


def test_mnist_checksums_equal_torchvisions() -> None:
    files = SOURCES["mnist"].files
    assert [(file.name, file.checksum) for file in files] == [(name, f"md5:{md5}") for name, md5 in MNIST.resources]
    assert all(list(file.urls) == [mirror + file.name for mirror in MNIST.mirrors] for file in files)
