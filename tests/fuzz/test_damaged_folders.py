"""Every command that reads run or sweep folders, on folders with a damaged file: it works, or says in one line why not.

A case is a seed; the report of a failure shows it.
"""

import json
import random
import re
import shutil
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import damage
from PIL import Image

from domainwise.training import RunConfig, train

Cli = Callable[..., Any]
FIXTURES = Path(__file__).parents[1] / "fixtures" / "schema_1"
DATA = ("train_count=60", "test_count=12", "image_size=16")
OPTIONS = [word for each in DATA for word in ("--dataset-option", each)]
# The folders that are damaged. Words that begin with @ are paths in the folder of a case.
INPUTS = ("run", "unfinished", "sweep", "shared", "domainbed")
TRAIN = ("--steps", "4", "--record-every", "2", "--batch-size", "8", *OPTIONS)
COMMANDS: dict[str, tuple[str, ...]] = {
    "report-run": ("report", "@run"),
    "report-sweep": ("report", "@sweep", "--format", "json"),
    "report-domainbed": ("report", "@domainbed"),
    "report-html": ("report", "@sweep", "--format", "html", "--output", "@page.html"),
    "report-unfinished": ("report", "@unfinished", "--unfinished", "--column", "worst"),
    "status": ("sweep", "status", "@sweep"),
    "status-json": ("sweep", "status", "@sweep", "--json"),
    "resume-sweep": (
        *("sweep", "--dataset", "silhouettes", "--algorithm", "erm", "--algorithm", "mat", "--draws", "2"),
        *("--trials", "2", *TRAIN, "--seeding", "domainbed", "--dry-run", "-o", "@sweep"),
    ),
    "resume": ("train", "--algorithm", "mat", *TRAIN, "--threads", "1", "-o", "@unfinished"),
    "explain": ("explain", "@run", "--images", "1", "-o", "@out.png"),
    "perturbations": ("perturbations", "@run", "--images", "4", "-o", "@out"),
    "robustness": ("robustness", "@run", "--images", "4", "--attack-steps", "1", "--radius", "1", "-o", "@out.png"),
    "against-epsilon": ("robustness", "--against-epsilon", "@sweep", "-o", "@out.png"),
    "predict": ("predict", "@run", "@image.png", "--json"),
    "evaluate": ("evaluate", "@run", "--dataset", "silhouettes", *OPTIONS, "--json"),
    "push": ("push", "@run", "team/model", "--hub", "@hub"),
    "card": ("push", "@run", "team/model", "--dry-run"),
    "average": ("average", "@shared", "-o", "@out"),
    "refit": ("refit", "@run", "-o", "@out"),
}
# They take seconds, because they draw figures.
DRAWING = ("perturbations", "robustness", "against-epsilon", "report-html")


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with everything that the commands read, undamaged."""
    root = tmp_path_factory.mktemp("originals")
    shutil.copytree(FIXTURES / "run", root / "run")
    shutil.copytree(FIXTURES / "sweep", root / "sweep")
    options = {"train_count": 60, "test_count": 12, "image_size": 16}
    config = {"dataset_options": options, "steps": 4, "record_every": 2, "batch_size": 8, "threads": 1}
    train(RunConfig(algorithm="mat", output=root / "unfinished", stop_after=3, **config))
    for draw in (0, 1):
        train(
            RunConfig(
                algorithm="erm", output=root / "shared" / str(draw), hparams_seed=draw, shared_start=True, **config
            )
        )
    args = {"algorithm": "ERM", "dataset": "PACS", "test_envs": [0], "trial_seed": 0, "hparams_seed": 0}
    accuracies = {f"env{index}_{part}_acc": 0.8 for index in range(4) for part in ("in", "out")}
    (root / "domainbed").mkdir()
    line = json.dumps({"args": args, "hparams": {"lr": 1e-3}, "step": 300, "loss": 0.5, **accuracies})
    (root / "domainbed" / "results.jsonl").write_text(f"{line}\n{line}\n")
    (root / "hub").mkdir()
    Image.new("RGB", (20, 20), "red").save(root / "image.png")
    return root


@contextmanager
def end_after(seconds: int) -> Iterator[None]:
    def give_up(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"still running after {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def call(domainwise: Cli, folder: Path, command: str) -> Any:
    """Run a command on the folders of a case."""
    words = [f"{folder / word.removeprefix('@')}" if word.startswith("@") else word for word in COMMANDS[command]]
    with end_after(60), warnings.catch_warnings():
        warnings.simplefilter("default")
        return domainwise(*words)


def copy_inputs(originals: Path, folder: Path, command: str) -> None:
    """Copy what the command reads or writes to the folder of a case."""
    folder.mkdir()
    for word in COMMANDS[command]:
        source = originals / word.removeprefix("@")
        if word.startswith("@") and source.is_dir():
            shutil.copytree(source, folder / source.name)
        elif word.startswith("@") and source.exists():
            shutil.copy(source, folder)


def run_case(domainwise: Cli, originals: Path, folder: Path, command: str, seed: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    copy_inputs(originals, folder, command)
    draw = random.Random(seed)
    inputs = [folder / name for name in INPUTS if f"@{name}" in COMMANDS[command]]
    what = damage(draw.choice(inputs), draw)
    outcome = call(domainwise, folder, command)
    case = f"{what}: {outcome.err[-2000:]}"
    assert outcome.code in (0, 1, 2), case
    assert "Traceback" not in outcome.err, case
    if outcome.code == 2:
        assert re.search(r"^error: .+$", outcome.err, re.MULTILINE), case
    # Names in files reach the terminal escaped.
    assert "\x1b[31m" not in outcome.out + outcome.err, case


SETTINGS = settings(
    deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck), report_multiple_bugs=False
)


def check_cases(domainwise: Cli, originals: Path, folder: Path, command: str, count: int) -> None:
    @settings(SETTINGS, max_examples=count)
    @given(seed=st.integers(0, 2**32 - 1))
    def check(seed: int) -> None:
        run_case(domainwise, originals, folder, command, seed)

    check()


@pytest.mark.parametrize("command", COMMANDS)
def test_damaged_folders(domainwise: Cli, originals: Path, tmp_path: Path, command: str) -> None:
    check_cases(domainwise, originals, tmp_path / "case", command, 1 if command in DRAWING else 6)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_many_damaged_folders(domainwise: Cli, originals: Path, tmp_path: Path, command: str) -> None:
    check_cases(domainwise, originals, tmp_path / "case", command, 40 if command in DRAWING else 200)


@pytest.mark.parametrize("command", COMMANDS)
def test_undamaged_folders(domainwise: Cli, originals: Path, tmp_path: Path, command: str) -> None:
    """Without this, the tests above would pass even if the commands never worked."""
    copy_inputs(originals, tmp_path / "case", command)
    outcome = call(domainwise, tmp_path / "case", command)
    assert outcome.code == 0, outcome.err
