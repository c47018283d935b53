"""A hundred SIGKILLs at random moments: training, averages, a sweep, and the cache of decoded images."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from run_outcome import assert_identical, read_outcome
from sweep_processes import sweep_words
from warm_python import WarmPython

from domainwise.data.decoding import decode_image

pytestmark = pytest.mark.slow
DATA = ("train_count=120", "test_count=40", "shifts=(0,8)")
TRAIN = [
    *("-m", "domainwise", "train", "--threads", "1", "--steps", "180", "--record-every", "11", "--batch-size", "16"),
    *("--device", "cpu", "--dropout", "0.1", "--keep", "all"),
    *(word for each in DATA for word in ("--dataset-option", each)),
]
RUNS = {
    "mat": (30, ["--algorithm", "mat", "-H", "weights=sample", "-H", "count=3"]),
    "swad": (15, ["--algorithm", "erm", "--sam", "--average", "swad", "--average-option", "every=5"]),
    "sma": (15, ["--algorithm", "ldat", "--average", "sma", "--average-option", "start=20"]),
}
Command = Callable[[Path], list[str]]


def kill_repeatedly(warm_python: WarmPython, folder: Path, command: Command, kills: int) -> list[Path]:
    """Kill a command at random moments of its life until it was killed so often; return what it completed.

    If it ends before it is killed, the next one starts from nothing. The last one is not killed.
    """
    draw = random.Random(kills)
    start = time.monotonic()
    process = warm_python.start(*command(folder / "undisturbed"))
    assert process.wait() == 0, process.err
    duration = time.monotonic() - start
    completed = [folder / "undisturbed", folder / "0"]
    count = 0
    while count < kills:
        process = warm_python.start(*command(completed[-1]))
        end = time.monotonic() + draw.uniform(0, duration / 2)
        while time.monotonic() < end and process.poll() is None:
            time.sleep(0.001)
        if process.poll() is None:
            process.kill_group()
            count += process.wait() != 0
        else:
            assert process.poll() == 0, process.err
            completed.append(folder / str(len(completed)))
    process = warm_python.start(*command(completed[-1]))
    assert process.wait() == 0, process.err
    print(f"killed {count} times in {time.monotonic() - start:.0f} s; completed {len(completed) - 1}")
    return completed


@pytest.mark.parametrize("name", RUNS)
def test_runs(tmp_path: Path, warm_python: WarmPython, name: str) -> None:
    kills, options = RUNS[name]
    whole, *others = kill_repeatedly(
        warm_python, tmp_path, lambda folder: [*TRAIN, *options, "--output", str(folder)], kills
    )
    for each in others:
        assert_identical(read_outcome(each), read_outcome(whole))


def test_sweeps(tmp_path: Path, warm_python: WarmPython) -> None:
    whole, *others = kill_repeatedly(
        warm_python, tmp_path, lambda folder: ["-m", "domainwise", *sweep_words(folder), "--keep", "all"], 20
    )
    runs = sorted(path.parent.name for path in whole.glob("*/done"))
    assert len(runs) == 4
    for each in others:
        assert sorted(path.parent.name for path in each.glob("*/done")) == runs
        for run in runs:
            assert_identical(read_outcome(each / run), read_outcome(whole / run))


CACHE = """
import os, sys
from pathlib import Path

os.environ["DOMAINWISE_CACHE"] = sys.argv[2]
from domainwise.data.cache import load_cached_images

files = sorted(Path(sys.argv[1]).iterdir())
cached = load_cached_images(files, 64)
Path(sys.argv[2] + ".bytes").write_bytes(cached.images.permute(0, 2, 3, 1).contiguous().numpy().tobytes())
"""


def test_the_image_cache(tmp_path: Path, warm_python: WarmPython) -> None:
    images, script = tmp_path / "images", tmp_path / "build_cache.py"
    images.mkdir()
    for index in range(400):
        noise = np.random.default_rng(index).integers(0, 256, (96, 128, 3), dtype=np.uint8)
        Image.fromarray(noise).save(images / f"{index:03}.png")
    script.write_text(CACHE)
    (tmp_path / "caches").mkdir()
    completed = kill_repeatedly(
        warm_python, tmp_path / "caches", lambda folder: [str(script), str(images), str(folder)], 20
    )
    expected = b"".join(decode_image(file.read_bytes(), 64).pixels or b"" for file in sorted(images.iterdir()))
    for each in completed:
        assert each.with_name(each.name + ".bytes").read_bytes() == expected
        assert len(list(each.glob("*/entry.json"))) == 1
