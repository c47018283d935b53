"""`domainwise demo` with its real worker processes: finished, repeated, and killed."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from domainwise.errors import DomainwiseError
from domainwise.storage.run_folder import RunFolder

DEMO = [sys.executable, "-m", "domainwise", "demo", "--methods", "erm,mat", "--radii", "0.5"]


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DEMO, *words], cwd=folder, capture_output=True, text=True, timeout=300)


def test_the_demo_prints_its_table_draws_its_picture_and_keeps_its_runs(tmp_path: Path) -> None:
    first = run(tmp_path, "--steps", "4", "--markdown", "--no-pictures")
    assert first.returncode == 0, first.stderr
    assert "| **mat** | 0.5 |" in first.stdout
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "demo.html").read_text()
    assert "domainwise demo: accuracy under unseen shift" in page
    assert first.stdout.splitlines()[-2:] == ["picture: demo.png", "page: demo.html"]
    runs = sorted((tmp_path / "runs" / "demo").iterdir())
    assert [path.name for path in runs] == ["erm-4-seed0", "mat-0.5-standard-two_pass-4-seed0"]
    times = [(path / "records.jsonl").stat().st_mtime_ns for path in runs]
    again = run(tmp_path, "--steps", "4", "--markdown", "--no-pictures")
    assert [(path / "records.jsonl").stat().st_mtime_ns for path in runs] == times
    tables = [each.stdout.split("Accuracy at each shift")[1].split("picture:")[0].strip() for each in (first, again)]
    assert tables[0] == tables[1]


def test_what_a_worker_cannot_do_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    words = ["--variant", "released", "--schedule", "simultaneous"]
    outcome = run(tmp_path, "--steps", "2", "--workers", "1", *words)
    assert outcome.returncode == 2
    assert outcome.stderr.startswith("error: schedule='simultaneous' needs a perturbation")
    assert outcome.stderr.count("\n") == 1


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "runs" / "demo" / "mat-0.5-standard-two_pass-100000-seed0")
    with subprocess.Popen([*DEMO, "--steps", "100000"], cwd=tmp_path, stdout=subprocess.DEVNULL) as demo:
        while not folder.records_file.exists():
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
