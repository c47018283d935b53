"""A run with random views, dropout and a backbone, stopped or killed anywhere, ends as if it had not been."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from PIL import Image

from domainwise.errors import RunInterrupted
from domainwise.training.config import RunConfig
from domainwise.training.trainer import train

KILLABLE = Path(__file__).with_name("killable.py")
STEPS = 7


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of images, with a cache of its own."""
    folder = tmp_path_factory.mktemp("images")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOMAINWISE_CACHE", str(folder / "cache"))
        yield make_images(folder / "zoo")


@pytest.fixture(scope="module")
def whole(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the run leaves behind that nobody stops."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    go(root, folder)
    return outcome(folder)


def make_images(root: Path) -> Path:
    """Four domains of two classes, six images each: three to train on and one to test on."""
    generator = torch.Generator().manual_seed(0)
    for domain in ("art", "cartoon", "photo", "sketch"):
        for kind in ("cat", "dog"):
            folder = root / domain / kind
            folder.mkdir(parents=True)
            for number in range(6):
                pixels = torch.randint(0, 256, (14, 12, 3), generator=generator, dtype=torch.uint8)
                Image.fromarray(pixels.numpy()).save(folder / f"{number}.png")
    return root


def go(root: Path, output: Path, should_stop: Callable[[], bool] = lambda: False, **changes: Any) -> None:
    settings: dict[str, Any] = {
        "algorithm": "erm",
        "network": "shufflenet_v2_x0_5",
        "weights": "none",
        "dataset_options": {"image_size": 32},
        "test_domains": ("sketch",),
        "steps": STEPS,
        "record_every": 3,
        "batch_size": 5,
        "dropout": 0.1,
        "device": "cpu",
        "threads": 1,
        **changes,
    }
    train(RunConfig(dataset=str(root), output=output, **settings), should_stop=should_stop)


def after(count: int) -> Callable[[], bool]:
    """True from the `count`-th time it is asked."""
    asked = 0

    def answer() -> bool:
        nonlocal asked
        asked += 1
        return asked >= count

    return answer


def outcome(folder: Path) -> dict[str, Any]:
    """All that a run leaves behind, but for how long its steps took."""
    records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    for record in records:
        del record["seconds_per_step"]
    weights = {which: safetensors.torch.load_file(folder / f"{which}.safetensors") for which in ("best", "last")}
    checkpoint = torch.load(folder / "checkpoint.pt", weights_only=True)
    return {"records": records, "weights": weights, "checkpoint": checkpoint, "is_done": (folder / "done").exists()}


def differences(a: Any, b: Any, where: str = "") -> list[str]:
    """Where in two outcomes something is not the same to the bit."""
    if isinstance(a, torch.Tensor):
        return [] if torch.equal(a, b) else [where]
    if isinstance(a, dict) and a.keys() == b.keys():
        return [found for key in a for found in differences(a[key], b[key], f"{where}/{key}")]
    if isinstance(a, list | tuple) and len(a) == len(b):
        return [found for i in range(len(a)) for found in differences(a[i], b[i], f"{where}/{i}")]
    return [] if a == b else [where]


def test_stopped_twice_it_ends_with_the_same_records_and_weights(
    root: Path, whole: dict[str, Any], tmp_path: Path
) -> None:
    for _ in range(2):
        with pytest.raises(RunInterrupted):
            go(root, tmp_path / "parts", after(2))
    go(root, tmp_path / "parts")
    assert [record["step"] for record in whole["records"]] == [0, 3, 6]
    assert whole["is_done"]
    # Statistics of batch norm are part of it, and moved.
    tracked = whole["weights"]["last"]["featurizer.model.conv1.1.num_batches_tracked"]
    assert tracked == STEPS
    assert differences(outcome(tmp_path / "parts"), whole) == []


def test_views_and_dropout_are_what_the_run_was_trained_on(root: Path, tmp_path: Path) -> None:
    """Without either it ends elsewhere; so the test above is about them."""
    few = {"steps": 1}
    go(root, tmp_path / "both", **few)
    go(root, tmp_path / "again", **few)
    go(root, tmp_path / "plain", augment=False, **few)
    go(root, tmp_path / "undropped", dropout=0.0, **few)
    both = outcome(tmp_path / "both")
    assert differences(outcome(tmp_path / "again"), both) == []
    for other in ("plain", "undropped"):
        assert "/records/0/loss" in differences(outcome(tmp_path / other), both)


def test_killed_once_it_ends_with_the_same_records_and_weights(
    root: Path, whole: dict[str, Any], tmp_path: Path
) -> None:
    settings = [
        *("train", "--dataset", str(root), "--algorithm", "erm"),
        *("--network", "shufflenet_v2_x0_5", "--weights", "none"),
        *("--dataset-option", "image_size=32", "--test-domain", "sketch", "--steps", str(STEPS), "--record-every", "3"),
        *("--batch-size", "5", "--dropout", "0.1", "--device", "cpu", "--threads", "1"),
        *("--output", str(tmp_path / "killed")),
    ]
    command = [sys.executable, str(KILLABLE), "after-step 6", *settings]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=120, env=dict(os.environ))
    assert f"ended after-step 6 {-signal.SIGKILL}" in killed.stdout, (killed.stdout, killed.stderr)
    step = torch.load(tmp_path / "killed" / "checkpoint.pt", weights_only=True)["step"]
    assert step == 4
    assert not (tmp_path / "killed" / "done").exists()
    # Going on here, with the same settings given in Python, is the same run.
    go(root, tmp_path / "killed")
    assert differences(outcome(tmp_path / "killed"), whole) == []
