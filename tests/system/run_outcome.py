"""What a run leaves behind, and comparisons to the bit."""

import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch


def read_outcome(folder: Path) -> dict[str, Any]:
    """Return everything a run leaves behind, except how long its steps took."""
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    for record in records:
        del record["seconds_per_step"]
    return {
        "records": records,
        "weights": {which: safetensors.torch.load_file(folder / f"{which}.safetensors") for which in ("best", "last")},
        "checkpoint": torch.load(folder / "checkpoint.pt", weights_only=True),
        "files": sorted(path.name for path in folder.iterdir() if path.name != ".lock"),
    }


def find_differences(a: Any, b: Any, path: str = "") -> list[str]:
    """Return where two outcomes are not the same to the bit."""
    if isinstance(a, torch.Tensor):
        return [] if isinstance(b, torch.Tensor) and torch.equal(a, b) else [path]
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        return [each for key in a for each in find_differences(a[key], b[key], f"{path}/{key}")]
    if isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        return [each for index in range(len(a)) for each in find_differences(a[index], b[index], f"{path}/{index}")]
    return [] if a == b else [path]


def assert_identical(a: Any, b: Any) -> None:
    assert find_differences(a, b) == []
