"""`domainwise demo` with its worker processes: finished, repeated and killed."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from children import start_child
from domainwise.errors import DomainwiseError
from domainwise.storage.run_folder import RunFolder

DEMO = [sys.executable, "-m", "domainwise", "demo", "--algorithm", "erm", "--algorithm", "mat", "--radius", "0.5"]


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DEMO, *options], cwd=folder, capture_output=True, text=True, timeout=300)


def test_the_demo_writes_table_picture_and_page_and_keeps_its_runs(
    tmp_path: Path, domainwise: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*DEMO[3:], "--steps", "4", "--markdown", "--no-pictures"]
    first = domainwise(*words)
    assert first.code == 0, first.err
    assert "| mat * | 0.5 |" in first.out
    output = tmp_path / "runs" / "demo"
    assert (output / "demo.png").read_bytes().startswith(b"\x89PNG")
    page = (output / "demo.html").read_text()
    assert "Accuracy under unseen shift (standard, two_pass, seed 0)" in page
    assert "(Grad-CAM)" not in page
    assert first.out.splitlines()[-2:] == ["picture: runs/demo/demo.png", "page: runs/demo/demo.html"]
    runs = sorted((output / "4-steps").glob("*/*"))
    assert [path.parent.name for path in runs] == [
        "erm",
        "erm-augment_True",
        "mat",  # 0.5 is the default radius on this data
        "mat-step_size_0.5-warmup_0.0-weights_domain",
    ]
    times = [(path / "records.jsonl").stat().st_mtime_ns for path in runs]
    again = domainwise(*words)
    assert [(path / "records.jsonl").stat().st_mtime_ns for path in runs] == times
    assert again.out == first.out


@pytest.mark.slow
def test_an_error_in_a_worker_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    options = ["--variant", "released", "--schedule", "simultaneous", "--quiet"]
    outcome = run(tmp_path, "--steps", "2", "--workers", "1", *options)
    assert outcome.returncode == 2
    assert outcome.stderr.startswith("error: schedule='simultaneous' needs a perturbation")
    assert outcome.stderr.count("\n") == 1


@pytest.mark.slow
def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    runs = tmp_path / "runs" / "demo" / "100000-steps"
    folder = RunFolder(runs / "erm" / "silhouettes-erm-draw0-trial0")
    with start_child([*DEMO, "--steps", "100000"], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=None) as demo:
        while not folder.config_file.exists():
            assert demo.poll() is None
            time.sleep(0.05)
        with pytest.raises(DomainwiseError, match="another process is training"), folder.lock():
            pass
        demo.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while True:
        try:
            with folder.lock():
                return
        except DomainwiseError:
            assert time.monotonic() < deadline, "a worker outlived its parent"
            time.sleep(0.1)
