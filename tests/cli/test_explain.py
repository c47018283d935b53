"""`domainwise explain`: the figure, the table over trial seeds, and errors."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from domainwise.explain import explain_features
from domainwise.explain.attention import measure_attention
from domainwise.training import RunConfig, train
from domainwise.training.loading import open_run
from easy_images import write_easy_images

SMALL = {"train_count": 60, "test_count": 40, "shifts": [0, 8]}
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train erm with two trial seeds, and uat with one seed at two radii."""
    folder = tmp_path_factory.mktemp("runs")
    plan: list[tuple[str, str, int, dict[str, Any]]] = [
        ("erm-0", "erm", 0, {}),
        ("erm-1", "erm", 1, {}),
        ("uat-near", "uat", 0, {"epsilon": 0.2}),
        ("uat-far", "uat", 0, {"epsilon": 0.5}),
    ]
    for name, algorithm, seed, hparams in plan:
        train(
            RunConfig(
                algorithm=algorithm,
                hparams=hparams,
                trial_seed=seed,
                steps=2,
                batch_size=8,
                dataset_options=SMALL,
                output=folder / name,
                device="cpu",
            )
        )
    return folder


def parse_rows(markdown: str) -> dict[str, list[str]]:
    lines = [line.strip("| ").split(" | ") for line in markdown.splitlines() if line.startswith("|")]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines}


def test_the_figure_and_the_table(runs: Path, tmp_path: Path, domainwise: Callable[..., Any]) -> None:
    picture = tmp_path / "below" / "maps.png"
    result = domainwise(
        "explain", runs / "erm-0", runs / "erm-1", "--images", 2, "-o", picture, "--markdown", "--device", "cpu"
    )
    assert result.code == 0, result.err
    assert picture.read_bytes().startswith(PNG)
    table = parse_rows(result.out)
    assert table["method"] == ["shift_0", "shift_8"]
    attention = [measure_attention(open_run(runs / name), torch.device("cpu")) for name in ("erm-0", "erm-1")]
    for cell, domain in zip(table["erm"], ("shift_0", "shift_8"), strict=True):
        one, two = (100 * each[domain].share for each in attention)
        assert cell == f"{(one + two) / 2:.1f} ± {abs(one - two) / 2:.1f}"
        coverage = sum(100 * each[domain].coverage for each in attention) / 2
        assert table["uniform attention"][("shift_0", "shift_8").index(domain)] == f"{coverage:.1f}"


def test_a_folder_of_runs_is_labeled_by_what_differs(
    runs: Path, tmp_path: Path, domainwise: Callable[..., Any]
) -> None:
    picture = tmp_path / "maps.svg"
    result = domainwise("explain", runs, "--domain", "shift_0", "--images", 2, "-o", picture, "--markdown")
    assert result.code == 0, result.err
    methods = [name for name in parse_rows(result.out) if name not in ("method", "---")]
    assert methods == ["erm", "uat, epsilon 0.5", "uat, epsilon 0.2", "uniform attention"]
    drawn = picture.read_text()
    # A column for each run of the lowest seed, and none for the other.
    assert drawn.count(">erm<") == 1
    assert drawn.count("epsilon ") == 2
    assert "shift_0" in drawn
    assert drawn.count("✓") + drawn.count("✗") == 6


def test_the_figure_is_reproducible_and_the_seed_samples_the_images(
    runs: Path, tmp_path: Path, domainwise: Callable[..., Any]
) -> None:
    drawn = []
    for number, seed in enumerate((0, 0, 1)):
        picture = tmp_path / f"{number}.png"
        words = ("--images", 1, "--seed", seed, "-o", picture, "--no-table", "--device", "cpu")
        result = domainwise("explain", runs / "erm-0", *words)
        assert result.code == 0, result.err
        assert "attention" not in result.out
        drawn.append(picture.read_bytes())
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


def test_the_true_class_and_the_last_model(runs: Path, tmp_path: Path, domainwise: Callable[..., Any]) -> None:
    words = ("--target", "true", "--which", "last", "--images", 1, "-o", tmp_path / "maps.png", "--markdown")
    result = domainwise("explain", runs / "erm-0", *words)
    assert result.code == 0, result.err
    attention = measure_attention(open_run(runs / "erm-0"), torch.device("cpu"), which="last", target="true")
    assert parse_rows(result.out)["erm"] == [f"{100 * each.share:.1f}" for each in attention.values()]
    assert "(true class)" in result.out


