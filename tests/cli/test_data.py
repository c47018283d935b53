"""`domainwise data`, and training on a folder or a CSV file of images."""

import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import datasets
import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from domainwise.cli.console import DataProgress
from domainwise.data import cache
from domainwise.data.decoding import DecodedImage

Cli = Callable[..., object]
TINY = ["--image-size", "32", "--steps", "2", "--batch-size", "4", "--threads", "1", "--device", "cpu"]
FEW = ["--dataset-option", "train_count=20", "--dataset-option", "test_count=10"]
SMALL_NETWORK = ["--backbone", "squeezenet1_1", "--weights", "none", "--algorithm", "erm"]


@pytest.fixture(autouse=True)
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOMAINWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DOMAINWISE_DATA", raising=False)
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def write_image(file: Path, seed: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(seed)
    Image.fromarray(draw.integers(0, 256, (10, 12, 3), dtype=np.uint8)).save(file)


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Three domains of six cats and six dogs."""
    root = tmp_path / "pets"
    for place, domain in enumerate(("day", "night", "x")):
        for label, kind in enumerate(("cat", "dog")):
            for index in range(6):
                write_image(root / domain / kind / f"{index}.png", 100 * place + 10 * label + index)
    return root


def rows(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines()]


def assert_one_line(outcome: object, message: str) -> None:
    assert outcome.code == 2
    assert outcome.err.startswith("error: ")
    assert outcome.err.count("\n") == 1
    assert message in outcome.err
    assert "Traceback" not in outcome.out


def test_list_shows_which_datasets_are_available(domainwise: Cli, tmp_path: Path) -> None:
    (tmp_path / "sets" / "PACS").mkdir(parents=True)
    outcome = domainwise("data", "list", "--data-dir", tmp_path / "sets")
    assert outcome.code == 0
    shown = {line.split()[0]: line.rstrip() for line in outcome.out.splitlines() if line.strip()}
    assert shown["pacs"].endswith(str(tmp_path / "sets" / "PACS"))
    assert shown["silhouettes"].endswith("synthetic, no download")
    assert "not found: domainwise data prepare vlcs (3600 MB)" in shown["vlcs"]
    assert shown["nico"].endswith("not found: domainwise data prepare nico")
    assert "not found: domainwise data prepare colored_mnist (12 MB)" in shown["colored_mnist"]
    assert f"data folder: {tmp_path / 'sets'};" in outcome.err
    quiet = domainwise("data", "list", "--data-dir", tmp_path / "sets", "--quiet")
    assert (quiet.out, quiet.err) == (outcome.out, "")


def test_list_as_json(domainwise: Cli, tmp_path: Path) -> None:
    (tmp_path / "PACS").mkdir()
    outcome = domainwise("data", "list", "--data-dir", tmp_path, "--json")
    assert (outcome.code, outcome.err) == (0, "")
    datasets = {dataset["name"]: dataset for dataset in json.loads(outcome.out)}
    assert datasets["pacs"] == {
        "name": "pacs",
        "description": "7 classes in photos, art, cartoons and sketches; 9,991 images.",
        "is_available": True,
        "folder": str(tmp_path / "PACS"),
        "megabytes": 174,
        "package": None,
    }
    assert (datasets["silhouettes"]["folder"], datasets["vlcs"]["is_available"]) == (None, False)


def test_list_uses_the_environment_variable(domainwise: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOMAINWISE_DATA", str(tmp_path / "elsewhere"))
    assert f"data folder: {tmp_path / 'elsewhere'};" in domainwise("data", "list").err


def test_check_counts_a_folder(domainwise: Cli, pets: Path, cache_dir: Path) -> None:
    write_image(pets / "day" / "cat" / "more.png", 99)
    outcome = domainwise("data", "check", pets)
    assert (outcome.code, outcome.err) == (0, "")
    assert rows(outcome.out)[:5] == [
        ["domain", "cat", "dog", "all"],
        ["day", "7", "6", "13"],
        ["night", "6", "6", "12"],
        ["x", "6", "6", "12"],
        ["all", "19", "18", "37"],
    ]
    assert "all 37 images can be read" in outcome.out
    assert not cache_dir.exists()


def test_check_as_json(domainwise: Cli, pets: Path) -> None:
    broken = pets / "night" / "dog" / "0.png"
    broken.write_bytes(b"")
    Image.new("CMYK", (5, 5), (10, 20, 30, 40)).save(pets / "x" / "cat" / "cmyk.jpg")
    outcome = domainwise("data", "check", pets, "--json")
    assert_one_line(outcome, "1 of 37 images are broken")
    result = json.loads(outcome.out)
    assert result["dataset"] == "pets"
    assert result["domains"][2] == {"name": "x", "role": None, "images": {"cat": 7, "dog": 6}}
    assert result["broken"] == {str(broken): "is empty (0 bytes)"}
    assert result["converted"] == {str(pets / "x" / "cat" / "cmyk.jpg"): "CMYK"}
    assert (result["missing_classes"], result["skipped"]) == ([], {})
    synthetic = json.loads(domainwise("data", "check", "silhouettes", *FEW, "--json").out)
    assert synthetic["domains"][0] == {"name": "style_0", "role": "train", "images": {"cow": 10, "camel": 10}}
    assert synthetic["options"]["image_size"] == 32


def test_quiet_prints_only_broken_images(domainwise: Cli, pets: Path) -> None:
    outcome = domainwise("data", "check", pets, "-q")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")
    assert domainwise("data", "prepare", pets, "--image-size", "8", "-q").out == ""
    assert domainwise("data", "clear-cache", "-q").out == ""
    (pets / "day" / "cat" / "3.png").write_bytes(b"")
    outcome = domainwise("data", "check", pets, "-q")
    assert_one_line(outcome, "1 of 36 images are broken")
    assert outcome.out == f"broken: {pets / 'day' / 'cat' / '3.png'} is empty (0 bytes)\n"


def test_check_shows_many_classes_as_rows(domainwise: Cli, tmp_path: Path) -> None:
    counts = {"day": {"ant": 1, "bee": 2, "cat": 1}, "night": {"ant": 1, "bee": 1, "cat": 3}}
    for domain, classes in counts.items():
        for kind, count in classes.items():
            for index in range(count):
                write_image(tmp_path / "many" / domain / kind / f"{index}.png", index)
    assert rows(domainwise("data", "check", "many").out)[:5] == [
        ["class", "day", "night", "all"],
        ["ant", "1", "1", "2"],
        ["bee", "2", "1", "3"],
        ["cat", "1", "3", "4"],
        ["all", "4", "5", "9"],
    ]


def test_check_lists_broken_files_and_fails(domainwise: Cli, pets: Path) -> None:
    broken = [pets / "day" / "cat" / "3.png", pets / "x" / "dog" / "0.png"]
    broken[0].write_bytes(b"")
    broken[1].write_text("no image")
    outcome = domainwise("data", "check", pets)
    assert_one_line(outcome, "2 of 36 images are broken; replace them, or train with --skip-broken")
    assert f"broken: {broken[0]} is empty (0 bytes)\n" in outcome.out
    assert f"broken: {broken[1]} is not an image\n" in outcome.out
    assert "all 36 images" not in outcome.out


def test_check_limits_the_list_of_broken_files(domainwise: Cli, pets: Path) -> None:
    for index in range(23):
        (pets / "day" / "cat" / f"broken-{index:02}.png").touch()
    outcome = domainwise("data", "check", pets)
    assert outcome.out.count("broken: ") == 20
    assert_one_line(outcome, "23 of 59 images are broken (+3 not shown)")


def test_check_reports_missing_classes_and_converted_images(domainwise: Cli, pets: Path) -> None:
    write_image(pets / "day" / "ant" / "1.png", 5)
    for name in ("cmyk-1.jpg", "cmyk-2.jpg"):
        Image.new("CMYK", (5, 5), (10, 20, 30, 40)).save(pets / "x" / "cat" / name)
    outcome = domainwise("data", "check", pets)
    assert outcome.code == 0
    assert "note: domain 'night' of pets has no image of class 'ant'\n" in outcome.out
    assert "note: domain 'x' of pets has no image of class 'ant'\n" in outcome.out
    assert f"2 images are CMYK: {pets / 'x' / 'cat' / 'cmyk-1.jpg'} ...\n" in outcome.out


def test_check_counts_skipped_files(domainwise: Cli, pets: Path) -> None:
    for index in range(10):
        (pets / "day" / "cat" / f"IMG_{index}.HEIC").touch()
    (pets / "labels.txt").touch()
    (pets / "day" / "notes.txt").touch()
    (pets / ".DS_Store").touch()
    outcome = domainwise("data", "check", pets)
    assert (outcome.code, outcome.err) == (0, "")
    line = "note: skipped 12 files: 10 .heic, 2 .txt; an image must be in a class folder and end in .jpg, .jpeg, .png, "
    assert line in outcome.out
    assert json.loads(domainwise("data", "check", pets, "--json").out)["skipped"] == {".heic": 10, ".txt": 2}
    for file in pets.rglob("*.HEIC"):
        file.unlink()
    (pets / "labels.txt").unlink()
    assert "\nskipped 1 file: 1 .txt\n" in domainwise("data", "check", pets).out


def test_check_names_the_right_root(domainwise: Cli, pets: Path, tmp_path: Path) -> None:
    (tmp_path / "up" / "sets").mkdir(parents=True)
    pets.rename(tmp_path / "up" / "sets" / "pets")
    assert_one_line(domainwise("data", "check", tmp_path / "up"), f"did you mean {tmp_path / 'up' / 'sets' / 'pets'}?")


def test_check_counts_a_csv_file(domainwise: Cli, pets: Path, tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("path,label,domain\npets/day/cat/0.png,cat,home\npets\\x\\dog\\1.png,dog,street\n")
    outcome = domainwise("data", "check", "table.csv")
    assert outcome.code == 0, outcome.err
    assert rows(outcome.out)[1] == ["cat", "1", "0", "1"]
    assert "all 2 images can be read" in outcome.out
    table.write_text("path,label,domain\npets/day/cat/0.png,cat,home\npets/gone.png,dog,home\n")
    outcome = domainwise("data", "check", table)
    assert_one_line(outcome, "1 of 2 images are broken")
    assert f"broken: {tmp_path / 'pets' / 'gone.png'} could not be read: No such file or directory\n" in outcome.out


def test_check_does_not_interpret_names_as_markup(domainwise: Cli, tmp_path: Path) -> None:
    """rich treats square brackets as markup."""
    for domain in ("[bold]", "[i]day"):
        write_image(tmp_path / "odd" / domain / "[cat]" / "[red]1.png", 3)
        write_image(tmp_path / "odd" / domain / "[]" / "1.png", 4)
    (tmp_path / "odd" / "[bold]" / "[cat]" / "[blue]2.png").touch()
    outcome = domainwise("data", "check", "odd")
    assert_one_line(outcome, "1 of 5 images are broken")
    assert rows(outcome.out)[0] == ["class", "[bold]", "[i]day", "all"]
    assert rows(outcome.out)[1] == ["[]", "1", "1", "2"]
    assert rows(outcome.out)[2] == ["[cat]", "2", "1", "3"]
    assert "[bold]/[cat]/[blue]2.png is empty" in outcome.out


def test_progress_does_not_interpret_names_as_markup_and_hides_completed_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    with DataProgress(console) as progress:
        progress.report("decoding [red]day", 1, 2)
        progress.progress.refresh()
        assert "decoding [red]day" in screen.getvalue()
        assert "50%" in screen.getvalue()
        progress.report("decoding [red]day", 2, 2)
        progress.report("waiting for another process", 0, 0)
        screen.truncate(0)
        progress.progress.refresh()
        assert "decoding" not in screen.getvalue()
        assert "waiting for another process" in screen.getvalue()


def test_check_describes_synthetic_data(domainwise: Cli) -> None:
    outcome = domainwise("data", "check", "silhouettes", *FEW)
    assert outcome.code == 0
    assert "style_0 (train)" in outcome.out
    assert "shift_16 (test)" in outcome.out
    assert "options (--dataset-option name=value): image_size=32" in outcome.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["check", "silouettes"], "unknown dataset 'silouettes'; did you mean 'silhouettes'?"),
        (["check", "pasc"], "unknown dataset 'pasc'; did you mean 'pacs'?"),
        (
            ["check", "no/such/folder"],
            "no/such/folder not found; expected a folder of images, a CSV file or a JSON file",
        ),
        (["check", "table.csv"], "table.csv not found; expected a folder of images, a CSV file or a JSON file"),
        (["check", "empty"], "no images found in empty: images are expected at root/domain/class/image"),
        (["check", "pacs", "--data-dir", "sets"], "run `domainwise data prepare pacs`"),
        (["prepare", "silouettes"], "did you mean 'silhouettes'?"),
        (
            ["prepare", "no/such/folder"],
            "no/such/folder not found; expected a folder of images, a CSV file or a JSON file",
        ),
        (["prepare", "pets", "--image-size", "0"], "image_size must be at least 1, got 0"),
        (["prepare", "nico", "--data-dir", "sets"], "dataset nico cannot be downloaded"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    domainwise: Cli, tmp_path: Path, pets: Path, words: list[str], message: str
) -> None:
    (tmp_path / "empty").mkdir()
    assert_one_line(domainwise("data", *words), message)


def test_cache_that_cannot_be_written_is_one_line(
    domainwise: Cli, tmp_path: Path, pets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DOMAINWISE_CACHE", str(tmp_path / "file" / "below"))
    assert_one_line(domainwise("data", "prepare", pets), "set $DOMAINWISE_CACHE to another folder")


@pytest.mark.parametrize("command", ["list", "check", "prepare", "clear-cache"])
def test_help_has_examples(domainwise: Cli, command: str) -> None:
    outcome = domainwise("data", command, "--help")
    assert outcome.code == 0
    assert f"domainwise data {command}" in outcome.out.split("Example")[1]


def test_after_prepare_training_decodes_nothing(
    domainwise: Cli, tmp_path: Path, pets: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcome = domainwise("data", "prepare", pets, "--image-size", "32")
    assert outcome.code == 0, outcome.err
    assert "ready: 36 images of 3 x 32 x 32 in 3 domains" in outcome.out
    assert len(list(cache_dir.glob("*/entry.json"))) == 3

    def refuse(content: bytes, size: int) -> DecodedImage:
        raise AssertionError("decoded again")

    monkeypatch.setattr(cache, "decode_image", refuse)
    # From a copy: a process remembers the dataset that it made last, by its place.
    shutil.copytree(pets, tmp_path / "copy")
    words = ["--dataset", tmp_path / "copy", *TINY, *SMALL_NETWORK, "--test-domain", "x"]
    outcome = domainwise("train", *words, "-o", tmp_path / "run")
    assert outcome.code == 0, outcome.err
    assert (tmp_path / "run" / "done").exists()


def test_prepare_fails_for_broken_images(domainwise: Cli, pets: Path) -> None:
    broken = pets / "day" / "cat" / "3.png"
    broken.write_bytes(b"")
    assert_one_line(domainwise("data", "prepare", pets, "--image-size", "8"), f"{broken} is empty (0 bytes)")


@pytest.mark.filterwarnings("default")
def test_prepare_with_skip_broken_warns(domainwise: Cli, pets: Path) -> None:
    (pets / "day" / "cat" / "3.png").write_bytes(b"")
    outcome = domainwise("data", "prepare", pets, "--image-size", "8", "--skip-broken")
    assert outcome.code == 0
    assert "ready: 35 images of 3 x 8 x 8 in 3 domains" in outcome.out
    assert "note: 1 of 12 images of domain 'day' are left out" in outcome.err


def test_clear_cache_removes_prepared_images(domainwise: Cli, pets: Path, cache_dir: Path) -> None:
    domainwise("data", "prepare", pets, "--image-size", "300")
    outcome = domainwise("data", "clear-cache")
    # 36 images of 300 x 300 x 3 bytes.
    assert outcome.out == f"removed 3 cache entries (10 MB) from {cache_dir}\n"
    assert list(cache_dir.glob("*/entry.json")) == []
    assert domainwise("data", "clear-cache").out == f"removed 0 cache entries (0 MB) from {cache_dir}\n"


@pytest.mark.filterwarnings("default")
def test_training_fails_for_broken_images_unless_skipped(domainwise: Cli, pets: Path, tmp_path: Path) -> None:
    broken = pets / "night" / "dog" / "2.png"
    broken.write_bytes(broken.read_bytes()[:100])
    words = ["train", "--dataset", pets, *TINY, *SMALL_NETWORK, "--test-domain", "x", "-o", tmp_path / "run"]
    outcome = domainwise(*words)
    assert_one_line(outcome, f"error: {broken} could not be decoded (")
    assert "use --skip-broken to leave out such images" in outcome.err
    outcome = domainwise(*words, "--skip-broken")
    assert outcome.code == 0, outcome.err
    assert f"note: 1 of 12 images of domain 'night' are left out: {broken} " in outcome.err
    config = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert config["dataset_options"] == {"image_size": 32, "skip_broken": True}
    records = (tmp_path / "run" / "records.jsonl").read_text().splitlines()
    assert json.loads(records[-1])["train_domains"] == ["day", "night"]


def test_run_folder_of_an_image_folder_contains_no_paths(domainwise: Cli, pets: Path, tmp_path: Path) -> None:
    words = ["--algorithm", "mat", "--test-domain", "x", "--backbone", "mobilenet_v2", "--weights", "none"]
    outcome = domainwise("train", "--dataset", pets, *words, *TINY)
    assert outcome.code == 0, outcome.err
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith("pets-mat-trial0-")
    text = (run / "config.json").read_text()
    config = json.loads(text)["config"]
    assert (config["dataset"], config["network"], config["weights"]) == ("pets", "mobilenet_v2", "none")
    assert (config["train_domains"], config["test_domains"]) == (["day", "night"], ["x"])
    assert (config["steps"], config["batch_size"], config["augment"]) == (2, 4, True)
    assert config["dataset_options"] == {"image_size": 32}
    assert str(tmp_path) not in text
    assert '"/' not in text
    for record in (run / "records.jsonl").read_text().splitlines():
        assert str(tmp_path) not in record
        assert json.loads(record)["dataset"] == "pets"


def test_training_on_a_csv_file_equals_training_on_its_folder(domainwise: Cli, pets: Path, tmp_path: Path) -> None:
    paths = [path.relative_to(tmp_path) for path in sorted(pets.rglob("*.png"))]
    lines = [f"{path},{path.parts[2]},{path.parts[1]}\n" for path in paths]
    (tmp_path / "pets.csv").write_text("".join(["path,label,domain\n", *lines]))
    for dataset in ("pets", "pets.csv"):
        words = ["--dataset", dataset, *TINY, *SMALL_NETWORK, "--test-domain", "x"]
        outcome = domainwise("train", *words, "-o", tmp_path / f"run-{dataset}")
        assert outcome.code == 0, outcome.err
    one, other = (
        [json.loads(line) for line in (tmp_path / run / "records.jsonl").read_text().splitlines()]
        for run in ("run-pets", "run-pets.csv")
    )
    assert len(one) == 1
    assert [record["loss"] for record in one] == [record["loss"] for record in other]
    assert [record["accuracy"] for record in one] == [record["accuracy"] for record in other]


def test_misspelt_domain_is_one_line(domainwise: Cli, pets: Path, tmp_path: Path) -> None:
    words = ["--dataset", pets, *TINY, *SMALL_NETWORK, "--test-domain", "nigth"]
    assert_one_line(domainwise("train", *words, "-o", tmp_path / "run"), "did you mean 'night'?")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--test-domain", "nigth"], "unknown domain of pets 'nigth'; did you mean 'night'?"),
        (["--test-domain", "x", "--train-domain", "dya"], "did you mean 'day'?"),
        ([], "no test domain for pets; choose with --test-domain from day, night, x"),
        (["--test-domain", "x", "--test-domain", "x"], "test domain 'x' is given 2 times; give it once"),
        (
            ["--test-domain", "x", "--train-domain", "day", "--train-domain", "day"],
            "training domain 'day' is given 2 times; give it once",
        ),
    ],
)
def test_wrong_domains_are_reported_before_decoding(
    domainwise: Cli, pets: Path, cache_dir: Path, words: list[str], message: str
) -> None:
    assert_one_line(domainwise("train", "--dataset", pets, *TINY, *SMALL_NETWORK, *words), message)
    assert not cache_dir.exists()


def test_sweep_reports_an_unknown_test_domain_before_decoding(domainwise: Cli, pets: Path, cache_dir: Path) -> None:
    words = ["--dataset", pets, "--algorithm", "erm", "--test-domain", "nigth", "--output", "sweep"]
    assert_one_line(domainwise("sweep", *words), "unknown domain of pets 'nigth'; did you mean 'night'?")
    assert not cache_dir.exists()


def read_name(run: Path) -> tuple[str, str]:
    """The dataset's name in the config and in the records."""
    config = json.loads((run / "config.json").read_text())["config"]
    return config["dataset"], json.loads((run / "records.jsonl").read_text().splitlines()[-1])["dataset"]


def test_dataset_has_the_name_that_the_user_gave(domainwise: Cli, pets: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(pets)
    words = ["train", *TINY, *SMALL_NETWORK, "--test-domain", "x"]
    for given, name in ((["--dataset", "link"], "link"), (["--dataset", pets, "--name", "my pets"], "my pets")):
        outcome = domainwise(*words, *given)
        assert outcome.code == 0, outcome.err
        (run,) = (tmp_path / "runs").glob(f"{name}-erm-*")
        assert read_name(run) == (name, name)
        assert "name" not in json.loads((run / "config.json").read_text())["config"]


def test_earlier_run_of_a_link_goes_on_under_its_name(domainwise: Cli, pets: Path, tmp_path: Path) -> None:
    """Earlier versions gave a link the name of its target."""
    (tmp_path / "link").symlink_to(pets)
    words = ["train", *TINY, *SMALL_NETWORK, "--test-domain", "x"]
    for place in ([], ["-o", "run"]):
        assert domainwise(*words, "--dataset", "pets", *place).code == 0
        before = [read_files(tmp_path / folder) for folder in ("runs", "run")]
        outcome = domainwise(*words, "--dataset", "link", *place)
        assert outcome.code == 0, outcome.err
        assert [read_files(tmp_path / folder) for folder in ("runs", "run")] == before
    # A new run next to it is comparable with it.
    assert domainwise(*words, "--dataset", "link", "--trial-seed", 1).code == 0
    assert {read_name(run) for run in (tmp_path / "runs").iterdir()} == {("pets", "pets")}


def read_files(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--dataset", "silhouettes", "--name", "mine"], "dataset silhouettes keeps its name; --name is for your own"),
        (["--dataset", "pets", "--name", " "], "' ' cannot be the name of a dataset; choose another --name"),
        (["--dataset", "pets", "--name", "a\x1b"], "cannot be the name of a dataset; choose another --name"),
        (["--dataset", "~nobody-here/pets"], "starts with ~nobody-here, but there is no such user"),
        (["--dataset", "silhouettes", "--data-dir", "~nobody-here"], "starts with ~nobody-here"),
        (["--dataset", "./loop"], "loop is not a folder of images, a CSV file or a JSON file"),
        (["--dataset", "./pipe"], "pipe is not a folder of images, a CSV file or a JSON file"),
        (["--dataset", "./pipe.csv"], "pipe.csv is not a folder of images, a CSV file or a JSON file"),
        (["--dataset", "/dev/zero"], "/dev/zero is not a folder of images, a CSV file or a JSON file"),
    ],
)
def test_unusable_dataset_is_one_line(
    domainwise: Cli, tmp_path: Path, pets: Path, words: list[str], message: str
) -> None:
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    os.mkfifo(tmp_path / "pipe.csv")
    assert_one_line(domainwise("train", *words), message)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("train_count=1000000000000", "GB of memory, and there are"),
        (f"train_count={'9' * 30}", "dataset option train_count is an integer of more than 64 bits"),
        (f"train_count={'9' * 5000}", "dataset option train_count must be an integer, got '999"),
        ("train_count=1.5", "dataset option train_count must be an integer, got 1.5"),
        ("train_count=True", "dataset option train_count must be an integer, got True"),
        ("noise=1e999", "dataset option noise must be finite, got inf"),
        ("noise=nan", "dataset option noise must be a finite number, got 'nan'"),
        ("shifts={1, 2}", "dataset option shifts must be a number, a string, True or False, or a list of these"),
        ("shifts=8", "dataset option shifts must be a list of finite numbers, got 8"),
        ("shifts=[]", "shifts is empty: without a shift there is no test domain"),
        (f"shifts={'[' * 50}{']' * 50}", "dataset option shifts is nested more than 10 levels deep"),
        (f"shifts={'[' * 10_000}{']' * 10_000}", "dataset option shifts must be a list of finite numbers, got '[["),
        (f"shifts={'-' * 10_000}1", "dataset option shifts must be a list of finite numbers"),
        ("shifts={[]: 1}", "dataset option shifts must be a list of finite numbers"),
    ],
)
def test_unusable_dataset_option_is_one_line(domainwise: Cli, option: str, message: str) -> None:
    assert_one_line(domainwise("train", "--steps", 1, "--dataset-option", option), message)


