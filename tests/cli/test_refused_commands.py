"""A refused command destroys nothing, and leaves nothing behind that would keep the corrected one from running."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

Cli = Callable[..., Any]
FIXTURES = Path(__file__).parents[1] / "fixtures" / "schema_1"
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


def _domainbed_line() -> str:
    args = {"algorithm": "ERM", "dataset": "PACS", "test_envs": [0], "trial_seed": 0, "hparams_seed": 0}
    accuracies = {f"env{index}_{part}_acc": 0.8 for index in range(4) for part in ("in", "out")}
    return json.dumps({"args": args, "step": 0, **accuracies}) + "\n"


@pytest.mark.parametrize(
    "command",
    [
        "export {run} --pt2 {run}/best.safetensors",
        "export {run} --onnx {run}/last.safetensors",
        "export {run} --pt2 {run}/method.safetensors",
        "export {run} --pt2 {run}/../run/perturbations/step-000003.safetensors",
        "predict {run} {image} -o {run}/config.json",
        "predict {run} {image} -o {run}/CONFIG.json",
        "report {run} -o {run}/records.jsonl",
        "report {run} -o {run}/done --format html",
        "report {run} -o {sweep}/plan.jsonl",
        "report {run} -o {sweep}/sweep.toml",
        "report {domainbed} -o {domainbed}/results.jsonl",
        "explain {run} -o {image} --features --csv {run}/records.jsonl",
        "robustness {run} -o {image} --csv {run}/done",
        "sweep --dataset silhouettes --algorithm erm -o {sweep}2 --engine slurm --write-script {run}/done",
    ],
)
def test_no_output_replaces_a_file_of_a_run(domainwise: Cli, tmp_path: Path, command: str) -> None:
    places = {name: tmp_path / name for name in ("run", "sweep", "domainbed")}
    for name in ("run", "sweep"):
        shutil.copytree(FIXTURES / name, places[name])
    places["domainbed"].mkdir()
    places["domainbed"].joinpath("results.jsonl").write_text(_domainbed_line())
    places["image"] = tmp_path / "image.png"
    Image.new("RGB", (20, 20)).save(places["image"])

    def read_files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for place in places.values() for path in place.rglob("*") if path.is_file()}

    before = read_files()
    outcome = domainwise(*command.format(**places).split())
    assert outcome.code == 2
    assert "is a file of a run or sweep; choose another output" in outcome.err
    assert read_files() == before
