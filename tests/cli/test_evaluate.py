"""`domainwise evaluate`: tables, JSON, notes, models on the Hub, and errors."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision

from domainwise.training import RunConfig, evaluate_models, train
from easy_images import write_easy_images

Call = Callable[..., Any]
DATA = {"train_count": 40, "test_count": 20, "shifts": [0, 8], "image_size": 16}
OPTIONS = [word for name, value in DATA.items() for word in ("--dataset-option", f"{name}={value}")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("runs") / "run"
    return train(
        RunConfig(algorithm="erm", steps=2, batch_size=8, dataset_options=DATA, output=output, device="cpu")
    ).folder


def test_tables_of_one_run(domainwise: Call, run: Path) -> None:
    result = domainwise("evaluate", run, "--dataset", "silhouettes", *OPTIONS, "--device", "cpu", "--seed", 3)
    assert result.code == 0, result.err
    (expected,) = evaluate_models([run], "silhouettes", options=DATA, seed=3, device="cpu")
    rows = [line.split() for line in result.out.splitlines()]
    by_domain = {**expected.by_domain, "all": expected.total}
    numbers = [
        [name, str(count.images), f"{100 * count.accuracy:.1f}", "±", f"{100 * count.error:.1f}"]
        for counts in (by_domain, expected.by_class)
        for name, count in counts.items()
    ]
    assert [row for row in rows if row[1] != "images"] == numbers
    assert [row[0] for row in rows if row[1] == "images"] == ["domain", "class"]
    assert result.err == f"note: {run} was trained on style_0, style_1 of silhouettes: these images are not new to it\n"


def test_json_of_several_runs_and_a_model_on_the_hub(
    domainwise: Call, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOMAINWISE_HUB", str(tmp_path))
    shutil.copytree(run, tmp_path / "team" / "cows")
    words = ("--dataset", "silhouettes", *OPTIONS, "--domain", "shift_8", "--which", "last", "--device", "cpu")
    result = domainwise("evaluate", run, "hf:team/cows", *words, "--json")
    assert result.code == 0, result.err
    first, second = json.loads(result.out)
    assert (first["run"], second["run"]) == (str(run), "hf:team/cows")
    assert {**second, "run": str(run)} == first
    assert list(first["domains"]) == ["shift_8"]
    assert first["images"] == sum(each["images"] for each in first["classes"].values()) == 20
    assert result.err == ""
    table = domainwise("evaluate", run, "hf:team/cows", *words, "--quiet")
    assert (table.code, table.out, table.err) == (0, "", "")
    table = domainwise("evaluate", run, "hf:team/cows", *words)
    assert [line.split()[0] for line in table.out.splitlines() if "shift_8" in line] == [str(run), "hf:team/cows"]


def test_unknown_classes_are_left_out_on_request(domainwise: Call, run: Path, tmp_path: Path) -> None:
    words = ("evaluate", run, "--dataset", f"{__name__}:build_horses", "--device", "cpu")
    result = domainwise(*words)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith(
        f"error: the model of {run} does not have the classes horse of horses, only cow, camel; "
    )
    result = domainwise(*words, "--ignore-unknown-classes", "--only-dataset-classes")
    assert result.code == 0, result.err
    assert result.err == f"note: left out images of classes that {run} does not have: horse (5)\n"


def build_horses(seed: int) -> Any:
    import torch

    from domainwise.data import Dataset, Domain

    images, labels = torch.zeros(10, 3, 16, 16, dtype=torch.uint8), torch.arange(10) % 2
    return Dataset("horses", ("cow", "horse"), (Domain("stable", images, labels),))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("{run}", "--dataset", "silhouetes"), "unknown dataset 'silhouetes'; did you mean 'silhouettes'?"),
        (("{run}/nothing", "--dataset", "silhouettes"), "nothing not found"),
        (("{run}", "--dataset", "silhouettes", "--device", "gpu"), "unknown device 'gpu'"),
        (("{run}", "--dataset", "silhouettes", "--domain", "shift_9"), "unknown domain of silhouettes 'shift_9'"),
        (("{run}", "--dataset", "silhouettes", "--dataset-option", "size"), "--dataset-option expects name=value"),
        (("hf:team", "--dataset", "silhouettes"), "hf:team"),
    ],
)
def test_errors_are_one_line(domainwise: Call, run: Path, words: tuple[str, ...], message: str) -> None:
    result = domainwise("evaluate", *(word.format(run=run) for word in words))
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert message in result.err


def test_published_classifier(domainwise: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOMAINWISE_CACHE", str(tmp_path / "cache"))
    weights = tmp_path / "shufflenet.pth"
    torch.save(torchvision.models.shufflenet_v2_x0_5().state_dict(), weights)
    root = write_easy_images(tmp_path / "imagenet-r", count=2)
    for domain in root.iterdir():
        for kind, wordnet_id in zip(sorted(domain.iterdir()), ("n01440764", "n01443537"), strict=True):
            kind.rename(domain / wordnet_id)
    words = ("evaluate", "torchvision:shufflenet_v2_x0_5", "--weights", weights, "--dataset", root, "--device", "cpu")
    result = domainwise(*words)
    assert result.code == 0, result.err
    assert "n01440764" in result.out
    assert result.err == (
        "note: torchvision:shufflenet_v2_x0_5 may predict classes that imagenet-r lacks (998), which counts as wrong; "
        "--only-dataset-classes excludes them\n"
    )
    monkeypatch.setattr("domainwise.cli.evaluate.MAX_ROWS", 1)
    restricted = domainwise(*words, "--only-dataset-classes")
    assert restricted.code == 0, restricted.err
    assert "n01440764" not in restricted.out
    assert restricted.err == "note: accuracies of more than 1 classes are not printed; add --json\n"
    missing = domainwise(*words[:2], "--weights", tmp_path / "none.pth", "--dataset", root)
    assert (missing.code, missing.err) == (2, f"error: weights file {tmp_path / 'none.pth'} not found\n")