def test_option_of_an_image_folder_has_its_type(domainwise: Cli, pets: Path) -> None:
    words = ["train", "--dataset", pets, "--test-domain", "x", "--dataset-option"]
    assert_one_line(domainwise(*words, "skip_broken=false"), "skip_broken must be True or False, got 'false'")
    assert_one_line(domainwise(*words, "image_size=32.5"), "image_size must be an integer, got 32.5")
    assert_one_line(domainwise(*words, "image_size=1000000"), "image_size must be at most 16384, got 1000000")


@pytest.mark.parametrize("variable", ["DOMAINWISE_CACHE", "DOMAINWISE_DATA"])
def test_home_of_an_unknown_user_is_one_line(
    domainwise: Cli, pets: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "~nobody-here")
    words = ["prepare", pets] if variable == "DOMAINWISE_CACHE" else ["list"]
    assert_one_line(domainwise("data", *words), "~nobody-here starts with ~nobody-here, but there is no such user")


def test_names_that_are_not_utf8_are_readable(domainwise: Cli, pets: Path, tmp_path: Path) -> None:
    day = (pets / "day").rename(pets / os.fsdecode(b"d\xe4y"))
    broken = day / "cat" / os.fsdecode(b"\xff\x1b.png")
    broken.touch()
    for words in (["--json"], []):
        outcome = domainwise("data", "check", pets, *words)
        assert_one_line(outcome, "1 of 37 images are broken")
        shown = outcome.out.replace("\\\\", "\\")
        assert "d\\xe4y/cat/\\xff\\x1b.png" in shown
    broken.unlink()
    words = ["train", "--dataset", pets, *TINY, *SMALL_NETWORK, "--test-domain", "d\\xe4y", "-o", tmp_path / "run"]
    outcome = domainwise(*words)
    assert outcome.code == 0, outcome.err


