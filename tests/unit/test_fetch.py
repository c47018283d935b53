"""Downloads from a real server: whole, resumed, changed, cut, wrong and refused."""

import hashlib
import random
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from download_server import FileServer, Served, file_server, python_process, wait_until

from domainwise.data.download.fetch import fetch, parse_checksum
from domainwise.errors import DomainwiseError

BODY = random.Random(0).randbytes(40_000)
OTHER = random.Random(1).randbytes(40_000)
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


def leave_half(server: FileServer, target: Path, served: Served, size: int = 15_000) -> None:
    """Has a first try end after `size` bytes of `served`."""
    served.cut_after = size
    server.files["data.zip"] = served
    with pytest.raises(DomainwiseError, match=f"ended after {size} of 40000 bytes"):
        fetch([server.url("data.zip")], target)
    assert not target.exists()
    assert partial(target).read_bytes() == served.body[:size]
    served.cut_after = None
    server.asked.clear()


def partial(target: Path) -> Path:
    return target.with_name("data.zip.partial")


def left_beside(target: Path) -> set[str]:
    return {path.name for path in target.parent.iterdir()}


def test_a_file_arrives_with_its_sum_and_progress(server: FileServer, target: Path) -> None:
    server.files["data.zip"] = Served(BODY)
    told: list[tuple[str, int, int]] = []
    assert fetch([server.url("data.zip")], target, on_progress=lambda *each: told.append(each)) == target
    assert target.read_bytes() == BODY
    assert target.with_name("data.zip.sha256").read_text() == f"{SHA256.removeprefix('sha256:')}  data.zip\n"
    assert left_beside(target) == {"data.zip", "data.zip.sha256"}
    bytes_told = [done for what, done, _ in told if what == "data.zip"]
    assert bytes_told[0] == 0
    assert bytes_told[-1] == 40_000
    assert bytes_told == sorted(bytes_told)
    assert {total for _, _, total in told} == {40_000}
    assert server.asked[0].byte_range is None


def test_a_length_that_the_server_does_not_say_is_zero(server: FileServer, target: Path) -> None:
    server.files["data.zip"] = Served(BODY, says_length=False)
    told: list[int] = []
    fetch(
        [server.url("data.zip")], target, on_progress=lambda what, _, total: told.append((what == "data.zip") * total)
    )
    assert set(told) == {0}
    assert target.read_bytes() == BODY


@pytest.mark.parametrize("checksum", [SHA256, MD5, MD5.upper().replace("MD5", "md5")])
def test_a_right_checksum_is_accepted(server: FileServer, target: Path, checksum: str) -> None:
    server.files["data.zip"] = Served(BODY)
    assert fetch([server.url("data.zip")], target, checksum=checksum).read_bytes() == BODY


@pytest.mark.parametrize("good", [SHA256, MD5])
def test_a_wrong_checksum_leaves_nothing_and_says_both(server: FileServer, target: Path, good: str) -> None:
    server.files["data.zip"] = Served(OTHER)
    algorithm, digest = good.split(":")
    found = hashlib.new(algorithm, OTHER, usedforsecurity=False).hexdigest()
    with pytest.raises(DomainwiseError) as caught:
        fetch([server.url("data.zip")], target, checksum=good)
    assert f"{server.url('data.zip')}: its {algorithm} is {found}, but should be {digest}" in str(caught.value)
    assert left_beside(target) == set()


@pytest.mark.parametrize("text", ["sha1:" + "0" * 40, "0" * 64, "md5:" + "0" * 31, "sha256:" + "g" * 64])
def test_a_checksum_that_cannot_match_is_refused(text: str) -> None:
    with pytest.raises(DomainwiseError, match="a checksum is written sha256:<64 hex digits>"):
        parse_checksum(text)


