"""Time and memory under load: a large sweep, report, page and image folder, each at several sizes.

    python benchmarks/load.py --output benchmarks/load.md
    python benchmarks/load.py --scale 0.05          # a quick look, printed

Measured, at 1/4, 1/2 and all of the full size, each in a process of its own, without its imports:

- sweep: `domainwise sweep` of 2,000 runs of one step, with two workers
- dry run: the plan of the same sweep, and its estimate
- report: 100,000 records of 5,000 runs, to Markdown
- page: the page of 5,000 runs
- images: a folder of 200,000 small PNG files, listed, hashed, decoded and cached
- images again: the same, from the cache

A growth exponent is the slope of log(CPU time) over log(size): 1 is linear, 2 quadratic. CPU time is that of all
processes, and depends less than wall time on what else the machine does. Memory is the peak of the largest process.
Linux only.
"""

import argparse
import io
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from page import write_settings
from report import write_runs

SIZES = {"sweep": 2_000, "dry run": 2_000, "report": 5_000, "page": 5_000, "images": 200_000, "images again": 200_000}
UNITS = {"report": "runs, 20 records each", "images": "files", "images again": "files"}
SHARES = (0.25, 0.5, 1.0)
# Above this, work grows faster than its input.
MAX_EXPONENT = 1.15
_TINY = ("train_count=20", "test_count=10", "image_size=16", "shifts=(0,8)")


