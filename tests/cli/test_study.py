"""`domainwise study` on the command line: what it prints, and what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

QUICK = ("--network", "small_cnn", "--image-size", "16", "--batch-size", "4", "--steps", "1", "--device", "cpu")


def make_folder(root: Path, domains: tuple[str, ...], count: int = 8) -> Path:
    for domain in domains:
        for level, name in enumerate(("cat", "dog")):
            (root / domain / name).mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (16, 16), (100 * level, 20 * number, 50)).save(root / domain / name / f"{number}.png")
    return root


def test_a_single_domain(tmp_path: Path, domainwise: Callable[..., Any]) -> None:
    folder = make_folder(tmp_path / "one", ("home",))
    outcome = domainwise("study", folder, *QUICK, "-o", tmp_path / "out")
    assert outcome.code == 0, outcome.err
    assert "with a single domain, none can be held out" in outcome.out
    assert f"domainwise predict {tmp_path / 'out' / 'final'} IMAGES" in outcome.out
    assert (tmp_path / "out" / "study.md").exists()


def test_json_has_methods_commands_and_files(tmp_path: Path, domainwise: Callable[..., Any]) -> None:
    folder = make_folder(tmp_path / "two", ("home", "park"))
    options = ("--trials", "1", "--budget", "20min", "--workers", "1", "--json", "-o", tmp_path / "out")
    outcome = domainwise("study", folder, *QUICK, *options)
    assert outcome.code == 0, outcome.err
    result = json.loads(outcome.out)
    assert result["recommended"] == "erm"
    assert len(result["methods"]) == 7
    assert {each["trials"] for each in result["methods"].values()} == {1}
    assert result["commands"][0].startswith("domainwise train")
    assert [Path(file).name for file in result["files"]] == ["study.md", "study.png", "study.html"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--budget", "soon"), "a budget is a duration such as 90s"),
        (("--budget", "10s", "--steps", "100000000"), "the budget is too small"),
        (("--margin", "-1"), "margin must be at least 0"),
        (("--network", "resnet_18"), "resnet18"),
    ],
)
def test_bad_options(options: tuple[str, ...], message: str, tmp_path: Path, domainwise: Callable[..., Any]) -> None:
    folder = make_folder(tmp_path / "two", ("home", "park"))
    outcome = domainwise("study", folder, *QUICK, *options, "-o", tmp_path / "out")
    assert outcome.code == 2
    assert message in outcome.err
    assert "Traceback" not in outcome.err


def test_no_such_folder(tmp_path: Path, domainwise: Callable[..., Any]) -> None:
    outcome = domainwise("study", tmp_path / "nowhere", "-o", tmp_path / "out")
    assert outcome.code == 2
    assert len(outcome.err.strip().splitlines()) == 1
