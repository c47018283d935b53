"""Concurrent processes that need the same cache entry, and a process killed while building it."""

import hashlib
import json
import signal
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from warm_python import WarmProcess, WarmPython

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


def start(warm_python: WarmPython, folder: Path, script: str, *words: object) -> WarmProcess:
    file = folder / "script.py"
    file.write_text(script)
    return warm_python.start(file, folder, *words)


def test_two_processes_decode_the_same_images_once(tmp_path: Path, cache_dir: Path, warm_python: WarmPython) -> None:
    files = write_images(tmp_path / "images", 20)
    processes = [start(warm_python, tmp_path, TOGETHER, SIZE, ROUNDS) for _ in range(2)]
    processes[0].wait_until(lambda: len(list(tmp_path.glob("ready-*"))) == 2)
    (tmp_path / "go").touch()
    codes = [process.wait() for process in processes]
    counts = range(20, 20 - ROUNDS, -1)
    expected = [hashlib.sha256(by_hand(files[:count])).hexdigest() for count in counts]
    assert codes == [0, 0], processes[0].err + processes[1].err
    for process in processes:
        assert process.err == ""
        assert json.loads(process.out) == expected
    assert len(list(cache_dir.glob("*/entry.json"))) == ROUNDS
    assert list(cache_dir.glob(".*")) == []
    # The first process decodes all of a listing, and no other decodes it again.
    decoders = (tmp_path / "log").read_text().split()
    assert len(decoders) == sum(counts)
    assert len(set(decoders[:20])) == 1


def test_killed_process_leaves_no_entry_and_the_waiting_one_builds_it(
    tmp_path: Path, cache_dir: Path, warm_python: WarmPython
) -> None:
    files = write_images(tmp_path / "images", 16)
    reports: list[str] = []

    def on_progress(what: str, done: int, total: int) -> None:
        reports.append(what)
        if what.startswith("waiting"):
            assert len(list(cache_dir.glob(".*.partial"))) == 1
            assert list(cache_dir.glob("*/entry.json")) == []
            (tmp_path / "waits").touch()

    process = start(warm_python, tmp_path, KILLED, SIZE)
    process.wait_until((tmp_path / "half-way").exists)
    cached = load_cached_images(files, SIZE, on_progress)
    assert process.wait() == -signal.SIGKILL
    assert reports == ["waiting for another process to decode", "decoding"]
    assert cached.images.permute(0, 2, 3, 1).contiguous().numpy().tobytes() == by_hand(files)
    assert cached.kept == list(range(16))
    assert list(cache_dir.glob(".*")) == []
    assert len(list(cache_dir.glob("*/entry.json"))) == 1