@pytest.mark.filterwarnings("always")
def test_runs_without_a_model_are_left_out_and_counted(
    runs: Path, tmp_path: Path, domainwise: Callable[..., Any]
) -> None:
    shutil.copytree(runs / "erm-0", tmp_path / "runs" / "erm-0")
    shutil.copytree(runs / "uat-far", tmp_path / "runs" / "uat")
    (tmp_path / "runs" / "uat" / "best.safetensors").unlink()
    picture = tmp_path / "maps.png"
    result = domainwise("explain", tmp_path / "runs", "--images", 1, "-o", picture, "--markdown")
    assert result.code == 0, result.err
    assert "note: 1 run left out for lack of best.safetensors" in result.err
    assert "uat" not in parse_rows(result.out)
    (tmp_path / "runs" / "erm-0" / "best.safetensors").unlink()
    result = domainwise("explain", tmp_path / "runs", "-o", picture)
    assert result.code == 2
    assert "has best.safetensors yet" in result.err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--target", "predict"), "did you mean 'predicted'?"),
        (("--which", "newest"), "unknown which 'newest'"),
        (("--domain", "shift_9"), "unknown domain of silhouettes 'shift_9'; did you mean 'shift_"),
        (("--layer", "featuriser.5"), "did you mean 'featurizer.5'?"),
        (("--layer", "classifier"), "is not a map of the image"),
        (("--images", "0"), "images must be from 1 to 32, all that shift_8 has, got 0"),
        (("--images", "33"), "images must be from 1 to 32"),
        (("--output", "maps.gif"), "unknown figure format 'gif'"),
        (("nowhere",), "folder nowhere not found"),
        (("--device", "gpu"), "unknown device 'gpu'"),
        (("--perplexity", "5"), "--perplexity has no effect without --features"),
        (("--csv", "points.csv"), "--csv has no effect without --features"),
        (("--features", "--layer", "featurizer.5"), "--layer has no effect with --features"),
        (("--features", "--domain", "shift_8"), "--domain has no effect with --features"),
        (("--features", "--target", "true"), "--target has no effect with --features"),
        (("--features", "--no-table"), "--no-table has no effect with --features"),
        (("--features", "--perplexity", "1000"), "perplexity must be at least 1 and less than the number of images"),
        (("--features", "--images", "0"), "the number of images must be at least 1, got 0"),
        (("--features", "--output", "maps.gif"), "unknown figure format 'gif'"),
    ],
)
def test_errors_are_one_line(
    args: tuple[str, ...], message: str, runs: Path, tmp_path: Path, domainwise: Callable[..., Any], monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    result = domainwise("explain", runs / "erm-0", *args, *(() if "--features" in args else ("--no-table",)))
    assert result.code == 2
    assert message in result.err
    assert result.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_runs_of_different_data_raise_an_error(runs: Path, tmp_path: Path, domainwise: Callable[..., Any]) -> None:
    other = tmp_path / "other"
    shutil.copytree(runs / "erm-0", other)
    config = json.loads((other / "config.json").read_text())
    config["config"]["dataset_options"]["shifts"] = [0, 4]
    (other / "config.json").write_text(json.dumps(config))
    result = domainwise("explain", runs / "erm-0", other, "-o", tmp_path / "maps.png")
    assert result.code == 2
    assert "differ in dataset_options" in result.err
    assert result.err.count("\n") == 1


def test_a_network_without_maps_raises_a_one_line_error(tmp_path: Path, domainwise: Callable[..., Any]) -> None:
    config = RunConfig(
        algorithm="erm", network="mlp", steps=2, batch_size=8, dataset_options=SMALL, output=tmp_path / "run"
    )
    train(config)
    result = domainwise("explain", tmp_path / "run", "-o", tmp_path / "maps.png")
    assert result.code == 2
    assert "Grad-CAM needs a layer" in result.err
    assert not (tmp_path / "maps.png").exists()


def test_json_has_the_numbers_of_the_table(runs: Path, tmp_path: Path, domainwise: Callable[..., Any]) -> None:
    figure = tmp_path / "maps.png"
    result = domainwise("explain", runs / "erm-0", "--images", 1, "-o", figure, "--json", "-q")
    assert result.code == 0, result.err
    assert result.err == ""
    content = json.loads(result.out)
    attention = measure_attention(open_run(runs / "erm-0"), torch.device("cpu"))
    assert content["figure"] == str(figure)
    assert content["layers"] == {"erm": {"name": "featurizer.5", "height": 4, "width": 4}}
    assert content["attention"]["rows"]["erm"]["shift_8"]["mean"] == pytest.approx(attention["shift_8"].share)


def test_quiet_prints_nothing(runs: Path, tmp_path: Path, domainwise: Callable[..., Any]) -> None:
    result = domainwise("explain", runs / "erm-0", "--images", 1, "-o", tmp_path / "maps.png", "--quiet")
    assert (result.code, result.out, result.err) == (0, "", "")
    assert (tmp_path / "maps.png").exists()


def test_features_as_figure_table_csv_and_json(runs: Path, tmp_path: Path, domainwise: Callable[..., Any]) -> None:
    picture, file = tmp_path / "below" / "map.svg", tmp_path / "points.csv"
    folders = (runs / "erm-0", runs / "uat-far", "--features", "--images", 16, "--device", "cpu")
    result = domainwise("explain", *folders, "-o", picture, "--csv", file, "--markdown")
    assert result.code == 0, result.err
    assert f"wrote {picture}, {file}" in result.err
    assert [text in picture.read_text() for text in (">erm<", ">uat<", ">shift_8 (unseen)<")] == [True] * 3
    maps = explain_features([runs / "erm-0", runs / "uat-far"], images=16, device="cpu")
    table = parse_rows(result.out)
    assert table["predicted from"] == ["domain", "class"]
    for name, *cells in maps.format_rows():
        assert table[name] == [cell for cell in cells if cell]
    assert list(table)[2:] == ["erm", "uat", "the class alone", "chance"]
    points = pl.read_csv(file)
    assert points.columns == ["run", "domain", "role", "image", "class", "predicted", "x", "y"]
    keys = ["run", "domain", "role", "image", "class", "predicted"]
    assert points.select(keys).equals(maps.points.select(keys))
    assert points["x"].to_list() == pytest.approx(maps.points["x"].to_list(), rel=1e-5)
    result = domainwise("explain", *folders, "-o", picture, "--json", "-q")
    assert (result.code, result.err) == (0, "")
    content = json.loads(result.out)
    assert content["points"] == json.loads(json.dumps(maps.points.to_dicts()))
    probe = maps.domain_probes["uat"]
    assert probe is not None
    assert content["runs"]["uat"]["domain"] == {
        "accuracy": probe.accuracy.mean,
        "error": probe.accuracy.error,
        "chance": probe.chance,
        "images": len(points) // 2,
        "left_out": 0,
    }


@pytest.mark.filterwarnings("always")
def test_the_layer_is_named_and_a_coarse_map_is_warned_of(tmp_path: Path, domainwise: Callable[..., Any]) -> None:
    write_easy_images(tmp_path / "images", count=8)
    for size, name in ((16, "small"), (32, "large")):
        config = RunConfig(
            tmp_path / "images",
            algorithm="erm",
            network="small_cnn",
            dataset_options={"image_size": size},
            test_domains=("light",),
            steps=1,
            batch_size=4,
            output=tmp_path / name,
        )
        train(config)
    words = ("--dataset", tmp_path / "images", "--images", 1, "-o", tmp_path / "maps.png")
    result = domainwise("explain", tmp_path / "small", tmp_path / "small", *words)
    assert result.code == 0, result.err
    assert result.out == "Grad-CAM of featurizer.5, 2 x 2 cells\n"
    assert result.err.count("note: Grad-CAM maps of 2 x 2 cells are hardly finer than the whole image") == 1
    assert "such as --layer featurizer.3, or train on larger images" in result.err
    finer = domainwise("explain", tmp_path / "small", *words, "--layer", "featurizer.3")
    assert finer.out == "Grad-CAM of featurizer.3, 4 x 4 cells\n"
    assert "hardly finer" not in finer.err
    assert "hardly finer" not in domainwise("explain", tmp_path / "large", *words).err


def test_runs_of_different_networks_have_a_line_each(
    runs: Path, tmp_path: Path, domainwise: Callable[..., Any]
) -> None:
    config = RunConfig(
        algorithm="erm", network="mnist_cnn", steps=2, batch_size=8, dataset_options=SMALL, output=tmp_path / "run"
    )
    train(config)
    words = ("--images", 1, "-o", tmp_path / "maps.png", "--no-table")
    result = domainwise("explain", runs / "erm-0", tmp_path / "run", *words)
    assert result.code == 0, result.err
    assert result.out.splitlines() == [
        "Grad-CAM of erm, network small_cnn: featurizer.5, 4 x 4 cells",
        "Grad-CAM of erm, network mnist_cnn: featurizer.11, 16 x 16 cells",
    ]
