"""The example scripts of the docs, and Lightning with two processes; test_torchrun.py has the one for torchrun."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from easy_images import write_easy_images

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
TESTED = {"ddp_train.py", "accelerate_train.py", "timm_train.py"}
SMALL = ("--image-size", "32", "--batch-size", "12", "--epsilon", "8/255 rms")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_easy_images(tmp_path_factory.mktemp("data") / "photos", count=12)


def run(folder: Path, *words: object) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "ACCELERATE_USE_CPU": "true"}
    outcome = subprocess.run(
        [sys.executable, *map(str, words)], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert outcome.returncode == 0, outcome.stdout[-2000:] + outcome.stderr[-4000:]
    return outcome.stdout


def read_epochs(out: str) -> list[tuple[float, float]]:
    """Return the loss and the radius that each epoch printed."""
    return [(float(loss), float(radius)) for loss, radius in re.findall(r"loss ([\d.]+), radius ([\d.]+)", out)]


def final_radius(size: int) -> float:
    return round(8 / 255 * (3 * size * size) ** 0.5, 3)


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == TESTED
    for path in EXAMPLES.glob("*.py"):
        # Few lines are ours, and the docs point to them.
        assert 4 <= sum(line.rstrip().endswith("# +") for line in path.read_text().splitlines()) <= 6


@pytest.mark.slow
def test_accelerate_with_two_processes_resumed_by_one(images: Path, tmp_path: Path) -> None:
    launch = ("-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2", "--num_machines", "1")
    launch = (*launch, "--mixed_precision", "no", "--dynamo_backend", "no")
    script = (EXAMPLES / "accelerate_train.py", images, *SMALL, "--model", "mobilenet_v2", "--accumulate", "2")
    assert len(read_epochs(run(tmp_path, *launch, *script, "--epochs", "2"))) == 2
    ((_, radius),) = read_epochs(run(tmp_path, *script, "--epochs", "1", "--resume"))
    # After the warm-up of the first run, which the checkpoint knows of.
    assert radius == final_radius(32)


@pytest.mark.slow
@pytest.mark.parametrize("use", ["callback", "one_pass"])
def test_lightning_with_two_processes(use: str, tmp_path: Path) -> None:
    out = run(tmp_path, Path(__file__).with_name("lightning_ddp.py"), use)
    first, second = re.findall(r"outcome 3 \[.*\]", out)
    assert first == second


def test_timm(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("timm", reason="timm is not installed")
    monkeypatch.chdir(tmp_path)
    words = ["timm_train.py", str(images), *SMALL, "--epochs", "4", "--model", "test_resnet"]
    monkeypatch.setattr(sys, "argv", words)
    torch.manual_seed(0)
    runpy.run_path(str(EXAMPLES / "timm_train.py"), run_name="__main__")
    epochs = read_epochs(capsys.readouterr().out)
    assert epochs[-1][1] == final_radius(32)
    assert epochs[-1][0] < epochs[0][0]
    assert torch.load(tmp_path / "model.pt", weights_only=True).keys() == {"model", "average"}
