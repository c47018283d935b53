"""`domainwise perturbations`: the pictures, the table in every form, and input that cannot be used."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from domainwise.training import RunConfig, train

SMALL = {"train_count": 60, "test_count": 40, "shifts": [0]}
METHODS: dict[str, dict[str, Any]] = {"mat": {"count": 3}, "ldat": {"rank": 4}, "at": {}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    for name in (*METHODS, "erm"):
        hparams = {} if name == "erm" else {"epsilon": 0.5, **METHODS[name]}
        train(
            RunConfig(
                algorithm=name,
                hparams=hparams,
                steps=2,
                batch_size=8,
                dataset_options=SMALL,
                output=folder / name,
                device="cpu",
            )
        )
    return folder


def test_pictures_table_and_numbers(domainwise: Callable[..., Any], runs: Path, tmp_path: Path) -> None:
    folders = [runs / name for name in METHODS]
    result = domainwise(
        "perturbations",
        *folders,
        "-o",
        tmp_path / "p",
        "--images",
        12,
        "--json",
        tmp_path / "p.json",
        "--device",
        "cpu",
    )
    assert result.code == 0, result.err
    pictures = {file.name for file in (tmp_path / "p").iterdir()}
    assert pictures == {"mat.png", "mat-components.png", "ldat.png", "at.png", "ranks.png"}
    for name in pictures:
        with Image.open(tmp_path / "p" / name) as picture:
            assert min(picture.size) > 300
    lines = [line.split() for line in result.out.splitlines()]
    # run, method, domain, norm, epsilon, images, rank, effective, rank of one, effective
    rows = {line[0]: line for line in lines if line[2:3] == ["style_1"]}
    assert {name: (row[5], row[6], row[8]) for name, row in rows.items()} == {
        "mat": ("12", "1", "32"),
        "ldat": ("12", "1", "4"),
        "at": ("12", "12", "32"),
    }
    written = {each["run"]: each for each in json.loads((tmp_path / "p.json").read_text())}
    assert written["ldat"]["rank_limit"] == 4
    assert written["at"]["is_kept"] is False
    assert sum(written["mat"]["domains"][0]["mixing_weights"]) == pytest.approx(1)
    assert written["mat"]["domains"][0]["norm"] == pytest.approx(float(rows["mat"][3]), rel=0.5)
    assert all(path.name in result.err for path in (tmp_path / "p").iterdir())


def test_markdown(domainwise: Callable[..., Any], runs: Path, tmp_path: Path) -> None:
    result = domainwise("perturbations", runs / "ldat", "-o", tmp_path, "--images", 5, "--markdown")
    assert result.code == 0, result.err
    head, rule, *rows = result.out.splitlines()
    assert head.startswith("| run | method | domain | norm | epsilon |")
    assert rule.count("---:") == 7
    assert [row.split(" | ")[2] for row in rows] == ["style_0", "style_1"]


def test_a_run_given_twice_counts_once(domainwise: Callable[..., Any], runs: Path, tmp_path: Path) -> None:
    twice = runs / "at" / ".." / "ldat"
    result = domainwise("perturbations", runs / "ldat", twice, "-o", tmp_path, "--images", 5)
    assert result.code == 0, result.err
    assert result.out.count("style_0") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("{runs}/erm",), "trained with erm, which has no perturbation"),
        (("{runs}/nothing",), "there is no run in"),
        (("{runs}/mat", "--images", "0"), "at least 1 image"),
        (("{runs}/mat", "--dataset", "/nowhere"), "nowhere"),
    ],
)
def test_wrong_input_is_one_line(
    words: tuple[str, ...], said: str, domainwise: Callable[..., Any], runs: Path, tmp_path: Path
) -> None:
    result = domainwise("perturbations", *(word.format(runs=runs) for word in words), "-o", tmp_path / "p")
    assert result.code == 2
    assert said in result.err
    assert len(result.err.strip().splitlines()) == 1
    assert not (tmp_path / "p").exists()
