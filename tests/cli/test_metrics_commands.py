"""Metrics beyond accuracy from training to tables, a page and an evaluation on other data."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from domainwise.training import RunConfig, RunFolder, evaluate_models, train

Call = Callable[..., Any]
DATA = {"train_count": 40, "test_count": 20, "shifts": [0, 8], "image_size": 16}
OPTIONS = [word for name, value in DATA.items() for word in ("--dataset-option", f"{name}={value}")]
ALL = ("macro_f1", "balanced_accuracy", "worst_class", "ece", "confusion")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    settings: dict[str, Any] = {"dataset_options": DATA, "steps": 4, "record_every": 2, "batch_size": 8}
    for algorithm in ("erm", "mat"):
        output = folder / algorithm
        train(RunConfig(algorithm=algorithm, metrics=ALL, device="cpu", threads=1, output=output, **settings))
    return folder


def test_records_have_the_metrics_that_were_asked_for(domainwise: Call, tmp_path: Path) -> None:
    words = (*OPTIONS, "--steps", 2, "--batch-size", 8, "--device", "cpu", "--threads", 1, "-o", tmp_path / "run")
    outcome = domainwise("train", *words, "--metrics", "ece,worst_class", "--metrics", "macro_f1", "-q")
    assert outcome.code == 0, outcome.err
    folder, names = RunFolder(tmp_path / "run"), ["macro_f1", "worst_class", "ece"]
    assert folder.read_config()["config"]["metrics"] == names
    assert [list(record["metrics"]) for record in folder.read_records()] == [names]


def test_report_by_a_metric(domainwise: Call, runs: Path, tmp_path: Path) -> None:
    record = RunFolder(runs / "mat").read_records()[-1]
    outcome = domainwise("report", runs, "--metric", "macro_f1", "--selection", "test_domain", "--format", "json")
    assert outcome.code == 0, outcome.err
    table = json.loads(outcome.out)["tables"][0]
    assert table["metric"] == "macro_f1"
    values = [100 * record["metrics"]["macro_f1"][name]["main"] for name in ("shift_0", "shift_8")]
    assert [cell["mean"] for cell in table["rows"][1]["cells"][:2]] == pytest.approx(values)
    assert domainwise("report", runs, "--metric", "ece", "-o", tmp_path / "page.html").code == 0
    assert "Confusion matrices" in (tmp_path / "page.html").read_text()


def test_evaluation_on_other_data(domainwise: Call, runs: Path) -> None:
    words = ("evaluate", runs / "erm", "--dataset", "silhouettes", *OPTIONS, "--seed", 3, "--device", "cpu")
    words = (*words, "--domain", "shift_0", "--domain", "shift_8", "--metrics", ",".join(ALL))
    (expected,) = evaluate_models(
        [runs / "erm"], "silhouettes", options=DATA, seed=3, domains=("shift_0", "shift_8"), metrics=ALL, device="cpu"
    )
    (content,) = json.loads(domainwise(*words, "--json").out)
    assert content["metrics"] == expected.total_metrics
    assert content["model_classes"] == ["cow", "camel"]
    assert content["worst_domain"] == expected.worst_domain
    for name, values in content["domains"].items():
        assert values["metrics"] == expected.metrics[name]
        assert sum(map(sum, values["metrics"]["confusion"])) == values["images"] == 20
        assert values["metrics"]["confusion"][0][0] == expected.counts[name]["cow"].correct
    summed = [[sum(pair) for pair in zip(*rows, strict=True)] for rows in zip(*_confusions(content), strict=True)]
    assert content["metrics"]["confusion"] == summed
    table = domainwise(*words)
    lines = [line.split() for line in table.out.splitlines()]
    header = next(line for line in lines if line[:1] == ["domain"])
    assert " ".join(header).endswith("accuracy, % macro-F1, % balanced accuracy, % worst-class accuracy, % ECE, %")
    total = next(line for line in lines if line[:1] == ["all"])
    assert total[-4:] == [f"{100 * content['metrics'][name]:.1f}" for name in ALL[:-1]]
    rows = [line[1:] for line in lines if line[0] in ("cow", "camel") and "±" not in line]
    assert rows == [list(map(str, row)) for matrix in _confusions(content) for row in matrix]


def _confusions(content: dict[str, Any]) -> list[list[list[int]]]:
    return [values["metrics"]["confusion"] for values in content["domains"].values()]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "--metrics", "macro_f1,f1"), "unknown metric to record 'f1'"),
        (
            ("sweep", "--metrics", "auc", "--dataset", "silhouettes", "--algorithm", "erm"),
            "unknown metric to record 'auc'",
        ),
        (("evaluate", "{runs}/erm", "--dataset", "silhouettes", "--metrics", "acc"), "unknown metric to record"),
        (("report", "{runs}", "--metric", "confusion"), "confusion is a matrix, not a number"),
        (("report", "{runs}", "--metric", "ece", "--paper"), "the paper has accuracies only"),
        (("report", "{runs}", "--dataset", "silhouettes"), "--dataset has no effect without --pictures"),
    ],
)
def test_errors_are_one_line(domainwise: Call, runs: Path, words: tuple[str, ...], message: str) -> None:
    result = domainwise(*(word.format(runs=runs) for word in words))
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert message in result.err
