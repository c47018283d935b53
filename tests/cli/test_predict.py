"""`domainwise predict`: files and folders, every output format, broken files, and errors."""

import csv
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from domainwise.data import silhouettes
from domainwise.training import RunConfig, load_model, train
from domainwise.training.prediction import predict_images

COUNTS = {"train_count": 200, "test_count": 40, "shifts": [0]}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("runs") / "run"
    return train(
        RunConfig(algorithm="erm", steps=30, batch_size=32, dataset_options=COUNTS, output=output, device="cpu")
    ).folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pictures")
    domain = silhouettes(0, **COUNTS).domains[0]
    (folder / "below").mkdir()
    for index in range(6):
        pixels = domain.images[index].permute(1, 2, 0).contiguous().numpy()
        Image.fromarray(pixels).save(folder / ("below" if index > 3 else ".") / f"{index}.png")
    return folder


Call = Callable[..., Any]


def test_json_has_the_models_probabilities(domainwise: Call, run: Path, pictures: Path) -> None:
    result = domainwise("predict", run, pictures, "--json", "--which", "last")
    assert result.code == 0, result.err
    rows = json.loads(result.out)
    assert [Path(row["image"]).name for row in rows] == [f"{index}.png" for index in range(6)]
    model, domain = load_model(run, "last"), silhouettes(0, **COUNTS).domains[0]
    with torch.no_grad():
        expected = model(domain.images[:6].float() / 255).softmax(1)
    probabilities = np.array([[row["probabilities"][name] for name in ("cow", "camel")] for row in rows])
    assert probabilities == pytest.approx(expected.numpy(), abs=1e-5)
    assert [row["class"] for row in rows] == [("cow", "camel")[index] for index in expected.argmax(1)]
    assert [row["probability"] for row in rows] == pytest.approx(expected.max(1).values.tolist(), abs=1e-5)


def test_csv_is_written_to_a_file(domainwise: Call, run: Path, pictures: Path, tmp_path: Path) -> None:
    result = domainwise("predict", run, pictures / "0.png", pictures / "0.png", "-o", tmp_path / "out.csv")
    assert result.code == 0, result.err
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text())))
    assert len(rows) == 1
    assert float(rows[0]["cow"]) + float(rows[0]["camel"]) == pytest.approx(1, abs=1e-5)
    assert float(rows[0]["probability"]) == max(float(rows[0]["cow"]), float(rows[0]["camel"]))


def test_top_sets_the_number_of_classes(domainwise: Call, run: Path, pictures: Path) -> None:
    result = domainwise("predict", run, pictures / "1.png", "--top", 2)
    assert result.code == 0, result.err
    assert {"cow", "camel"} <= set(result.out.split())
    assert result.out.count("%") == 2


def test_broken_files_are_reported_after_the_others(
    domainwise: Call, run: Path, pictures: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    result = domainwise("predict", run, broken, pictures / "1.png", "--json")
    assert result.code == 1
    assert "broken.png is not an image" in result.err
    rows = json.loads(result.out)
    assert rows[0]["class"] is None
    assert rows[1]["class"] in ("cow", "camel")


def test_quiet_prints_nothing(domainwise: Call, run: Path, pictures: Path, tmp_path: Path) -> None:
    result = domainwise("predict", run, pictures, "--quiet", "--output", tmp_path / "classes.json")
    assert (result.code, result.out, result.err) == (0, "", "")
    assert len(json.loads((tmp_path / "classes.json").read_text())) == 6


def test_the_python_call_returns_the_same(run: Path, pictures: Path) -> None:
    predictions = predict_images(run, [pictures], device="cpu")
    assert [each.file.name for each in predictions] == [f"{index}.png" for index in range(6)]
    assert all(sum(each.probabilities.values()) == pytest.approx(1, abs=1e-5) for each in predictions)
    assert all(each.probabilities[each.label] == max(each.probabilities.values()) for each in predictions)


def test_special_files_are_reported(domainwise: Call, run: Path, pictures: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "loop.png").symlink_to("loop.png")
    with open(tmp_path / "large.png", "wb") as sparse:
        sparse.truncate(10**12)
    result = domainwise("predict", run, "/dev/zero", tmp_path, pictures / "0.png", "--json")
    assert result.code == 1
    assert [row["error"] for row in json.loads(result.out)] == [
        "is a device, not a file",
        "is too large (1,000,000,000,000 bytes; the limit is 536,870,910)",
        "could not be read: Too many levels of symbolic links",
        "is a FIFO, not a file",
        None,
    ]
    assert result.err.count("\n") == 4
    missing = domainwise("predict", run, tmp_path / "loop.png")
    assert (missing.code, "not found" in missing.err) == (2, True)


@pytest.mark.filterwarnings("default")
def test_folder_with_a_loop_is_predicted_once(domainwise: Call, run: Path, pictures: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").symlink_to(pictures)
    (tmp_path / "again").symlink_to(tmp_path)
    result = domainwise("predict", run, tmp_path, "--json")
    assert result.code == 0
    assert len(json.loads(result.out)) == 6
    assert f"{tmp_path / 'again'} is left out" in result.err


def test_names_that_are_not_utf8_are_escaped(domainwise: Call, run: Path, pictures: Path, tmp_path: Path) -> None:
    file = tmp_path / os.fsdecode(b"\xff\n.png")
    file.write_bytes((pictures / "0.png").read_bytes())
    shown = f"{tmp_path}/\\xff\\n.png"
    assert json.loads(domainwise("predict", run, file, "--json").out)[0]["image"] == shown
    assert "\\xff\\n.png" in domainwise("predict", run, file).out
    assert domainwise("predict", run, tmp_path, "-o", tmp_path / "out.csv").code == 0
    assert shown in (tmp_path / "out.csv").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("{run}", "nothing.png"), "file or folder nothing.png not found"),
        (("{empty}", "{pictures}"), "no run in"),
        (("{run}", "{empty}"), "no images found in folder"),
        (("{run}", "{pictures}", "--output", "classes.cvs"), "did you mean 'csv'?"),
        (("{run}", "{pictures}", "--device", "gpu"), "unknown device 'gpu'"),
        (("{run}", "{pictures}", "--which", "newest"), "unknown model of a run 'newest'"),
    ],
)
def test_errors_are_one_line(
    args: tuple[str, ...], message: str, domainwise: Call, run: Path, pictures: Path, tmp_path: Path
) -> None:
    result = domainwise("predict", *(word.format(run=run, pictures=pictures, empty=tmp_path) for word in args))
    assert result.code == 2
    assert message in result.err
    assert "Traceback" not in result.err
