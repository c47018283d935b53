"""A run with augmentation, dropout and a backbone, stopped or killed anywhere, ends as if it had not been."""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from run_outcome import find_differences, read_outcome
from warm_python import WarmPython

from domainwise.errors import RunInterrupted
from domainwise.training import RunConfig, train

STEPS = 7


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Four domains of two classes with six images each, and a cache for them."""
    folder = tmp_path_factory.mktemp("images")
    generator = torch.Generator().manual_seed(0)
    for domain in ("art", "cartoon", "photo", "sketch"):
        for label in ("cat", "dog"):
            place = folder / "zoo" / domain / label
            place.mkdir(parents=True)
            for number in range(6):
                pixels = torch.randint(0, 256, (14, 12, 3), generator=generator, dtype=torch.uint8)
                Image.fromarray(pixels.numpy()).save(place / f"{number}.png")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOMAINWISE_CACHE", str(folder / "cache"))
        yield folder / "zoo"


@pytest.fixture(scope="module")
def uninterrupted(images: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("uninterrupted") / "run"
    train_run(images, folder)
    return read_outcome(folder)


def train_run(images: Path, output: Path, should_stop: Callable[[], bool] = lambda: False, **changes: Any) -> None:
    settings: dict[str, Any] = {
        "algorithm": "erm",
        "network": "shufflenet_v2_x0_5",
        "weights": "none",
        "dataset_options": {"image_size": 32},
        "test_domains": ("sketch",),
        "steps": STEPS,
        "record_every": 3,
        "record_first": True,
        "batch_size": 5,
        "dropout": 0.1,
        "device": "cpu",
        "threads": 1,
        "keep": "all",
        **changes,
    }
    train(RunConfig(dataset=str(images), output=output, **settings), should_stop=should_stop)


def stop_at_call(count: int) -> Callable[[], bool]:
    """Return a function that is True from its `count`-th call on."""
    calls = 0

    def should_stop() -> bool:
        nonlocal calls
        calls += 1
        return calls >= count

    return should_stop


def test_stopped_twice_it_ends_with_the_same_records_and_weights(
    images: Path, uninterrupted: dict[str, Any], tmp_path: Path
) -> None:
    for _ in range(2):
        with pytest.raises(RunInterrupted):
            train_run(images, tmp_path / "parts", stop_at_call(2))
    train_run(images, tmp_path / "parts")
    assert [record["step"] for record in uninterrupted["records"]] == [0, 3, 6]
    assert "done" in uninterrupted["files"]
    # Batch norm statistics are part of it, and have changed.
    assert uninterrupted["weights"]["last"]["featurizer.model.conv1.1.num_batches_tracked"] == STEPS
    assert find_differences(read_outcome(tmp_path / "parts"), uninterrupted) == []


def test_a_run_with_strong_augmentation_resumes(images: Path, uninterrupted: dict[str, Any], tmp_path: Path) -> None:
    train_run(images, tmp_path / "whole", augment="strong")
    with pytest.raises(RunInterrupted):
        train_run(images, tmp_path / "parts", stop_at_call(2), augment="strong")
    train_run(images, tmp_path / "parts", augment="strong")
    whole = read_outcome(tmp_path / "whole")
    assert find_differences(read_outcome(tmp_path / "parts"), whole) == []
    assert "/records/0/loss" in find_differences(whole, uninterrupted)


def test_augmentation_and_dropout_change_the_result(images: Path, tmp_path: Path) -> None:
    """So the other tests are about them."""
    train_run(images, tmp_path / "both", steps=1)
    train_run(images, tmp_path / "repeated", steps=1)
    train_run(images, tmp_path / "no_augmentation", augment=False, steps=1)
    train_run(images, tmp_path / "no_dropout", dropout=0.0, steps=1)
    both = read_outcome(tmp_path / "both")
    assert find_differences(read_outcome(tmp_path / "repeated"), both) == []
    for name in ("no_augmentation", "no_dropout"):
        assert "/records/0/loss" in find_differences(read_outcome(tmp_path / name), both)


@pytest.mark.slow  # `test_kill.py` kills a run without augmentation
def test_killed_once_it_ends_with_the_same_records_and_weights(
    images: Path, uninterrupted: dict[str, Any], tmp_path: Path, warm_python: WarmPython
) -> None:
    folder = tmp_path / "killed"
    words = [
        *("train", "--dataset", images, "--algorithm", "erm", "--network", "shufflenet_v2_x0_5", "--weights", "none"),
        *(
            "--dataset-option",
            "image_size=32",
            "--test-domain",
            "sketch",
            "--steps",
            STEPS,
            "--record-every",
            3,
            "--record-first",
        ),
        *("--batch-size", 5, "--dropout", 0.1, "--device", "cpu", "--threads", 1, "--output", folder),
    ]
    process = warm_python.start("-m", "domainwise", *words, die="after-step 6")
    assert process.wait() == -signal.SIGKILL, (process.out, process.err)
    assert torch.load(folder / "checkpoint.pt", weights_only=True)["step"] == 4
    assert not (folder / "done").exists()
    # The same settings in Python are the same run.
    train_run(images, folder)
    assert find_differences(read_outcome(folder), uninterrupted) == []
