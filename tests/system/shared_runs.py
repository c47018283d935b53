"""Runs that one process, or several together, can train: the cases of test_torchrun.py.

torchrun --nproc-per-node 2 shared_runs.py <folder>      trains all of them, and writes what each rank was told
"""

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from torch import nn

from domainwise import RunConfig, train
from domainwise.errors import DomainwiseError
from domainwise.networks import Network
from domainwise.training import RunInterrupted

SMALL: dict[str, Any] = {
    "dataset_options": {"image_size": 16, "train_count": 60, "test_count": 20, "shifts": (0, 8)},
    "steps": 5,
    "record_every": 2,
    "batch_size": 8,
    "device": "cpu",
    "threads": 1,
}
# What killed and resumed commands must end with; everything random at once.
LONG: dict[str, Any] = {
    "algorithm": "mat",
    "hparams": {"weights": "sample", "count": 3},
    "dropout": 0.1,
    "steps": 400,
    "record_every": 50,
}


def live_network(input_shape: tuple[int, ...], num_classes: int, dropout: float) -> Network:
    featurizer = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    return Network(featurizer, nn.Linear(4 * 49, num_classes), input_shape=input_shape, num_features=4 * 49)


EXACT: dict[str, dict[str, Any]] = {
    "erm": {"algorithm": "erm"},
    "erm with augmentation": {"algorithm": "erm", "augment": True},
    "at": {"algorithm": "at", "hparams": {"start": "zero"}},
    "uat released": {"algorithm": "uat", "hparams": {"variant": "released"}},
    "mat": {"algorithm": "mat"},
    "mat paper": {"algorithm": "mat", "hparams": {"variant": "paper"}},
    "ldat": {"algorithm": "ldat", "hparams": {"rank": 4}},
    "ldat simultaneous": {"algorithm": "ldat", "hparams": {"rank": 4, "schedule": "simultaneous"}},
    "dann": {"algorithm": "dann", "hparams": {"gradient_penalty": 0.5}},
}
INEXACT: dict[str, dict[str, Any]] = {
    "coral": {"algorithm": "coral"},
    "at released": {"algorithm": "at", "hparams": {"variant": "released"}},
    "live": {"algorithm": "erm", "network": live_network, "steps": 1},
}


def config(case: dict[str, Any], output: Path) -> RunConfig:
    return RunConfig(**{**SMALL, **case, "output": output})


def told(case: dict[str, Any], output: Path, **settings: Any) -> dict[str, Any]:
    """What a run told its caller in this process: how it ended, and its notes."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            end = f"{len(train(config(case, output), **settings).records)} records"
        except (DomainwiseError, RunInterrupted) as error:
            end = f"{type(error).__name__}: {error}"
    return {"end": end, "notes": [str(each.message) for each in caught]}


if __name__ == "__main__":
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    heard: dict[str, Any] = {}
    steps: list[int] = []
    for name, case in {**EXACT, **INEXACT, "long": LONG}.items():
        heard[name] = told(case, folder / name, on_step=lambda step, loss: steps.append(step))
    heard["done"] = told(EXACT["erm"], folder / "erm")
    heard["another run"] = told(EXACT["mat"], folder / "erm")
    heard["diverged"] = told({"algorithm": "erm", "hparams": {"lr": 1e30}}, folder / "diverged")
    heard["stopped"] = told({"steps": 50, "record_every": 50}, folder / "stopped", should_stop=lambda: rank == 1)
    heard["has called back"] = bool(steps)
    (folder / f"rank{rank}.json").write_text(json.dumps(heard))
