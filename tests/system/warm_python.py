"""Python processes that start at once: forked from a server that has imported torch and domainwise.

`WarmPython().start("-m", "domainwise", "train", ...)` is like `python -m domainwise train ...` as a process of its own,
in a process group of its own, with default signal handling. It can also be told to die by SIGKILL at a chosen moment:

    after-step 12.5     0.005 s after step 12 has begun
    before-rename 5     when the fifth file is written but not yet renamed
    after-rename 5      when it is renamed
"""

import importlib
import json
import os
import resource
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS = 240
# Only imported, as in domainwise/sweeps/fork_server.py.
MODULES = (
    *("safetensors.torch", "torch._dynamo", "torch.distributed.run", "torchvision"),
    "domainwise.training.trainer",  # and nothing that imports polars, whose threads could hold a lock during a fork
)


class WarmProcess:
    """A process started by `WarmPython`, with its output in files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pid = int(_wait_for_text(folder / "pid"))

    @property
    def out(self) -> str:
        return (self.folder / "stdout").read_text()

    @property
    def err(self) -> str:
        return (self.folder / "stderr").read_text()

    def poll(self) -> int | None:
        """Return the exit code, minus the signal that ended it, or None while it runs."""
        file = self.folder / "status"
        return int(file.read_text()) if file.exists() else None

    def wait(self, seconds: float = SECONDS) -> int:
        """Return the exit code; a process that takes too long is killed."""
        deadline = time.monotonic() + seconds
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                self.kill_group()
                raise AssertionError(f"the process took more than {seconds} s: {self.out} {self.err}")
            time.sleep(0.005)
        return code

    def wait_until(self, condition: Callable[[], bool], seconds: float = SECONDS) -> None:
        """Wait for something that happens before the process ends."""
        deadline = time.monotonic() + seconds
        while not condition():
            if self.poll() is not None or time.monotonic() > deadline:
                self.kill_group()
                raise AssertionError(f"the process ended or took more than {seconds} s: {self.out} {self.err}")
            time.sleep(0.005)

    def interrupt(self) -> None:
        """Press Ctrl-C: the whole process group gets the signal."""
        self.signal(signal.SIGINT, is_group=True)

    def signal(self, number: signal.Signals, *, is_group: bool = False) -> None:
        """Send a signal to the process, or to all of its process group."""
        (os.killpg if is_group else os.kill)(self.pid, number)

    def kill_group(self) -> None:
        """Kill the process and all it has started; those that have ended are no error."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


class WarmPython:
    """The server, as its client sees it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[WarmProcess] = []
        self.server = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, text=True)

    def start(
        self,
        *words: object,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        die: str = "",
        max_size: int = 0,
    ) -> WarmProcess:
        """Start a process with the arguments of `python`: a script or `-m MODULE`, and its arguments.

        Args:
            env: additional environment variables.
            die: when to die, see above.
            max_size: size that no file can exceed, as on a full disk.
        """
        folder = self.folder / f"process{len(self.processes)}"
        folder.mkdir()
        request = {
            "words": list(map(str, words)),
            "folder": str(folder),
            "cwd": str(cwd or Path.cwd()),
            "env": {**os.environ, **(env or {})},
            "die": die,
            "max_size": max_size,
        }
        assert self.server.stdin is not None
        self.server.stdin.write(json.dumps(request) + "\n")
        self.server.stdin.flush()
        self.processes.append(WarmProcess(folder))
        return self.processes[-1]

    def close(self) -> None:
        assert self.server.stdin is not None
        for process in self.processes:
            process.kill_group()
        self.server.stdin.close()
        try:
            self.server.wait(timeout=30)
        finally:
            self.server.kill()


def _wait_for_text(file: Path) -> str:
    deadline = time.monotonic() + SECONDS
    while not file.exists():
        assert time.monotonic() < deadline, f"{file} did not appear"
        time.sleep(0.002)
    return file.read_text()


def _serve() -> None:
    for module in MODULES:
        importlib.import_module(module)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for line in sys.stdin:
        request = json.loads(line)
        if os.fork() == 0:
            # A process that waits for the requested one, so that the server need not.
            child = os.fork()
            if child == 0:
                _become(**request)
                return
            folder = Path(request["folder"])
            _write(folder / "pid", str(child))
            _write(folder / "status", str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
            os._exit(0)
        _reap()


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def _write(file: Path, text: str) -> None:
    partial = file.with_suffix(".partial")
    partial.write_text(text)
    partial.rename(file)


def _become(words: list[str], folder: str, cwd: str, env: dict[str, str], die: str, max_size: int) -> None:
    """Run the command line in this process, and leave as an interpreter would."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored, if the tests run under nohup
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(Path(folder) / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    if max_size:
        resource.setrlimit(resource.RLIMIT_FSIZE, (max_size, max_size))
    if die:
        when, moment = die.split()
        if when == "after-step":
            _die_after_step(float(moment))
        else:
            _die_around_rename(int(moment), is_before=when == "before-rename")
    if words[0] == "-m":
        sys.path[0] = ""
        sys.argv = [words[1], *words[2:]]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = str(Path(words[0]).parent)
        sys.argv = words
        runpy.run_path(words[0], run_name="__main__")


def _die(seconds: float = 0.0) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def _die_after_step(moment: float) -> None:
    import torch

    step, calls = torch.optim.Adam.step, 0

    def count_and_step(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == int(moment):
            threading.Thread(target=_die, args=(moment % 1 / 100,), daemon=True).start()
        return step(*args, **kwargs)

    torch.optim.Adam.step = count_and_step


def _die_around_rename(number: int, is_before: bool) -> None:
    rename, calls = os.replace, 0

    def count_and_rename(*args: Any, **kwargs: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == number and is_before:
            _die()
        rename(*args, **kwargs)
        if calls == number:
            _die()

    os.replace = count_and_rename


if __name__ == "__main__":
    _serve()
