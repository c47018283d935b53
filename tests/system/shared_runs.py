"""Runs for one process or several: the cases of test_torchrun.py.

torchrun --nproc-per-node 2 shared_runs.py FOLDER      trains all of them, and writes what each rank observed
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
    "record_first": True,
    "batch_size": 8,
    "device": "cpu",
    "threads": 1,
    "keep": "all",
}
RAW: dict[str, Any] = {"ascent": "gradient", "epsilon": 5.0, "step_size": 5.0}
# The run that is killed and resumed: everything random at once.
LONG: dict[str, Any] = {
    "algorithm": "mat",
    "hparams": {"weights": "sample", "count": 3},
    "dropout": 0.1,
    "steps": 300,
    "record_every": 50,
}


def batch_norm_network(input_shape: tuple[int, ...], num_classes: int, dropout: float) -> Network:
    featurizer = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
    return Network(featurizer, nn.Linear(4 * 49, num_classes), input_shape=input_shape, num_features=4 * 49)


EXACT: dict[str, dict[str, Any]] = {
    "erm": {"algorithm": "erm"},
    "erm attacked": {"algorithm": "erm", "attack_radius": 0.5, "metrics": ("macro_f1", "ece", "confusion")},
    "erm with augmentation": {"algorithm": "erm", "augment": True},
    "at": {"algorithm": "at", "hparams": {"start": "zero"}},
    "at with raw gradients": {"algorithm": "at", "hparams": {**RAW, "start": "zero"}},
    "uat with summed raw gradients": {"algorithm": "uat", "hparams": {**RAW, "reduction": "sum"}},
    "uat released": {"algorithm": "uat", "hparams": {"variant": "released"}},
    "erm with sam and swad": {
        "algorithm": "erm",
        "sam": True,
        "average": "swad",
        "average_options": {"every": 1, "patience": 2, "end_patience": 2},
    },
    "mat": {"algorithm": "mat"},
    "mat paper": {"algorithm": "mat", "hparams": {"variant": "paper"}},
    "ldat": {"algorithm": "ldat", "hparams": {"rank": 4}},
    "ldat simultaneous": {"algorithm": "ldat", "hparams": {"rank": 4, "schedule": "simultaneous"}},
    "dann": {"algorithm": "dann", "hparams": {"gradient_penalty": 0.5}},
}
INEXACT: dict[str, dict[str, Any]] = {
    "coral": {"algorithm": "coral"},
    "at released": {"algorithm": "at", "hparams": {"variant": "released"}},
    "live": {"algorithm": "erm", "network": batch_norm_network, "steps": 1},
}


def make_config(case: dict[str, Any], output: Path) -> RunConfig:
    return RunConfig(**{**SMALL, **case, "output": output})


def observe(case: dict[str, Any], output: Path, **settings: Any) -> dict[str, Any]:
    """Train in this process, and return how it ended and its warnings."""
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        try:
            end = f"{len(train(make_config(case, output), **settings).records)} records"
        except (DomainwiseError, RunInterrupted) as error:
            end = f"{type(error).__name__}: {error}"
    return {"end": end, "notes": [str(each.message) for each in notes]}


if __name__ == "__main__":
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    observations: dict[str, Any] = {}
    steps: list[int] = []
    for name, case in {**EXACT, **INEXACT}.items():
        observations[name] = observe(case, folder / name, on_step=lambda step, loss: steps.append(step))
    observations["done"] = observe(EXACT["erm"], folder / "erm")
    observations["different run"] = observe(EXACT["mat"], folder / "erm")
    observations["diverged"] = observe({"algorithm": "erm", "hparams": {"lr": 1e30}}, folder / "diverged")
    observations["stopped"] = observe(
        {"steps": 50, "record_every": 50}, folder / "stopped", should_stop=lambda: rank == 1
    )
    observations["has callbacks"] = bool(steps)
    (folder / f"rank{rank}.json").write_text(json.dumps(observations))
