"""Concurrent processes that need the same cache entry, and a process killed while building it."""

import hashlib
import json
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from children import start_child
from domainwise.data.cache import load_cached_images
from domainwise.data.decoding import decode_image

SIZE = 8
ROUNDS = 12
# Prints a digest of the images per listing. Its decoder is slow and logs the process.
TOGETHER = """
import hashlib, json, os, sys, time
from pathlib import Path
from domainwise.data import cache

folder, size, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
original = cache.decode_image

def slow(*arguments):
    with open(folder / "log", "a") as log:
        log.write(f"{os.getpid()}\\n")
    time.sleep(0.02)
    return original(*arguments)

cache.decode_image = slow
files = sorted((folder / "images").iterdir())
(folder / f"ready-{os.getpid()}").touch()
while not (folder / "go").exists():
    time.sleep(0.005)
digests = []
for count in range(len(files), len(files) - rounds, -1):
    cached = cache.load_cached_images(files[:count], size)
    digests.append(hashlib.sha256(cached.images.permute(0, 2, 3, 1).contiguous().numpy().tobytes()).hexdigest())
print(json.dumps(digests))
"""
# Dies halfway, as soon as another process waits for it.
KILLED = """
import os, signal, sys, threading, time
from pathlib import Path
from domainwise.data import cache

folder, size, lock, calls = Path(sys.argv[1]), int(sys.argv[2]), threading.Lock(), 0
original, cache._DECODE_CHUNK = cache.decode_image, 4

def deadly(*arguments):
    global calls
    with lock:
        calls += 1
    if calls > 8:
        (folder / "half-way").touch()
        while not (folder / "waits").exists():
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGKILL)
    return original(*arguments)

cache.decode_image = deadly
cache.load_cached_images(sorted((folder / "images").iterdir()), size)
"""


@pytest.fixture(autouse=True)
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOMAINWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def write_images(folder: Path, count: int) -> list[Path]:
    folder.mkdir()
    files = [folder / f"{index:02}.png" for index in range(count)]
    for index, file in enumerate(files):
        noise = np.random.default_rng(index).integers(0, 256, (9, 11, 3), dtype=np.uint8)
        Image.fromarray(noise).save(file)
    return files


def by_hand(files: list[Path]) -> bytes:
    return b"".join(decode_image(file.read_bytes(), SIZE).pixels or b"" for file in files)


def wait_for(process: subprocess.Popen[str], *patterns: tuple[Path, str, int]) -> None:
    end = time.monotonic() + 240
    while any(len(list(folder.glob(pattern))) < count for folder, pattern, count in patterns):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)


def start(script: str, *words: object) -> AbstractContextManager[subprocess.Popen[str]]:
    return start_child([sys.executable, "-c", script, *words])


def test_two_processes_decode_the_same_images_once(tmp_path: Path, cache_dir: Path) -> None:
    files = write_images(tmp_path / "images", 20)
    with start(TOGETHER, tmp_path, SIZE, ROUNDS) as one, start(TOGETHER, tmp_path, SIZE, ROUNDS) as other:
        wait_for(one, (tmp_path, "ready-*", 2))
        (tmp_path / "go").touch()
        outputs = [process.communicate(timeout=240) for process in (one, other)]
    counts = range(20, 20 - ROUNDS, -1)
    expected = [hashlib.sha256(by_hand(files[:count])).hexdigest() for count in counts]
    for process, (out, err) in zip((one, other), outputs, strict=True):
        assert process.returncode == 0, err
        assert err == ""
        assert json.loads(out) == expected
    assert len(list(cache_dir.glob("*/entry.json"))) == ROUNDS
    assert list(cache_dir.glob(".*")) == []
    # The first process decodes all of a listing, and no other decodes it again.
    decoders = (tmp_path / "log").read_text().split()
    assert len(decoders) == sum(counts)
    assert len(set(decoders[:20])) == 1


def test_killed_process_leaves_no_entry_and_the_waiting_one_builds_it(tmp_path: Path, cache_dir: Path) -> None:
    files = write_images(tmp_path / "images", 16)
    reports: list[str] = []

    def on_progress(what: str, done: int, total: int) -> None:
        reports.append(what)
        if what.startswith("waiting"):
            assert len(list(cache_dir.glob(".*.partial"))) == 1
            assert list(cache_dir.glob("*/entry.json")) == []
            (tmp_path / "waits").touch()

    with start(KILLED, tmp_path, SIZE) as process:
        wait_for(process, (tmp_path, "half-way", 1))
        cached = load_cached_images(files, SIZE, on_progress)
        process.communicate(timeout=240)
    assert process.returncode == -signal.SIGKILL
    assert reports == ["waiting for another process to decode", "decoding"]
    assert cached.images.permute(0, 2, 3, 1).contiguous().numpy().tobytes() == by_hand(files)
    assert cached.kept == list(range(16))
    assert list(cache_dir.glob(".*")) == []
    assert len(list(cache_dir.glob("*/entry.json"))) == 1
