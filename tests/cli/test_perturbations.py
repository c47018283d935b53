"""`domainwise perturbations`: the figures, the table, JSON, folders of runs, and errors."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from domainwise.training import RunConfig, train

SMALL = {"train_count": 40, "test_count": 10, "shifts": [0], "image_size": 16}
METHODS: dict[str, dict[str, Any]] = {
    "mat": {"count": 3, "weights": "domain"},
    "ldat": {"rank": 4},
    "at": {},
}


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


def test_figures_and_table(domainwise: Callable[..., Any], runs: Path, tmp_path: Path) -> None:
    folders = [runs / name for name in METHODS]
    result = domainwise(
        "perturbations",
        *folders,
        "-o",
        tmp_path / "p",
        "--images",
        12,
        "--device",
        "cpu",
    )
    assert result.code == 0, result.err
    figures = {file.name for file in (tmp_path / "p").iterdir()}
    assert figures == {"mat.png", "mat-components.png", "ldat.png", "at.png", "ranks.png"}
    for name in figures:
        with Image.open(tmp_path / "p" / name) as picture:
            assert min(picture.size) > 300
    lines = [line.split() for line in result.out.splitlines()]
    # run, method, domain, norm, epsilon, images, rank, effective, rank of one, effective
    rows = {line[0]: line for line in lines if line[2:3] == ["style_1"]}
    assert {name: (row[5], row[6], row[8]) for name, row in rows.items()} == {
        "mat": ("12", "1", "16"),
        "ldat": ("12", "1", "4"),
        "at": ("12", "12", "16"),
    }
    assert all(path.name in result.err for path in (tmp_path / "p").iterdir())


def test_json_has_all_numbers(domainwise: Callable[..., Any], runs: Path, tmp_path: Path) -> None:
    folders = [runs / name for name in METHODS]
    result = domainwise("perturbations", *folders, "-o", tmp_path, "--images", 4, "--json", "-q", "--device", "cpu")
    assert result.code == 0, result.err
    assert result.err == ""
    written = {each["run"]: each for each in json.loads(result.out)}
    assert written["ldat"]["rank_limit"] == 4
    assert written["at"]["is_kept"] is False
    assert sum(written["mat"]["domains"][0]["mixing_weights"]) == pytest.approx(1)
    assert 0 < written["mat"]["domains"][0]["norm"] <= 0.5 * (1 + 1e-5)


@pytest.mark.filterwarnings("always")
def test_a_folder_of_runs(domainwise: Callable[..., Any], runs: Path, tmp_path: Path) -> None:
    for name in ("ldat", "erm"):
        shutil.copytree(runs / name, tmp_path / "runs" / name)
    result = domainwise("perturbations", tmp_path / "runs", "-o", tmp_path / "p", "--images", 4)
    assert result.code == 0, result.err
    assert "note: 1 run left out because the method has no perturbation" in result.err
    assert {line.split()[0] for line in result.out.splitlines()[1:]} == {"ldat"}


def test_markdown_of_a_run_given_twice(domainwise: Callable[..., Any], runs: Path, tmp_path: Path) -> None:
    twice = runs / "at" / ".." / "ldat"
    result = domainwise("perturbations", runs / "ldat", twice, "-o", tmp_path, "--images", 5, "--markdown")
    assert result.code == 0, result.err
    head, rule, *rows = result.out.splitlines()
    assert head.startswith("| run | method | domain | norm | epsilon |")
    assert rule.count("---:") == 7
    assert [row.split(" | ")[2] for row in rows] == ["style_0", "style_1"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("{runs}/erm",), "no perturbation to show: the runs trained with erm"),
        (("{runs}/nothing",), "nothing not found"),
        (("{runs}/mat", "--images", "0"), "images must be at least 1"),
        (("{runs}/mat", "--dataset", "/nowhere"), "nowhere"),
    ],
)
def test_errors_are_one_line(
    args: tuple[str, ...], message: str, domainwise: Callable[..., Any], runs: Path, tmp_path: Path
) -> None:
    result = domainwise("perturbations", *(word.format(runs=runs) for word in args), "-o", tmp_path / "p")
    assert result.code == 2
    assert message in result.err
    assert len(result.err.strip().splitlines()) == 1
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(("prior", "rows"), [("filter", 2), ("all", 4)])
def test_what_a_prior_looks_like(domainwise: Callable[..., Any], tmp_path: Path, prior: str, rows: int) -> None:
    result = domainwise("perturbations", "--show-prior", prior, "-o", tmp_path)
    assert result.code == 0, result.err
    with Image.open(tmp_path / f"prior_{prior}.png") as picture:
        assert picture.size[1] / picture.size[0] == pytest.approx((1.3 * rows + 0.5) / 12.5, abs=0.01)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give run folders, or --show-prior"),
        (("runs", "--show-prior", "filter"), "give run folders, or --show-prior"),
        (("--show-prior", "filtr"), "did you mean 'filter'"),
        (("--show-prior", "features"), "have no picture"),
    ],
)
def test_priors_that_cannot_be_shown(domainwise: Callable[..., Any], words: tuple[str, ...], message: str) -> None:
    result = domainwise("perturbations", *words)
    assert (result.code, len(result.err.splitlines())) == (2, 1)
    assert message in result.err
