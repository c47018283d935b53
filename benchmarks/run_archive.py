"""Finished runs as one file of text, without their weights, and back: for results that others continue.

    python benchmarks/run_archive.py pack runs/reproduce/cpu docs/results/reproduction_cpu_runs.jsonl
    python benchmarks/run_archive.py unpack docs/results/reproduction_cpu_runs.jsonl runs/reproduce/cpu

Unpacked runs are done: reports and verdicts read them, and `domainwise reproduce --until-decided` adds trials to them.
That trials were added depending on results is kept, too, so that they are always judged by the sequential test.
"""

import argparse
import json
from pathlib import Path

from domainwise.reproduction.runner import SEQUENTIAL_FILE
from domainwise.storage.files import write_atomic
from domainwise.storage.run_folder import RunFolder, create_folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("pack", "unpack"))
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args()
    count = (pack if options.action == "pack" else unpack)(options.source, options.target)
    print(f"{options.target}: {count} runs")


def pack(folder: Path, file: Path) -> int:
    """Write one line per finished run below `folder`: its path, its config and its records."""
    runs = sorted((RunFolder(done.parent) for done in folder.rglob("done")), key=lambda run: run.path)
    marks = [json.dumps({"mark": SEQUENTIAL_FILE})] if (folder / SEQUENTIAL_FILE).exists() else []
    lines = [
        json.dumps(
            {
                "run": run.path.relative_to(folder).as_posix(),
                "config": json.loads(run.config_file.read_bytes()),
                "records": run.read_records(),
            }
        )
        for run in runs
    ]
    write_atomic(file, "".join(f"{line}\n" for line in [*marks, *lines]).encode())
    return len(lines)


def unpack(file: Path, folder: Path) -> int:
    """Create the folders of the runs in a file; those that exist stay as they are."""
    contents = [json.loads(line) for line in file.read_text().splitlines()]
    runs = [content for content in contents if "run" in content]
    create_folder(folder)
    for content in contents:
        if "mark" in content:
            write_atomic(folder / content["mark"], b"")
    for content in runs:
        run = RunFolder(folder / content["run"])
        if not run.config_file.exists():
            run.create()
            write_atomic(run.config_file, json.dumps(content["config"], indent=2).encode())
            run.write_records(content["records"])
            run.write_done()
    return len(runs)


if __name__ == "__main__":
    main()