def test_special_files_are_broken_images(domainwise: Cli, pets: Path) -> None:
    os.mkfifo(pets / "day" / "cat" / "pipe.png")
    (pets / "x" / "dog" / "zero.png").symlink_to("/dev/zero")
    outcome = domainwise("data", "check", pets)
    assert_one_line(outcome, "2 of 38 images are broken")
    assert "pipe.png is a FIFO, not a file\n" in outcome.out
    assert "zero.png is a device, not a file\n" in outcome.out
    assert_one_line(domainwise("data", "prepare", pets), "pipe.png is a FIFO, not a file; use --skip-broken")


def test_clear_cache_of_a_foreign_folder_is_one_line(
    domainwise: Cli, pets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOMAINWISE_CACHE", str(pets))
    outcome = domainwise("data", "clear-cache")
    assert_one_line(outcome, f"{pets} is not a cache of decoded images: it contains day, and no images; nothing was")
    assert len(list(pets.iterdir())) == 3


def test_shift_of_a_folder(domainwise: Cli, pets: Path) -> None:
    outcome = domainwise("data", "shift", pets, "--image-size", 16, "--repeats", 2, "--device", "cpu")
    assert outcome.code == 0
    lines = [line.split("  ") for line in outcome.out.splitlines()]
    compared = [[cell.strip() for cell in line if cell][:2] for line in lines[1:7]]
    assert compared == [
        ["day", "night, x"],
        ["night", "day, x"],
        ["x", "day, night"],
        ["day", "night"],
        ["day", "x"],
        ["night", "x"],
    ]
    assert all(" ± " in line[-1] for line in lines[1:7])
    assert "features: mean and standard deviation of the pixels in a grid of 8 x 8 cells (no network)" in outcome.out
    assert "note: day and night: only 12 images on one side; the numbers are rough" in outcome.out


def test_quiet_shift_is_the_table_alone(domainwise: Cli, pets: Path) -> None:
    shutil.rmtree(pets / "day")
    words = ["data", "shift", pets, "--image-size", 16, "--repeats", 1, "--device", "cpu"]
    full, quiet = domainwise(*words), domainwise(*words, "--quiet")
    assert quiet.err == ""
    table, notes = full.out[: len(quiet.out)], full.out[len(quiet.out) :]
    assert quiet.out == table
    assert len(quiet.out.splitlines()) == 3
    assert notes.startswith("\npets")


def test_shift_as_json(domainwise: Cli, pets: Path) -> None:
    outcome = domainwise("data", "shift", pets, "--image-size", 16, "--repeats", 1, "--device", "cpu", "--json")
    assert outcome.code == 0
    report = json.loads(outcome.out)
    assert [(each["domain"], each["others"]) for each in report["pairs"]] == [
        ("day", ["night"]),
        ("day", ["x"]),
        ("night", ["x"]),
    ]
    day = report["left_out"][0]
    assert (day["diversity_std"], day["images"]) == (None, [12, 24])
    assert 0 <= day["diversity"] <= 1
    assert day["meaning"]
    assert report["dataset"] == "pets"


def test_shift_needs_two_domains_and_a_known_network(domainwise: Cli, pets: Path) -> None:
    shutil.rmtree(pets / "day")
    shutil.rmtree(pets / "x")
    small = ("--image-size", 16, "--device", "cpu")
    assert_one_line(domainwise("data", "shift", pets, *small), "has one domain; a shift needs at least two")
    assert_one_line(
        domainwise("data", "shift", pets / "nothing", *small), "nothing not found; expected a folder of images"
    )
    unknown = domainwise("data", "shift", "silhouettes", *FEW, "--weights", "mine.pth", "--device", "cpu")
    assert_one_line(unknown, "weights mine.pth name no known network; pass the network with --network")


def test_dataset_of_hugging_face_trains_and_is_decoded_once(
    domainwise: Cli, pets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = sorted(pets.rglob("*.png"))
    columns = {
        "img": [{"bytes": file.read_bytes(), "path": None} for file in files],
        "y": [file.parent.name for file in files],
        "style": [file.parts[-3] for file in files],
    }
    datasets.Dataset.from_dict(columns).cast_column("img", datasets.Image()).save_to_disk("hub_pets")
    names = ("image_column=img", "label_column=y", "domain_column=style")
    options = [word for name in names for word in ("--dataset-option", name)]
    checked = domainwise("data", "check", "hf:./hub_pets", *options)
    assert "all 36 images can be read" in checked.out
    words = ["--dataset", "hf:./hub_pets", *options, *TINY, *SMALL_NETWORK]
    # Before any image is decoded.
    with monkeypatch.context() as patch:
        patch.setattr(cache, "read_image_file", None)
        assert_one_line(domainwise("train", *words, "--test-domain", "dusk"), "unknown domain of hub_pets 'dusk'")
    outcome = domainwise("train", *words, "--test-domain", "x", "-o", "first")
    assert outcome.code == 0, outcome.err

    def refuse(content: bytes, size: int) -> DecodedImage:
        raise AssertionError("decoded again")

    monkeypatch.setattr(cache, "decode_image", refuse)
    monkeypatch.setattr(cache, "read_image_file", refuse)
    outcome = domainwise("train", *words, "--test-domain", "night", "-o", "second")
    assert outcome.code == 0, outcome.err
    assert json.loads((tmp_path / "second" / "config.json").read_text())["config"]["dataset"] == "hub_pets"
    evaluated = domainwise("evaluate", "second", "--dataset", "hf:./hub_pets", *options, "--json")
    assert json.loads(evaluated.out)[0]["trained_on"] == ["day", "x"]
    hint = "hub_pets is a dataset in a format of the Hugging Face Hub; pass it as hf:./hub_pets"
    for without_prefix in (
        ("data", "check", "hub_pets"),
        ("train", "--dataset", "hub_pets", *options, *TINY, *SMALL_NETWORK, "--test-domain", "x"),
        ("evaluate", "second", "--dataset", "hub_pets"),
        ("explain", "second", "--dataset", "hub_pets"),
    ):
        assert_one_line(domainwise(*without_prefix), hint)
    numbers = ("--dataset-option", "image_column=img", "--dataset-option", "label_column=2023")
    assert_one_line(domainwise("data", "check", "hf:./hub_pets", *numbers), "has no column '2023'")
    assert_one_line(
        domainwise("data", "prepare", "hf:./hub_pets", "--dataset-option", "config=2023"),
        "was written by save_to_disk, which has no configurations; remove the option config=2023",
    )


def test_run_on_a_dataset_of_the_hub_says_which_to_pass(domainwise: Cli, tmp_path: Path) -> None:
    words = ["--image-size", "16", "--steps", "1", "--batch-size", "2", "--threads", "1", "--device", "cpu"]
    outcome = domainwise("train", "--algorithm", "erm", *FEW, *words, "-o", "run")
    assert outcome.code == 0, outcome.err
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    config["config"]["dataset"] = "hf:team/pets@v1"
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    for command in ("explain", "robustness", "refit"):
        assert_one_line(
            domainwise(command, "run"), "used a dataset of the Hugging Face Hub; pass --dataset hf:team/pets@v1"
        )


def test_json_list_trains(domainwise: Cli, pets: Path, tmp_path: Path) -> None:
    content = {
        domain.name: {
            kind.name: [str(file.relative_to(tmp_path)) for file in kind.iterdir()] for kind in domain.iterdir()
        }
        for domain in pets.iterdir()
    }
    (tmp_path / "files.json").write_text(json.dumps(content))
    outcome = domainwise("train", "--dataset", "files.json", *TINY, *SMALL_NETWORK, "--test-domain", "x", "-o", "run")
    assert outcome.code == 0, outcome.err
    content["day"]["cat"] = "all of them"
    (tmp_path / "files.json").write_text(json.dumps(content))
    assert_one_line(domainwise("data", "check", "files.json"), "class 'cat' of 'day' has a string")
