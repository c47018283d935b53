"""Downloads from a real server: complete, resumed, changed, truncated and wrong."""

import hashlib
import io
import random
import signal
import socket
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from download_server import FileServer, Served, file_server, python_process, wait_until

from domainwise.data.download.fetch import fetch_file, parse_checksum
from domainwise.errors import DomainwiseError


def zip_noise(seed: int, size: int = 40_000) -> bytes:
    """A zip file of this size, the same in every process: a `ZipInfo` has no time of its own."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr(zipfile.ZipInfo("x"), random.Random(seed).randbytes(size - 100))
    return buffer.getvalue()


BODY = zip_noise(0)
OTHER = zip_noise(1)
SHA256 = "sha256:" + hashlib.sha256(BODY).hexdigest()
MD5 = "md5:" + hashlib.md5(BODY, usedforsecurity=False).hexdigest()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with file_server() as server:
        yield server


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "new" / "data.zip"


def leave_partial(server: FileServer, target: Path, served: Served, size: int = 15_000) -> None:
    """Let a first attempt end after `size` bytes of `served`."""
    served.cut_after = size
    server.files["data.zip"] = served
    with pytest.raises(DomainwiseError, match=f"connection lost after {size} of 40000 bytes"):
        fetch_file([server.url("data.zip")], target)
    assert not target.exists()
    assert partial(target).read_bytes() == served.body[:size]
    served.cut_after = None
    server.requests.clear()


def partial(target: Path) -> Path:
    return target.with_name("data.zip.partial")


def files_next_to(target: Path) -> set[str]:
    return {path.name for path in target.parent.iterdir()}


def test_download_with_checksum_file_and_progress(server: FileServer, target: Path) -> None:
    server.files["data.zip"] = Served(BODY)
    reports: list[tuple[str, int, int]] = []
    assert fetch_file([server.url("data.zip")], target, on_progress=lambda *each: reports.append(each)) == target
    assert target.read_bytes() == BODY
    assert target.with_name("data.zip.sha256").read_text() == f"{SHA256.removeprefix('sha256:')}  data.zip\n"
    assert files_next_to(target) == {"data.zip", "data.zip.sha256"}
    received = [done for what, done, _ in reports if what == "data.zip"]
    assert received[0] == 0
    assert received[-1] == 40_000
    assert received == sorted(received)
    assert {total for _, _, total in reports} == {40_000}
    assert server.requests[0].byte_range is None


def test_unknown_length_is_reported_as_0(server: FileServer, target: Path) -> None:
    server.files["data.zip"] = Served(BODY, says_length=False)
    reports: list[int] = []
    fetch_file(
        [server.url("data.zip")],
        target,
        on_progress=lambda what, _, total: reports.append((what == "data.zip") * total),
    )
    assert set(reports) == {0}
    assert target.read_bytes() == BODY


@pytest.mark.parametrize("checksum", [SHA256, MD5, MD5.upper().replace("MD5", "md5")])
def test_correct_checksum_is_accepted(server: FileServer, target: Path, checksum: str) -> None:
    server.files["data.zip"] = Served(BODY)
    assert fetch_file([server.url("data.zip")], target, checksum=checksum).read_bytes() == BODY


@pytest.mark.parametrize("good", [SHA256, MD5])
def test_wrong_checksum_raises_and_leaves_nothing(server: FileServer, target: Path, good: str) -> None:
    server.files["data.zip"] = Served(OTHER)
    algorithm, digest = good.split(":")
    actual = hashlib.new(algorithm, OTHER, usedforsecurity=False).hexdigest()
    with pytest.raises(DomainwiseError) as caught:
        fetch_file([server.url("data.zip")], target, checksum=good)
    assert f"{server.url('data.zip')}: wrong checksum: {algorithm} {actual}, expected {digest}" in str(caught.value)
    assert files_next_to(target) == set()


@pytest.mark.parametrize("text", ["sha1:" + "0" * 40, "0" * 64, "md5:" + "0" * 31, "sha256:" + "g" * 64])
def test_invalid_checksum_raises(text: str) -> None:
    with pytest.raises(DomainwiseError, match="expected sha256:<64 hex digits>"):
        parse_checksum(text)


def test_existing_target_is_returned_without_a_request(server: FileServer, target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(BODY)
    assert fetch_file([server.url("data.zip")], target) == target
    assert fetch_file([server.url("data.zip")], target, checksum=SHA256) == target
    assert server.requests == []


def test_existing_target_with_wrong_checksum_raises_and_is_kept(server: FileServer, target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(OTHER)
    with pytest.raises(
        DomainwiseError, match=f"data.zip has the wrong checksum: md5 .*, expected {MD5[4:]}; delete it"
    ):
        fetch_file([server.url("data.zip")], target, checksum=MD5)
    assert target.read_bytes() == OTHER


@pytest.mark.parametrize(
    "headers",
    [{"ETag": '"one"'}, {"Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}, {"ETag": 'W/"x"', "Last-Modified": "then"}],
)
def test_resume_requests_only_the_rest(server: FileServer, target: Path, headers: dict[str, str]) -> None:
    leave_partial(server, target, Served(BODY, headers))
    reports: list[int] = []
    fetch_file([server.url("data.zip")], target, on_progress=lambda what, done, _: reports.append(done))
    (request,) = server.requests
    assert (request.status, request.byte_range, request.sent) == (206, "bytes=15000-", 25_000)
    assert request.if_range == list(headers.values())[-1]
    assert reports[0] == 15_000
    assert target.read_bytes() == BODY
    assert files_next_to(target) == {"data.zip", "data.zip.sha256"}


def test_server_without_ranges_restarts_the_download(server: FileServer, target: Path) -> None:
    leave_partial(server, target, Served(BODY))
    server.files["data.zip"].takes_ranges = False
    assert fetch_file([server.url("data.zip")], target).read_bytes() == BODY
    assert [(request.status, request.sent) for request in server.requests] == [(200, 40_000)]


@pytest.mark.parametrize("headers", [{}, {"ETag": 'W/"weak"'}])
def test_partial_download_without_version_is_not_resumed(
    server: FileServer, target: Path, headers: dict[str, str]
) -> None:
    leave_partial(server, target, Served(BODY, headers))
    assert fetch_file([server.url("data.zip")], target).read_bytes() == BODY
    assert server.requests[0].byte_range is None


@pytest.mark.parametrize("takes_if_range", [True, False])
def test_changed_file_restarts_the_download(server: FileServer, target: Path, takes_if_range: bool) -> None:
    leave_partial(server, target, Served(BODY))
    server.files["data.zip"] = Served(OTHER, {"ETag": '"two"'}, takes_if_range=takes_if_range)
    assert fetch_file([server.url("data.zip")], target).read_bytes() == OTHER
    assert [request.status for request in server.requests] == ([200] if takes_if_range else [206, 200])


def test_part_from_a_wrong_offset_restarts_the_download(server: FileServer, target: Path) -> None:
    leave_partial(server, target, Served(BODY))
    server.files["data.zip"].misses_by = 1_000
    assert fetch_file([server.url("data.zip")], target).read_bytes() == BODY
    assert [request.status for request in server.requests] == [206, 200]


def test_changed_file_is_resumed_as_the_new_version(server: FileServer, target: Path) -> None:
    leave_partial(server, target, Served(BODY), 15_000)
    leave_partial(server, target, Served(OTHER, {"ETag": '"two"'}), 9_000)
    assert fetch_file([server.url("data.zip")], target).read_bytes() == OTHER
    assert [request.sent for request in server.requests] == [31_000]


@pytest.mark.parametrize(("checksum", "says_total"), [(None, True), (SHA256, True), (SHA256, False)])
def test_complete_partial_download_is_accepted(
    server: FileServer, target: Path, checksum: str | None, says_total: bool
) -> None:
    leave_partial(server, target, Served(BODY, says_total=says_total))
    partial(target).write_bytes(BODY)
    assert fetch_file([server.url("data.zip")], target, checksum=checksum).read_bytes() == BODY
    assert [(request.status, request.sent) for request in server.requests] == [(416, 0)]


@pytest.mark.parametrize(
    ("kept", "checksum", "says_total"),
    [(BODY + b"more", None, True), (BODY, None, False), (OTHER, SHA256, True), (OTHER, MD5, False)],
)
def test_wrong_partial_download_is_restarted(
    server: FileServer, target: Path, kept: bytes, checksum: str | None, says_total: bool
) -> None:
    leave_partial(server, target, Served(BODY, says_total=says_total))
    partial(target).write_bytes(kept)
    assert fetch_file([server.url("data.zip")], target, checksum=checksum).read_bytes() == BODY
    assert [request.status for request in server.requests] == [416, 200]


def test_mirrors_are_tried_in_order(server: FileServer, target: Path) -> None:
    server.files["wrong.zip"], server.files["data.zip"] = Served(OTHER), Served(BODY)
    server.files["after.zip"] = Served(BODY)
    urls = [server.url(name) for name in ("absent.zip", "wrong.zip", "data.zip", "after.zip")]
    assert fetch_file(urls, target, checksum=SHA256).read_bytes() == BODY
    assert [request.path for request in server.requests] == ["/absent.zip", "/wrong.zip", "/data.zip"]


def test_partial_download_is_not_resumed_from_another_url(server: FileServer, target: Path) -> None:
    leave_partial(server, target, Served(BODY))
    server.files["mirror.zip"] = Served(OTHER)
    assert fetch_file([server.url("mirror.zip")], target).read_bytes() == OTHER


def test_error_lists_every_url_and_what_to_do(server: FileServer, target: Path) -> None:
    server.files["page"] = Served(b"<html>quota</html>", {"Content-Type": "text/html; charset=utf-8"})
    server.files["denied"] = Served(b"", {}, status=403)
    urls = [server.url(name) for name in ("absent.zip", "page", "denied")]
    with pytest.raises(DomainwiseError) as caught:
        fetch_file(urls, target)
    message = str(caught.value)
    assert message.startswith(f"data.zip could not be downloaded: {urls[0]}: HTTP 404 Not Found; {urls[1]}: got ")
    assert "a web page instead of the file" in message
    assert f"{urls[2]}: HTTP 403 Forbidden" in message
    assert message.endswith(f"or download it by hand and save it as {target}")
    assert "\n" not in message
    assert files_next_to(target) == set()


def test_web_page_keeps_the_partial_download(server: FileServer, target: Path) -> None:
    leave_partial(server, target, Served(BODY))
    server.files["data.zip"] = Served(b"<html>quota</html>", {"Content-Type": "text/html"})
    with pytest.raises(DomainwiseError, match="web page"):
        fetch_file([server.url("data.zip")], target)
    server.files["data.zip"] = Served(BODY)
    server.requests.clear()
    assert fetch_file([server.url("data.zip")], target).read_bytes() == BODY
    assert [request.sent for request in server.requests] == [25_000]


PAGE = b"\xef\xbb\xbf\n<!DOCTYPE html><html><head><title>Virus scan warning</title>" + b" " * 30_000


def test_web_page_that_claims_to_be_an_archive_is_not_kept(server: FileServer, target: Path) -> None:
    server.files["data.zip"] = Served(PAGE, {"Content-Type": "application/octet-stream", "ETag": '"1"'})
    server.files["mirror.zip"] = Served(BODY)
    with pytest.raises(DomainwiseError) as caught:
        fetch_file([server.url("data.zip")], target, page="https://example.org/view")
    assert "got a web page instead of the file (quota exceeded, or confirmation or sign-in required)" in str(
        caught.value
    )
    assert str(caught.value).endswith(f"or download it by hand from https://example.org/view and save it as {target}")
    assert files_next_to(target) == set()
    assert fetch_file([server.url("data.zip"), server.url("mirror.zip")], target).read_bytes() == BODY


def make_tar(mode: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as file:  # type: ignore[call-overload]
        file.addfile(tarfile.TarInfo("x"))
    return buffer.getvalue()


ARCHIVES = {".zip": BODY, ".tar": make_tar("w"), ".tar.gz": make_tar("w:gz"), ".tgz": make_tar("w:gz")}


@pytest.mark.parametrize("suffix", ARCHIVES)
@pytest.mark.parametrize("wrong", ["other archive", "truncated", "text", "empty"])
def test_next_mirror_is_tried_if_a_file_is_not_the_archive(
    server: FileServer, tmp_path: Path, suffix: str, wrong: str
) -> None:
    target, good = tmp_path / f"data{suffix}", ARCHIVES[suffix]
    other = make_tar("w:gz") if suffix in (".zip", ".tar") else BODY
    bodies = {"other archive": other, "truncated": good[:20], "text": b'{"error": "rate limit"}', "empty": b""}
    server.files["wrong"], server.files["good"] = Served(bodies[wrong]), Served(good)
    with pytest.raises(DomainwiseError) as caught:
        fetch_file([server.url("wrong")], target)
    assert f"{server.url('wrong')}: got a file that is not a {suffix} archive; try" in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert fetch_file([server.url("wrong"), server.url("good")], target).read_bytes() == good


def test_other_files_may_have_any_content(server: FileServer, tmp_path: Path) -> None:
    server.files["list.txt"] = Served(b"a\n")
    assert fetch_file([server.url("list.txt")], tmp_path / "list.txt").read_bytes() == b"a\n"


@pytest.mark.parametrize("checksum", [None, f"md5:{'0' * 32}"])
def test_web_page_saved_by_hand_is_not_used(target: Path, checksum: str | None) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(PAGE)
    with pytest.raises(DomainwiseError, match=r"data\.zip is a web page, not an archive; replace it, or delete it"):
        fetch_file([], target, checksum=checksum)
    assert target.exists()


def test_unrequested_part_raises(server: FileServer, target: Path) -> None:
    server.files["data.zip"] = Served(BODY[5:], status=206)
    with pytest.raises(DomainwiseError, match="HTTP 206 Partial Content"):
        fetch_file([server.url("data.zip")], target)


def test_unreachable_host_raises(monkeypatch: pytest.MonkeyPatch, target: Path) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unheard.getsockname()[1]}/data.zip"
        with pytest.raises(DomainwiseError) as caught:
            fetch_file([url], target)
    assert f"{url}: " in str(caught.value)
    assert "refused" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unresponsive_server_times_out(server: FileServer, target: Path) -> None:
    server.files["data.zip"] = Served(BODY, hold_after=5_000)
    with pytest.raises(DomainwiseError, match=r"no response within 0\.2 seconds"):
        fetch_file([server.url("data.zip")], target, timeout=0.2)
    assert partial(target).read_bytes() == BODY[:5_000]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_full_disk_raises(server: FileServer, target: Path) -> None:
    server.files["data.zip"] = Served(BODY)
    target.parent.mkdir()
    partial(target).symlink_to("/dev/full")
    with pytest.raises(DomainwiseError, match=f"^{target} could not be written: No space left on device$"):
        fetch_file([server.url("data.zip")], target)


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_killed_download_is_resumed(server: FileServer, target: Path) -> None:
    server.files["data.zip"] = Served(BODY, hold_after=20_000)
    code = "from pathlib import Path; from domainwise.data.download.fetch import fetch_file; "
    with python_process(
        code + "fetch_file([sys.argv[1]], Path(sys.argv[2]))", server.url("data.zip"), str(target)
    ) as child:
        wait_until(lambda: partial(target).exists() and partial(target).stat().st_size == 20_000)
        child.send_signal(signal.SIGKILL)
        assert child.wait(10) == -signal.SIGKILL
    server.files["data.zip"].go_on.set()
    assert files_next_to(target) == {"data.zip.partial", "data.zip.partial.from"}
    assert fetch_file([server.url("data.zip")], target, checksum=SHA256).read_bytes() == BODY
    assert (server.requests[1].status, server.requests[1].byte_range) == (206, "bytes=20000-")
    assert server.requests[1].sent == 20_000
