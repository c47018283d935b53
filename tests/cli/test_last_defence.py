"""Errors that nobody expected, Ctrl-C at any moment, and streams that cannot take what is printed."""

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

import pytest
from PIL import Image

from children import start_child
from domainwise.cli import COMMANDS
from domainwise.cli.console import interruptible
from domainwise.training.distributed import watch_interrupt

Cli = Callable[..., Any]
SWEEP = Path(__file__).parents[1] / "fixtures" / "schema_1" / "sweep"
# A part of Python that fails, and the command line.
CRASH = """
import json, runpy
def fail(*args, **options):
    raise ZeroDivisionError("[/b] \\x1b\\n is broken")
json.dumps = fail
runpy.run_module("domainwise", run_name="__main__", alter_sys=True)
"""
# Ctrl-C while a module is imported, by one that takes any error for a missing module, as some libraries do.
INTERRUPT = """
import contextlib, os, runpy, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == MODULE:
            with contextlib.suppress(BaseException):
                os.kill(os.getpid(), signal.SIGINT)
MODULE = sys.argv.pop(1)
sys.meta_path.insert(0, Finder())
runpy.run_module("domainwise", run_name="__main__", alter_sys=True)
"""


def run_python(*words: object, **environment: str) -> tuple[int, str, str]:
    with start_child([sys.executable, *words], env={**os.environ, **environment}) as process:
        out, err = process.communicate(timeout=120)
    return process.returncode, out, err


@pytest.fixture
def crash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, domainwise: Cli) -> Cli:
    """The command line while a part of Python fails; tracebacks are written to `tmp_path`."""

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("[/b] \x1b\n is broken")

    monkeypatch.setattr(json, "dumps", fail)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return lambda *words: domainwise(*words, "reproduce", "--list", "--json")


def test_an_unexpected_error_is_one_line_and_a_file_that_only_the_user_can_read(crash: Cli, tmp_path: Path) -> None:
    outcome = crash()
    assert outcome.code == 70
    (file,) = tmp_path.iterdir()
    assert outcome.err == (
        f"error: unexpected ZeroDivisionError: [/b] \\x1b is broken; traceback in {file}, or use `domainwise --debug`\n"
    )
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    text = file.read_text()
    assert "Traceback (most recent call last)" in text
    assert "['domainwise', 'reproduce', '--list', '--json']" in text


def test_debug_shows_the_traceback(crash: Cli, domainwise: Cli, tmp_path: Path) -> None:
    outcome = crash("--debug")
    assert outcome.code == 70
    assert outcome.err.startswith("Traceback (most recent call last)")
    assert r"ZeroDivisionError: [/b] \x1b" in outcome.err
    assert not list(tmp_path.iterdir())
    outcome = domainwise("--debug", "report", tmp_path / "nothing")
    assert outcome.code == 2
    assert outcome.err.startswith("Traceback")
    assert outcome.err.splitlines()[-1].startswith("error: ")


def test_no_folder_for_the_traceback(crash: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    outcome = crash()
    assert outcome.code == 70
    assert outcome.err.count("\n") == 1
    assert "use `domainwise --debug` to see the traceback" in outcome.err


@pytest.mark.parametrize("rank", ["0", "1"])
def test_an_unexpected_error_in_a_rank(rank: str, tmp_path: Path) -> None:
    ranks = {"RANK": rank, "WORLD_SIZE": "2", "TMPDIR": str(tmp_path)}
    code, _, err = run_python("-c", CRASH, "reproduce", "--list", "--json", **ranks)
    assert code == 70
    (file,) = tmp_path.glob("domainwise-*.txt")
    assert err == (
        f"error: unexpected ZeroDivisionError in rank {rank}: [/b] \\x1b is broken; traceback in {file}, or use "
        "`domainwise --debug`\n"
    )


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "x"}, "RANK must be an integer of at least 0, got 'x'"),
        ({"RANK": "0", "WORLD_SIZE": ""}, "WORLD_SIZE must be an integer of at least 0, got ''"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK must be below WORLD_SIZE=2, got 2"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "RANK and WORLD_SIZE=2 are set, but not MASTER_ADDR; start with torchrun"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "here"}, "but not MASTER_PORT"),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "x"}, "MASTER_PORT must be an integer"),
    ],
    ids=str,
)
def test_wrong_variables_of_torchrun_are_one_line(
    environment: dict[str, str], message: str, domainwise: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    outcome = domainwise("train", "--steps", 1, "--device", "cpu", "--output", tmp_path / "run")
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize("module", ["domainwise.cli", "typer", "domainwise.cli.reproduce", "rich.live"])
def test_ctrl_c_while_starting_is_quiet(module: str) -> None:
    assert run_python("-c", INTERRUPT, module, "reproduce", "--list") == (130, "", "")


@pytest.mark.parametrize("watch", [interruptible, watch_interrupt])
def test_ignored_signals_stay_ignored_and_handlers_come_back(watch: Callable[[], Any]) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {each: signal.signal(each, signal.SIG_IGN) for each in numbers}
    try:
        with watch() as is_interrupted:
            for number in numbers:
                os.kill(os.getpid(), number)
            assert not is_interrupted()
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
            with watch() as is_interrupted:
                os.kill(os.getpid(), number)
                assert is_interrupted()
            assert signal.getsignal(number) == signal.SIG_DFL
            signal.signal(number, signal.SIG_IGN)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


ASCII = {"PYTHONIOENCODING": "ascii"}
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        (("report", SWEEP), C_LOCALE),
        (("--help",), ASCII),
        (("report", "/ü±\U0001f600"), ASCII),
        (("report", "/ü±\U0001f600"), C_LOCALE),
    ],
    ids=str,
)
def test_an_ascii_terminal(words: tuple[object, ...], environment: dict[str, str]) -> None:
    code, out, err = run_python("-m", "domainwise", *words, **environment)
    assert code == (2 if "/ü±" in str(words[-1]) else 0), err
    assert "Traceback" not in err
    assert (out + err).isascii()
    if words == ("report", SWEEP):
        assert "50.0 +- 2.0" in out


