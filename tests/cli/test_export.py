"""`domainwise export`: what it prints, and its errors."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from domainwise.training import RunConfig, train

Call = Callable[..., Any]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    counts = {"train_count": 40, "test_count": 20, "image_size": 16, "shifts": [0]}
    output = tmp_path_factory.mktemp("runs") / "run"
    config = RunConfig(algorithm="erm", steps=2, batch_size=8, dataset_options=counts, output=output, device="cpu")
    return train(config).folder


def test_one_line_per_file(domainwise: Call, run: Path, tmp_path: Path) -> None:
    files = (tmp_path / "model.onnx", tmp_path / "model.pt2")
    result = domainwise("export", run, "--onnx", files[0], "--pt2", files[1])
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert len(lines) == 2
    for line, file in zip(lines, files, strict=True):
        written = re.escape(f"wrote {file} ({file.stat().st_size / 1e6:.1f} MB)")
        described = r": uint8 images \(batch, height, width, 3\) -> probabilities of 2 classes; "
        assert re.fullmatch(rf"{written}{described}largest difference from predict [\de.-]+", line)
        assert float(line.split()[-1]) < 1e-5
    assert result.err == ""


def test_quiet_prints_nothing(domainwise: Call, run: Path, tmp_path: Path) -> None:
    result = domainwise("export", run, "--pt2", tmp_path / "model.pt2", "--which", "last", "--quiet")
    assert (result.code, result.out, result.err) == (0, "", "")
    assert (tmp_path / "model.pt2").exists()


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_missing_package_is_named(
    package: str, domainwise: Call, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    result = domainwise("export", run, "--onnx", tmp_path / "model.onnx")
    assert result.code == 2
    assert result.err.startswith(f"error: export to ONNX needs {package}; install it with: pip install ")
    assert f" '{package}>=" in result.err
    assert result.err.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("{run}",), "nothing to export to; give --onnx FILE, --pt2 FILE or both"),
        (("{empty}", "--pt2", "model.pt2"), "no run in"),
        (("{run}", "--onnx", "{empty}/model", "--pt2", "{empty}/model"), "--onnx and --pt2 are the same file"),
        (("{run}", "--pt2", "{empty}/no/model.pt2"), "there is no folder"),
        (("{run}", "--pt2", "{empty}"), "is a folder"),
        (("{run}", "--pt2", "{empty}/model.pt2", "--which", "newest"), "unknown model of a run 'newest'"),
        (("{run}", "--pt2", "{empty}/model.pt2", "--which", "start"), "has no start.safetensors"),
        (("hf:cows", "--pt2", "{empty}/model.pt2"), "expected hf:owner/name"),
    ],
)
def test_errors_are_one_line(args: tuple[str, ...], message: str, domainwise: Call, run: Path, tmp_path: Path) -> None:
    result = domainwise("export", *(word.format(run=run, empty=tmp_path) for word in args))
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
