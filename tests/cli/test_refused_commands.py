"""A command that is refused leaves nothing behind that would keep the corrected one from running."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
SMALL = [
    *("--steps", "1", "--batch-size", "8", "--device", "cpu", "--threads", "1"),
    *(word for each in ("train_count=40", "test_count=10") for word in ("--dataset-option", each)),
]
WRONG = [
    *(("mat", "-H", f"{name}=-1") for name in ("epsilon", "count", "step_size", "lr", "loss_cap")),
    ("mat", "-H", "count=1000000000"),
    ("ldat", "-H", "rank=0"),
    ("erm", "--batch-size", "39"),
    ("erm", "--network", "resnet18", "--weights", "gone.pth"),
]


@pytest.mark.parametrize("wrong", WRONG)
def test_train(domainwise: Cli, tmp_path: Path, wrong: tuple[str, ...]) -> None:
    method, *options = wrong
    refused = domainwise("train", *SMALL, "--algorithm", method, *options, "-o", tmp_path / "run")
    assert refused.code == 2
    assert not (tmp_path / "run").exists(), refused.err
    outcome = domainwise("train", *SMALL, "--algorithm", method, "-o", tmp_path / "run")
    assert outcome.code == 0, outcome.err


@pytest.mark.parametrize("wrong", [each for each in WRONG if "-H" in each])
def test_sweep(domainwise: Cli, tmp_path: Path, wrong: tuple[str, ...]) -> None:
    method, *options = wrong
    words = ["sweep", "--dataset", "silhouettes", "--algorithm", method, *SMALL, "-o", tmp_path / "sweep"]
    refused = domainwise(*words, *options)
    assert refused.code == 2, refused.out
    assert refused.err.startswith("error: ")
    # The corrected command would be refused if the folder belonged to the wrong one.
    assert {path.name for path in tmp_path.glob("sweep/*")} <= {".lock", ".holder"}