@pytest.mark.parametrize(
    ("words", "place"),
    [
        *(("reproduce --list --json", place) for place in (">&-", "2>&-", ">&- 2>&- <&-", "| head -c 1")),
        *(("report {sweep}", place) for place in (">&-", "| head -c 1")),
    ],
)
def test_closed_streams(words: str, place: str) -> None:
    command = f"{sys.executable} -m domainwise {words.format(sweep=SWEEP)} {place}"
    outcome = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=120)
    assert outcome.stderr == ""
    assert outcome.returncode in ((0, 1) if "head" in place else (0,))


FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
FEW_IMAGES = ("--dataset-option", "train_count=100", "--dataset-option", "test_count=20")
# What each command prints without much work; the others print their help.
PRINTED = {
    "train": "train --markdown",
    "sweep": "sweep status {sweep}",
    "report": "report {sweep}",
    "predict": "predict {run} {image}",
    "push": "push {run} someone/model --dry-run",
    "reproduce": "reproduce --list",
    "algorithms": "algorithms mat --json",
    "new-method": "new-method own_method",
    "data": "data list",
}
LINES = ["--version", "--help", *(PRINTED.get(name, f"{name} --help") for name in COMMANDS)]


@pytest.fixture(params=["buffered", "unbuffered"])
def full_stream(request: pytest.FixtureRequest) -> Iterator[TextIO]:
    """A stream onto a full disk, which notices it with every write or when it is flushed."""
    is_buffered = request.param == "buffered"
    binary = FULL.open("wb", buffering=-1 if is_buffered else 0)
    with TextIOWrapper(cast(BinaryIO, binary), write_through=not is_buffered) as stream:
        yield stream


@needs_full
@pytest.mark.parametrize("words", LINES)
def test_a_full_disk_is_one_line(
    words: str, full_stream: TextIO, domainwise: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (16, 16)).save(tmp_path / "image.png")
    monkeypatch.setattr(sys, "stdout", full_stream)
    outcome = domainwise(*words.format(sweep=SWEEP, run=SWEEP.with_name("run"), image=tmp_path / "image.png").split())
    assert outcome.code == 2
    assert outcome.err == "error: [Errno 28] No space left on device\n"


@needs_full
@pytest.mark.parametrize("words", ["report nowhere", "train --stpes 1", "--debug report nowhere", "reproduce --list"])
def test_a_full_disk_for_errors_keeps_the_exit_code(
    words: str, full_stream: TextIO, domainwise: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "stderr", full_stream)
    outcome = domainwise(*words.split())
    assert outcome.code == (0 if words == "reproduce --list" else 2)
    assert not list(tmp_path.iterdir())


@needs_full
@pytest.mark.parametrize(
    ("words", "streams", "environment"),
    [
        ("reproduce --list", ">/dev/full", {}),
        ("reproduce --list", ">/dev/full", {"PYTHONUNBUFFERED": "1"}),
        ("report {sweep} --format json", ">/dev/full 2>/dev/full", {}),
    ],
)
def test_a_process_on_a_full_disk(words: str, streams: str, environment: dict[str, str]) -> None:
    command = f"{sys.executable} -m domainwise {words.format(sweep=SWEEP)} {streams}"
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    outcome = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=120, env={**inherited, **environment}
    )
    assert outcome.returncode == 2
    assert outcome.stderr == ("" if "2>" in streams else "error: [Errno 28] No space left on device\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "--stpes", "1"), "No such option: --stpes"),
        (("train", "--steps", "x\x1b[31m"), "'--steps'"),
        (("frob\x1b[/b]",), r"No such command 'frob\x1b[/b]'"),
        (("report",), "Missing argument"),
        (("data", "check", "--data-dir", "~nouser", "pacs"), "~nouser"),
        (("train", "--algorithm", ":"), "could not import algorithm ':': expected package.module:Name"),
        (("train", "--algorithm", "..x:y"), "could not import algorithm '..x:y'"),
        (("train", "--algorithm", "os:getcwd"), "algorithm os:getcwd is of type builtin_function_or_method"),
        (("train", *FEW_IMAGES, "--network", "os:getcwd"), "network os:getcwd could not be built"),
        (("train", "--network", "..x:y"), "could not import network '..x:y'"),
        (("train", "--dataset", "os:getcwd"), "dataset os:getcwd could not be built"),
        (("train", "--dataset", ":"), "could not import dataset ':'"),
        (("train", "--device", "gpu"), "unknown device 'gpu'; did you mean 'cpu'? Choices: auto, cpu, cuda, mps"),
        (("train", "--threads", "9" * 30), "threads must be at most 1024"),
        (("train", "-H", "epsilon=1e300"), "hyperparameter epsilon must be at most 1e+30"),
        (("train", "-H", "lr=inf"), "hyperparameter lr must be at most 1e+30, got inf"),
    ],
    ids=str,
)
def test_wrong_words_are_one_line(
    words: tuple[str, ...], message: str, domainwise: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = domainwise(*words)
    assert outcome.code == 2
    assert outcome.err.startswith("error: ")
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
    assert "\x1b" not in outcome.err
