"""`domainwise train`: a run, its folder, a second call, and every input that cannot be used."""

import csv
import hashlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from domainwise import load_algorithm, load_model
from domainwise.data import silhouettes
from domainwise.storage.sweep_folder import SweepFolder
from domainwise.sweeps.plan import plan_sweep
from domainwise.sweeps.spec import SweepSpec
from domainwise.training import RunFolder
from easy_images import write_easy_images

SMALL = [
    *("--dataset-option", "train_count=60", "--dataset-option", "test_count=20", "--dataset-option", "shifts=(0,8)"),
    *("--dataset-option", "image_size=16"),
    *(
        "--steps",
        "7",
        "--record-every",
        "3",
        "--record-first",
        "--batch-size",
        "8",
        "--threads",
        "1",
        "--device",
        "cpu",
    ),
]
Cli = Callable[..., object]


def digest(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.iterdir() if path.name != ".lock")
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_a_run_leaves_a_complete_folder(domainwise: Cli, tmp_path: Path) -> None:
    hparams = ["-H", "epsilon=0.25", "-H", "weights=domain"]
    outcome = domainwise("train", *SMALL, "--algorithm", "mat", *hparams, "-o", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        *("config.json", "records.jsonl", "last.safetensors", "best.safetensors", "method.safetensors", "done"),
        ".lock",
    }
    records = [json.loads(line) for line in (tmp_path / "run" / "records.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [0, 3, 6]
    last = records[-1]
    assert last["schema"] == 1
    assert (last["dataset"], last["algorithm"], last["hparams"]["epsilon"]) == ("silhouettes", "mat", 0.25)
    assert last["train_domains"] == ["style_0", "style_1"]
    assert last["test_domains"] == ["shift_0", "shift_8"]
    # Only what selection needs: no main part of the training domains.
    assert set(last["accuracy"]["style_0"]) == {"holdout"}
    assert set(last["accuracy"]["shift_8"]) == {"main", "holdout"}
    assert all(norm <= 0.25 * 1.0001 for norm in last["perturbation"]["norm"])
    assert len(last["perturbation"]["mixing_weights"][0]) == last["hparams"]["count"]
    assert "step     6" in outcome.out


def test_evaluate_all_measures_the_training_part_too(domainwise: Cli, tmp_path: Path) -> None:
    domainwise("train", *SMALL, "--algorithm", "erm", "--evaluate", "all", "-o", tmp_path / "run")
    last = json.loads((tmp_path / "run" / "records.jsonl").read_text().splitlines()[-1])
    assert set(last["accuracy"]["style_0"]) == {"main", "holdout"}


def test_a_small_share_of_trained_parameters_is_not_rounded_to_nothing(domainwise: Cli, tmp_path: Path) -> None:
    backbone = ["--backbone", "resnet18", "--freeze", "all", "--steps", "1"]
    outcome = domainwise("train", *SMALL, *backbone, "--algorithm", "erm", "-o", tmp_path / "run")
    assert "training 1,026 of 11,177,538 parameters (0.00918%)" in outcome.out + outcome.err


def test_only_planned_runs_are_trained_into_the_folder_of_a_sweep(domainwise: Cli, tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path / "sweep")
    with folder.lock():
        folder.write_plan([])
    outcome = domainwise("train", *SMALL, "-o", folder.path / "run")
    assert outcome.code == 2
    assert "is among the runs of" in outcome.err
    assert outcome.err.count("\n") == 1
    assert not (folder.path / "run").exists()


def test_a_second_call_changes_nothing(domainwise: Cli, tmp_path: Path) -> None:
    domainwise("train", *SMALL, "-o", tmp_path / "run")
    before = digest(tmp_path / "run")
    assert domainwise("train", *SMALL, "-o", tmp_path / "run").code == 0
    assert digest(tmp_path / "run") == before


def test_recorded_accuracy_is_that_of_the_saved_model(domainwise: Cli, tmp_path: Path) -> None:
    domainwise("train", *SMALL, "--algorithm", "erm", "--evaluate", "all", "-o", tmp_path / "run")
    last = json.loads((tmp_path / "run" / "records.jsonl").read_text().splitlines()[-1])
    model = load_model(tmp_path / "run", "last")
    domain = next(
        d
        for d in silhouettes(0, train_count=60, test_count=20, shifts=(0, 8), image_size=16).domains
        if d.name == "style_1"
    )
    with torch.no_grad():
        right = (model(domain.images.float() / 255).argmax(1) == domain.labels).float().mean().item()
    parts = last["accuracy"]["style_1"]
    assert right == pytest.approx(0.8 * parts["main"] + 0.2 * parts["holdout"])
    assert load_algorithm(tmp_path / "run").network is not model


def test_a_radius_per_pixel(domainwise: Cli, tmp_path: Path) -> None:
    outcome = domainwise("train", *SMALL, "--algorithm", "uat", "-H", "epsilon=2/255 rms", "-o", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    last = json.loads((tmp_path / "run" / "records.jsonl").read_text().splitlines()[-1])
    assert last["hparams"]["epsilon"] == "2/255 rms"
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    pixels = math.prod(stored["data"]["input_shape"])
    assert max(last["perturbation"]["norm"]) == pytest.approx(2 / 255 * math.sqrt(pixels), rel=1e-3)


@pytest.mark.filterwarnings("default")
def test_rank_above_the_image_size_prints_a_note(domainwise: Cli, tmp_path: Path) -> None:
    outcome = domainwise("train", *SMALL, "--algorithm", "ldat", "-H", "rank=40", "-o", tmp_path / "run")
    assert outcome.code == 0
    assert outcome.err.startswith("note: rank 40 exceeds the image size 16 x 16")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--dataset", "silouettes"], "unknown dataset 'silouettes'; did you mean 'silhouettes'?"),
        (["--algorithm", "matt"], "unknown algorithm 'matt'; did you mean 'mat'?"),
        (["--network", "small_cn"], "did you mean 'small_cnn'?"),
        (["-H", "epsilom=1"], "unknown hyperparameter 'epsilom'; did you mean 'epsilon'?"),
        (
            ["-H", "epsilon=big"],
            "hyperparameter epsilon must be a number of at least 0, such as 0.5 or '2/255 rms', got 'big'",
        ),
        (["-H", "epsilon=2/0 rms"], "hyperparameter epsilon must be a number of at least 0"),
        (
            ["-H", "epsilon=2/255 rms", "-H", "norm=linf"],
            "must be a number without unit for norm='linf', got '2/255 rms'",
        ),
        (["-H", "epsilon"], "--hparam expects name=value, got 'epsilon'"),
        (
            ["-H", "epsilon=-1"],
            "hyperparameter epsilon must be a number of at least 0, such as 0.5 or '2/255 rms', got -1.0",
        ),
        (["-H", "clean_weight=-1"], "clean_weight must be at least 0, got -1.0"),
        (["--algorithm", "irm", "-H", "penalty_weight=-1"], "penalty_weight must be at least 0, got -1.0"),
        (["--algorithm", "mixup", "-H", "alpha=0"], "alpha must be greater than 0, got 0.0"),
        (["--algorithm", "rsc", "-H", "feature_drop=2"], "feature_drop must be at least 0 and at most 1, got 2.0"),
        (["--algorithm", "coral", "--train-domain", "style_0"], "CORAL compares domains and needs at least 2"),
        (
            ["-H", "ascent=up"],
            "hyperparameter ascent must be one of 'normalized', 'gradient', 'sign' or none, got 'up'",
        ),
        (["-H", "lr=-1"], "Invalid learning rate: -1.0"),
        (["-H", "schedule=simultaneous", "-H", "weights=sample"], "schedule='simultaneous' needs a perturbation"),
        (["--dataset-option", "image_sise=48"], "did you mean 'image_size'?"),
        (["--dataset-option", "image_size=4"], "image_size must be at least 16"),
        (["--dataset-option", "image_size=wide"], "dataset option image_size must be an integer, got 'wide'"),
        (["--test-domain", "shift_9"], "unknown domain of silhouettes 'shift_9'; did you mean 'shift_"),
        (["--train-domain", "shift_0"], "domain 'shift_0' of silhouettes has the fixed role test, not train"),
        (["--evaluate", "al"], "unknown evaluate 'al'; did you mean 'all'?"),
        (["--augment", "stong"], "unknown augment 'stong'; did you mean 'strong'? Choices: true, false, strong"),
        (["--augment="], "unknown augment ''. Choices: true, false, strong"),
        (["--steps", "0"], "steps must be an integer of at least 1, got 0"),
        (["--dropout", "1"], "dropout must be a number of at least 0 and below 1, got 1.0"),
        (["--layer-decay", "nan"], "layer_decay must be a number of at least 0 and below 1, got nan"),
        (["--freeze", "all", "--layer-decay", "0.5"], "--layer-decay has no effect with --freeze all"),
        (["--dataset", "no_such_package:data"], "could not import dataset 'no_such_package:data'"),
        (["--batch-size", "49"], "domain 'style_0' has only 48 training images for a batch size of 49"),
        (["--trial-seed", "-1"], "seed must be at least 0"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(domainwise: Cli, tmp_path: Path, args: list[str], message: str) -> None:
    outcome = domainwise("train", *SMALL, "-o", tmp_path / "run", *args)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert not (tmp_path / "run" / "records.jsonl").exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("empty", "domain 'hollow' of dataset 'bad' is empty"),
        ("mislabelled", "domain 'odd' of dataset 'bad' has labels from 2 to 2; expected 0 to 1"),
        ("uneven", "domain 'scant' has only 10 training images for a batch size of 32"),
    ],
)
def test_bad_data_is_one_line_and_exit_code_2(domainwise: Cli, tmp_path: Path, name: str, message: str) -> None:
    outcome = domainwise("train", "--dataset", f"bad_data:{name}", "-o", tmp_path / "run")
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: {message}")
    assert outcome.err.count("\n") == 1


def test_folder_of_a_different_run_is_not_touched(domainwise: Cli, tmp_path: Path) -> None:
    domainwise("train", *SMALL, "-H", "epsilon=0.25", "-o", tmp_path / "run")
    before = digest(tmp_path / "run")
    outcome = domainwise("train", *SMALL, "-H", "epsilon=0.75", "-o", tmp_path / "run")
    assert outcome.code == 2
    assert "contains a different run: hparams.epsilon is 0.25 there and 0.75 here" in outcome.err
    assert digest(tmp_path / "run") == before


def test_folder_of_other_files_is_not_touched(domainwise: Cli, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    outcome = domainwise("train", *SMALL, "-o", tmp_path)
    assert outcome.code == 2
    assert "contains files that are not a run (thesis.tex ...)" in outcome.err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("file", "cut", "message"),
    [
        ("records.jsonl", 40, "records.jsonl has 2 records, but the checkpoint counts 3"),
        ("records.jsonl", 1, "records.jsonl has 2 records, but the checkpoint counts 3"),
        ("records.jsonl", 900, "but the checkpoint counts 3"),
        ("checkpoint.pt", 1000, "checkpoint.pt is damaged or incomplete"),
        ("config.json", 10, "config.json is damaged"),
    ],
)
def test_truncated_file_is_reported_and_nothing_is_lost(
    domainwise: Cli, tmp_path: Path, file: str, cut: int, message: str
) -> None:
    run = tmp_path / "run"
    domainwise("train", *SMALL, "--keep", "all", "-o", run)
    (run / "done").unlink()
    content = (run / file).read_bytes()
    (run / file).write_bytes(content[:-cut])
    before = digest(run)
    outcome = domainwise("train", *SMALL, "--keep", "all", "-o", run)
    assert outcome.code == 2
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
    assert digest(run) == before


def test_damaged_record_before_the_last_is_reported(domainwise: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    domainwise("train", *SMALL, "-o", run)
    lines = (run / "records.jsonl").read_text().splitlines(keepends=True)
    (run / "records.jsonl").write_text("".join((lines[0], lines[1][:40] + "\n", lines[2])))
    before = digest(run)
    outcome = domainwise("train", *SMALL, "-o", run)
    assert outcome.code == 2
    assert "records.jsonl is damaged at line 2" in outcome.err
    assert outcome.err.count("\n") == 1
    assert digest(run) == before


@pytest.mark.parametrize("cut", ["part of a line", "a line", "all"])
def test_done_run_without_its_last_record_is_not_complete(domainwise: Cli, tmp_path: Path, cut: str) -> None:
    run = tmp_path / "run"
    domainwise("train", *SMALL, "-o", run)
    lines = (run / "records.jsonl").read_text().splitlines(keepends=True)
    kept = {"part of a line": (*lines[:2], lines[2][:-1]), "a line": lines[:2], "all": ()}[cut]
    (run / "records.jsonl").write_text("".join(kept))
    before = digest(run)
    outcome = domainwise("train", *SMALL, "-o", run)
    assert outcome.code == 2
    last = json.loads(lines[2])["step"]
    assert f"the run is done, but {run / 'records.jsonl'} does not reach its last step, {last}" in outcome.err
    assert outcome.err.count("\n") == 1
    assert digest(run) == before


def test_incomplete_record_newer_than_the_checkpoint_is_harmless(domainwise: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    domainwise("train", *SMALL, "--keep", "all", "-o", run)
    whole = (run / "records.jsonl").read_text()
    (run / "done").unlink()
    (run / "records.jsonl").write_text(whole + whole[:50])
    assert domainwise("train", *SMALL, "--keep", "all", "-o", run).code == 0
    assert (run / "done").exists()
    assert [record["step"] for record in RunFolder(run).read_records()] == [
        json.loads(line)["step"] for line in whole.splitlines()
    ]


def test_records_missing_before_the_checkpoint_are_reported(domainwise: Cli, tmp_path: Path) -> None:
    run = tmp_path / "run"
    domainwise("train", *SMALL, "--keep", "all", "-o", run)
    (run / "done").unlink()
    lines = (run / "records.jsonl").read_text().splitlines(keepends=True)
    (run / "records.jsonl").write_text("".join(lines[:1]))
    outcome = domainwise("train", *SMALL, "--keep", "all", "-o", run)
    assert outcome.code == 2
    assert "has 1 records, but the checkpoint counts 3" in outcome.err


def test_bf16_is_tested_in_a_child_process_first(domainwise: Cli, tmp_path: Path) -> None:
    outcome = domainwise("train", *SMALL, "--precision", "bf16", "-o", tmp_path / "run")
    assert outcome.code == 0 or "precision 'bf16' crashes on this CPU" in outcome.err


def test_help_has_examples(domainwise: Cli) -> None:
    for command in ("train", "demo", "algorithms", "data check", "theory"):
        assert f"domainwise {command}" in domainwise(*command.split(), "--help").out.split("Examples:")[1]


def test_lists(domainwise: Cli) -> None:
    assert "ldat" in domainwise("algorithms").out
    shown = domainwise("algorithms", "mat").out
    assert "5 or 10 or 15 or 20" in shown
    assert "silhouettes_spurious" in domainwise("data", "list").out
    assert "shift_16" in domainwise("data", "check", "silhouettes").out
    assert domainwise("data", "check", "silhouete").code == 2


def test_a_domain_and_a_class_may_have_any_name(domainwise: Callable[..., Any], tmp_path: Path) -> None:
    """Names are in a CSV file, which may hold what no folder is called."""
    images = write_easy_images(tmp_path / "images", count=6)
    names = {"dark": "[/b]", "dim": "\x1b[31m=cmd()", "light": "領域" * 15}
    rows = [("path", "label", "domain")]
    rows += [
        (str(file), f"[/{file.parent.name}]", names[file.parent.parent.name]) for file in sorted(images.rglob("*.png"))
    ]
    with open(tmp_path / "table.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    words = ("--dataset", tmp_path / "table.csv", "--steps", 2, "--batch-size", 4, "--image-size", 16)
    options = ("--network", "small_cnn", "--device", "cpu")
    outcome = domainwise(
        "train", "--algorithm", "erm", "--test-domain", "[/b]", *words, *options, "-o", tmp_path / "[/i]"
    )
    assert outcome.code == 0, outcome.err
    assert "[/b] 0." in outcome.out or "[/b] 1." in outcome.out
    assert f"done: {tmp_path}/[/i]\n" in outcome.out
    plan = plan_sweep(SweepSpec((str(tmp_path / "table.csv"),), ("erm",)), tmp_path / "sweep")
    assert len({run.name for run in plan}) == 3
    assert all(len(run.name.encode()) < 240 for run in plan)