@dataclass(frozen=True)
class Load:
    """What a task of some size took: seconds, and megabytes at the peak."""

    task: str
    size: int
    wall: float
    cpu: float
    peak: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="Share of the full sizes.")
    parser.add_argument("--task", action="append", choices=SIZES, help="Measure only this. Repeatable.")
    parser.add_argument("--machine", default="2 cores, 24 GB, no GPU", help="Named in the result.")
    parser.add_argument("--output", type=Path, help="Markdown file to write (default: print only).")
    parser.add_argument("--work", nargs=3, metavar=("TASK", "SIZE", "FOLDER"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        task, size, folder = options.work
        print(json.dumps(work(task, int(size), Path(folder))))
        return
    loads: list[Load] = []
    for task, full in SIZES.items():
        if options.task and task not in options.task:
            continue
        for share in SHARES:
            size = max(1, round(options.scale * share * full))
            loads.append(measure(task, size))
            print(format_load(loads[-1]), flush=True)
            if options.output:  # now, so that what was measured is there if the rest takes too long
                options.output.write_text(format_result(loads, options.machine, options.scale))
    print(format_result(loads, options.machine, options.scale))


def measure(task: str, size: int) -> Load:
    """Write the data of a task, and run it in a new process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if task in ("report", "page"):
            (folder / "runs").mkdir()
            write_runs(folder / "runs", size)
            write_settings(folder / "runs")
        if task.startswith("images"):
            write_images(folder / "images", size)
        command = [sys.executable, __file__, "--work", task, str(size), name]
        environment = {**os.environ, "DOMAINWISE_CACHE": str(folder / "cache")}
        rounds = 2 if task == "images again" else 1
        for _ in range(rounds):
            process = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if process.returncode:
                raise SystemExit(f"{task} of {size} failed:\n{process.stderr}")
    return Load(task, size, **json.loads(process.stdout.splitlines()[-1]))


def work(task: str, size: int, folder: Path) -> dict[str, float]:
    """Do a task and return what it took, without imports."""
    do = prepare(task, size, folder)
    watch = Watch()
    start, cpu = time.perf_counter(), sum(watch.look().values())
    threading.Thread(target=watch.keep_looking, daemon=True).start()
    do()
    wall, cpu = time.perf_counter() - start, sum(watch.look().values()) - cpu
    return {"wall": wall, "cpu": cpu, "peak": watch.peak}


class Watch:
    """CPU seconds and peak memory of this process and all below it, by /proc: also of workers that have ended since.

    The workers of a sweep are not children of this process, so that `resource` does not count them.
    """

    def __init__(self) -> None:
        self.cpu: dict[int, float] = {}
        self.peak = 0.0

    def keep_looking(self) -> None:
        while True:
            self.look()
            time.sleep(0.2)

    def look(self) -> dict[int, float]:
        """Return the CPU seconds of every process seen so far."""
        pids = [os.getpid()]
        for pid in pids:
            with suppress(OSError):  # it may end at any time
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                self.cpu[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                status = Path(f"/proc/{pid}/status").read_text()
                megabytes = [int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmHWM:")]
                self.peak = max(self.peak, *megabytes, 0.0)
                for children in Path(f"/proc/{pid}/task").glob("*/children"):
                    pids += map(int, children.read_text().split())
        return self.cpu


def prepare(task: str, size: int, folder: Path) -> Callable[[], object]:
    """Import what a task needs, and return it."""
    if task in ("sweep", "dry run"):
        from domainwise.cli import main as run_command
        from domainwise.sweeps import time_estimate  # noqa: F401, imports all that a sweep does

        # Two methods and 5 trials; the draws grow.
        words = ["--dataset", "silhouettes", "--algorithm", "erm", "--algorithm", "mat", "--trials", "5"]
        words += [word for option in _TINY for word in ("--dataset-option", option)]
        words += ["--steps", "1", "--draws", str(math.ceil(size / 10)), "--workers", "2", "--threads", "1"]
        words += ["--batch-size", "8", "--device", "cpu", "-o", str(folder / "sweep")]
        words += ["--dry-run"] if task == "dry run" else []
        sys.argv = ["domainwise", "sweep", *words]
        return lambda: run_quietly(run_command)
    if task == "report":
        from domainwise.reports import FORMATS, report

        return lambda: FORMATS["markdown"](report([folder / "runs"], compare_to="erm"))
    if task == "page":
        from domainwise.reports import write_page

        return lambda: write_page(folder / "page.html", [folder / "runs"])
    from domainwise.data.image_datasets import image_files

    return lambda: image_files(folder / "images", image_size=8)


def run_quietly(command: Callable[[], None]) -> None:
    """Run a command without its output, in which every run is a line."""
    stdout, sys.stdout = sys.stdout, io.StringIO()
    try:
        command()
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.stdout = stdout


def write_images(root: Path, count: int) -> None:
    """Write different PNG files of one pixel, evenly to 4 domains and 10 classes."""
    from PIL import Image

    folders = [root / f"domain_{domain}" / f"class_{label}" for domain in range(4) for label in range(10)]
    for folder in folders:
        folder.mkdir(parents=True)
    for number, folder in zip(range(count), itertools.cycle(folders), strict=False):
        pixel = Image.new("RGB", (1, 1), (number & 255, number >> 8 & 255, number >> 16))
        pixel.save(folder / f"{number}.png", compress_level=0)


def find_exponent(loads: Sequence[Load], value: Callable[[Load], float]) -> float:
    """Return the slope of log(value) over log(size), by least squares."""
    points = [(math.log(load.size), math.log(value(load))) for load in loads]
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points, strict=True))
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def format_load(load: Load) -> str:
    unit = UNITS.get(load.task, "runs")
    return f"| {load.task} | {load.size:,} {unit} | {load.wall:.1f} | {load.cpu:.1f} | {load.peak:.0f} |"


def format_result(loads: Sequence[Load], machine: str, scale: float) -> str:
    """Return the tables as Markdown."""
    command = "python benchmarks/load.py --output benchmarks/load.md" + (f" --scale {scale:g}" if scale != 1 else "")
    lines = [
        "# Load",
        "",
        f"`{command}` on {machine}.",
        "Seconds without imports; CPU time of all processes; peak memory (RSS) of the largest process.",
        "",
        "| task | size | wall, s | CPU, s | peak, MB |",
        "| --- | ---: | ---: | ---: | ---: |",
        *map(format_load, loads),
        "",
        "Growth: the slope of log(CPU time) and of log(peak memory) over log(size). 1 is linear.",
        "",
        "| task | CPU time | memory | per unit at full size |",
        "| --- | ---: | ---: | ---: |",
    ]
    for task, group in itertools.groupby(loads, lambda load: load.task):
        own = list(group)
        if len(own) < 2:
            continue
        cpu, peak = find_exponent(own, lambda load: load.cpu), find_exponent(own, lambda load: load.peak)
        mark = " **superlinear**" if cpu > MAX_EXPONENT else ""
        lines.append(f"| {task} | {cpu:.2f}{mark} | {peak:.2f} | {1000 * own[-1].cpu / own[-1].size:.2f} ms |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