def test_a_target_that_is_there_is_returned_unasked(server: FileServer, target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(BODY)
    assert fetch([server.url("data.zip")], target) == target
    assert fetch([server.url("data.zip")], target, checksum=SHA256) == target
    assert server.asked == []


def test_a_target_that_is_there_but_wrong_is_kept_and_told(server: FileServer, target: Path) -> None:
    target.parent.mkdir()
    target.write_bytes(OTHER)
    with pytest.raises(DomainwiseError, match=f"data.zip is not the file it should be: .* should be {MD5[4:]}"):
        fetch([server.url("data.zip")], target, checksum=MD5)
    assert target.read_bytes() == OTHER


@pytest.mark.parametrize(
    "headers",
    [{"ETag": '"one"'}, {"Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}, {"ETag": 'W/"x"', "Last-Modified": "then"}],
)
def test_only_the_rest_is_asked_for(server: FileServer, target: Path, headers: dict[str, str]) -> None:
    leave_half(server, target, Served(BODY, headers))
    told: list[int] = []
    fetch([server.url("data.zip")], target, on_progress=lambda what, done, _: told.append(done))
    (asked,) = server.asked
    assert (asked.status, asked.byte_range, asked.sent) == (206, "bytes=15000-", 25_000)
    assert asked.if_range == list(headers.values())[-1]
    assert told[0] == 15_000
    assert target.read_bytes() == BODY
    assert left_beside(target) == {"data.zip", "data.zip.sha256"}


def test_a_server_that_ignores_ranges_starts_it_over(server: FileServer, target: Path) -> None:
    leave_half(server, target, Served(BODY))
    server.files["data.zip"].takes_ranges = False
    assert fetch([server.url("data.zip")], target).read_bytes() == BODY
    assert [(asked.status, asked.sent) for asked in server.asked] == [(200, 40_000)]


@pytest.mark.parametrize("headers", [{}, {"ETag": 'W/"weak"'}])
def test_a_half_of_no_known_version_is_not_continued(server: FileServer, target: Path, headers: dict[str, str]) -> None:
    leave_half(server, target, Served(BODY, headers))
    assert fetch([server.url("data.zip")], target).read_bytes() == BODY
    assert server.asked[0].byte_range is None


@pytest.mark.parametrize("takes_if_range", [True, False])
def test_a_changed_file_is_not_glued_to_an_old_half(server: FileServer, target: Path, takes_if_range: bool) -> None:
    leave_half(server, target, Served(BODY))
    server.files["data.zip"] = Served(OTHER, {"ETag": '"two"'}, takes_if_range=takes_if_range)
    assert fetch([server.url("data.zip")], target).read_bytes() == OTHER
    assert [asked.status for asked in server.asked] == ([200] if takes_if_range else [206, 200])


def test_a_part_from_another_place_is_not_glued_on(server: FileServer, target: Path) -> None:
    leave_half(server, target, Served(BODY))
    server.files["data.zip"].misses_by = 1_000
    assert fetch([server.url("data.zip")], target).read_bytes() == BODY
    assert [asked.status for asked in server.asked] == [206, 200]


def test_a_changed_file_that_is_cut_again_is_continued_as_the_new_one(server: FileServer, target: Path) -> None:
    leave_half(server, target, Served(BODY), 15_000)
    leave_half(server, target, Served(OTHER, {"ETag": '"two"'}), 9_000)
    assert fetch([server.url("data.zip")], target).read_bytes() == OTHER
    assert [asked.sent for asked in server.asked] == [31_000]


@pytest.mark.parametrize(("checksum", "says_total"), [(None, True), (SHA256, True), (SHA256, False)])
def test_a_half_that_is_whole_already_is_accepted(
    server: FileServer, target: Path, checksum: str | None, says_total: bool
) -> None:
    leave_half(server, target, Served(BODY, says_total=says_total))
    partial(target).write_bytes(BODY)
    assert fetch([server.url("data.zip")], target, checksum=checksum).read_bytes() == BODY
    assert [(asked.status, asked.sent) for asked in server.asked] == [(416, 0)]


@pytest.mark.parametrize(
    ("kept", "checksum", "says_total"),
    [(BODY + b"more", None, True), (BODY, None, False), (OTHER, SHA256, True), (OTHER, MD5, False)],
)
def test_a_half_that_is_too_much_or_wrong_is_started_over(
    server: FileServer, target: Path, kept: bytes, checksum: str | None, says_total: bool
) -> None:
    leave_half(server, target, Served(BODY, says_total=says_total))
    partial(target).write_bytes(kept)
    assert fetch([server.url("data.zip")], target, checksum=checksum).read_bytes() == BODY
    assert [asked.status for asked in server.asked] == [416, 200]


def test_mirrors_are_tried_in_order(server: FileServer, target: Path) -> None:
    server.files["wrong.zip"], server.files["data.zip"] = Served(OTHER), Served(BODY)
    server.files["after.zip"] = Served(BODY)
    urls = [server.url(name) for name in ("absent.zip", "wrong.zip", "data.zip", "after.zip")]
    assert fetch(urls, target, checksum=SHA256).read_bytes() == BODY
    assert [asked.path for asked in server.asked] == ["/absent.zip", "/wrong.zip", "/data.zip"]


def test_a_half_of_one_mirror_is_not_continued_from_another(server: FileServer, target: Path) -> None:
    leave_half(server, target, Served(BODY))
    server.files["mirror.zip"] = Served(OTHER)
    assert fetch([server.url("mirror.zip")], target).read_bytes() == OTHER


def test_the_error_names_every_address_and_what_to_do(server: FileServer, target: Path) -> None:
    server.files["page"] = Served(b"<html>quota</html>", {"Content-Type": "text/html; charset=utf-8"})
    server.files["denied"] = Served(b"", {}, status=403)
    urls = [server.url(name) for name in ("absent.zip", "page", "denied")]
    with pytest.raises(DomainwiseError) as caught:
        fetch(urls, target)
    said = str(caught.value)
    assert said.startswith(f"cannot download data.zip: {urls[0]}: the server answers 404 Not Found; {urls[1]}: the ")
    assert "sends a web page instead of the file" in said
    assert f"{urls[2]}: the server answers 403 Forbidden" in said
    assert said.endswith(f"or download it by hand and put it at {target}")
    assert "\n" not in said
    assert left_beside(target) == set()


def test_a_web_page_does_not_cost_the_half_that_is_there(server: FileServer, target: Path) -> None:
    leave_half(server, target, Served(BODY))
    server.files["data.zip"] = Served(b"<html>quota</html>", {"Content-Type": "text/html"})
    with pytest.raises(DomainwiseError, match="web page"):
        fetch([server.url("data.zip")], target)
    server.files["data.zip"] = Served(BODY)
    server.asked.clear()
    assert fetch([server.url("data.zip")], target).read_bytes() == BODY
    assert [asked.sent for asked in server.asked] == [25_000]


def test_a_part_that_nobody_asked_for_is_refused(server: FileServer, target: Path) -> None:
    server.files["data.zip"] = Served(BODY[5:], status=206)
    with pytest.raises(DomainwiseError, match="the server answers 206 Partial Content"):
        fetch([server.url("data.zip")], target)


def test_an_unreachable_host_is_one_line(monkeypatch: pytest.MonkeyPatch, target: Path) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unheard.getsockname()[1]}/data.zip"
        with pytest.raises(DomainwiseError) as caught:
            fetch([url], target)
    assert f"{url}: " in str(caught.value)
    assert "refused" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_silent_server_is_left_in_time(server: FileServer, target: Path) -> None:
    server.files["data.zip"] = Served(BODY, hold_after=5_000)
    with pytest.raises(DomainwiseError, match=r"no answer within 0\.2 seconds"):
        fetch([server.url("data.zip")], target, timeout=0.2)
    assert partial(target).read_bytes() == BODY[:5_000]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_line(server: FileServer, target: Path) -> None:
    server.files["data.zip"] = Served(BODY)
    target.parent.mkdir()
    partial(target).symlink_to("/dev/full")
    with pytest.raises(DomainwiseError, match=f"^cannot write {target}: No space left on device$"):
        fetch([server.url("data.zip")], target)


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_a_killed_download_goes_on_with_the_rest_only(server: FileServer, target: Path) -> None:
    server.files["data.zip"] = Served(BODY, hold_after=20_000)
    code = "from pathlib import Path; from domainwise.data.download.fetch import fetch; "
    with python_process(code + "fetch([sys.argv[1]], Path(sys.argv[2]))", server.url("data.zip"), str(target)) as child:
        wait_until(lambda: partial(target).exists() and partial(target).stat().st_size == 20_000)
        child.send_signal(signal.SIGKILL)
        assert child.wait(10) == -signal.SIGKILL
    server.files["data.zip"].go_on.set()
    assert left_beside(target) == {"data.zip.partial", "data.zip.partial.from"}
    assert fetch([server.url("data.zip")], target, checksum=SHA256).read_bytes() == BODY
    assert (server.asked[1].status, server.asked[1].byte_range) == (206, "bytes=20000-")
    assert server.asked[1].sent == 20_000
