"""Runs of a few steps on a few images, and what they leave behind."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from domainwise.errors import RunInterrupted
from domainwise.storage.run_folder import RunFolder
from domainwise.training import RunConfig, RunResult, train
from domainwise.training.registry import DatasetCache

DATA = {"train_count": 40, "test_count": 20, "image_size": 16, "shifts": (0, 8)}
TINY: dict[str, Any] = {
    "dataset_options": DATA,
    "steps": 7,
    "record_every": 2,
    "batch_size": 8,
    "dropout": 0.2,
    "device": "cpu",
    "threads": 1,
    "keep": "all",
}
DATASETS = DatasetCache()


def tiny_config(output: Path, **settings: Any) -> RunConfig:
    return RunConfig(output=output, **{**TINY, "algorithm": "erm", **settings})


def tiny_run(output: Path, **settings: Any) -> RunResult:
    return train(tiny_config(output, **settings), datasets=DATASETS)


def interrupted_run(output: Path, **settings: Any) -> int:
    """Train a run that stops after every update that has no record, and return how often it stopped."""
    stops = 0
    while True:
        try:
            train(tiny_config(output, **settings), datasets=DATASETS, should_stop=lambda: True)
        except RunInterrupted:
            stops += 1
        else:
            return stops


def read_outcome(run: Path) -> dict[str, Any]:
    """Return everything that a run leaves behind, except how long its steps took."""
    folder = RunFolder(run)
    records = folder.read_records()
    for record in records:
        del record["seconds_per_step"]
    files = sorted(path.name for path in run.iterdir() if path.name != ".lock")
    weights = {path.name: path.read_bytes() for path in run.glob("*.safetensors")}
    done = folder.done_file.read_text()
    return {"records": records, "files": files, "done": done, **weights, "checkpoint": folder.read_checkpoint()}


def find_differences(a: Any, b: Any, path: str = "") -> list[str]:
    """Return where two outcomes are not the same to the bit."""
    if isinstance(a, Tensor):
        return [] if isinstance(b, Tensor) and torch.equal(a, b) else [path]
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return [each for key in a for each in find_differences(a[key], b[key], f"{path}/{key}")]
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        return [each for index in range(len(a)) for each in find_differences(a[index], b[index], f"{path}/{index}")]
    return [] if a == b else [path]
