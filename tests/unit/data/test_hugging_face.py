"""Datasets in the formats of the Hugging Face Hub: local folders, and the Hub's own client against a server."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest
import torch
from huggingface_hub import constants
from image_kinds import write_tree

from domainwise.data import cache, image_files
from domainwise.data.decoding import DecodedImage
from domainwise.data.download.dataset import download_dataset
from domainwise.data.download.sources import HubCopy, RemoteFile, Source
from domainwise.data.hugging_face import find_hub_dataset, hugging_face_dataset, list_hub_dataset, name_hub_dataset
from domainwise.errors import DomainwiseError
from domainwise.storage.hub import HubName
from domainwise.storage.run_folder import RunFolder
from domainwise.training import RunConfig, train
from domainwise.training.loading import open_run
from hub_server import HubServer, serve_hub


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOMAINWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """The folder with the images that all the datasets here have."""
    return write_tree(tmp_path / "pets", {"day": {"cat": 3, "dog": 3}, "night": {"cat": 3, "dog": 3}})


def make_table(pets: Path, **changes: list[Any]) -> "datasets.Dataset":
    files = sorted(file for file in pets.rglob("*") if file.is_file())
    columns: dict[str, list[Any]] = {
        "image": [{"bytes": file.read_bytes(), "path": None} for file in files],
        "label": [file.parent.name for file in files],
        "domain": [file.parts[-3] for file in files],
    }
    table = datasets.Dataset.from_dict({**columns, **changes})
    return table.cast_column("image", datasets.Image())


def assert_same_images(name: str, pets: Path, **options: Any) -> None:
    ours, theirs = hugging_face_dataset(name, image_size=12, **options), image_files(pets, image_size=12)
    assert (ours.classes, ours.domain_names) == (theirs.classes, theirs.domain_names)
    for one, other in zip(ours.domains, theirs.domains, strict=True):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)


def refuse(*_: object) -> DecodedImage:
    raise AssertionError("decoded again")


def error_of(call: Callable[..., object], *words: object, **options: object) -> str:
    with pytest.raises(DomainwiseError) as error:
        call(*words, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_saved_dataset_has_the_images_of_the_folder_and_shares_its_cache(
    pets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_table(pets).save_to_disk("saved")
    image_files(pets, image_size=12)
    monkeypatch.setattr(cache, "decode_image", refuse)
    assert_same_images("hf:./saved", pets)


def test_second_start_reads_no_image(pets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_table(pets).save_to_disk("saved")
    first = hugging_face_dataset("hf:./saved", image_size=12)
    with monkeypatch.context() as patch:
        patch.setattr(cache, "decode_image", refuse)
        patch.setattr(cache, "read_image_file", refuse)
        again = hugging_face_dataset("hf:./saved", image_size=12)
    assert torch.equal(first.domains[0].images, again.domains[0].images)
    # The images of another table in the same place are not those of the first.
    labels = ["dog", "cat"] * 6
    order = list(range(11, -1, -1))
    make_table(pets, label=labels).select(order).save_to_disk("other")
    (tmp_path / "saved").rename("gone")
    (tmp_path / "other").rename("saved")
    changed = hugging_face_dataset("hf:./saved", image_size=12)
    assert torch.equal(changed.domains[0].images, first.domains[0].images.flip(0))


def test_columns_and_splits_are_chosen(pets: Path) -> None:
    table = make_table(pets).rename_columns({"image": "img", "label": "y", "domain": "style"})
    names = datasets.ClassLabel(names=["dog", "cat"])
    table = table.cast_column("y", names).cast_column("style", datasets.ClassLabel(names=["night", "day"]))
    datasets.DatasetDict({"train": table.select(range(6)), "test": table.select(range(6, 12))}).save_to_disk("saved")
    columns = {"image_column": "img", "label_column": "y", "domain_column": "style"}
    # Sorted by name, whatever the numbers of the class labels are.
    assert_same_images("hf:./saved", pets, **columns)
    listing = list_hub_dataset("hf:./saved", **columns, split="test")
    assert [(each.name, len(each.files)) for each in listing.domains] == [("night", 6)]
    assert error_of(list_hub_dataset, "hf:./saved", label_column="y") == (
        "hf:./saved, split train has no column 'image'; "
        "choose with --dataset-option image_column=NAME from img, y, style"
    )
    message = error_of(list_hub_dataset, "hf:./saved", **columns, split="val")
    assert message.startswith("unknown split of hf:./saved 'val'")
    assert "train, test, all" in message


def test_numbers_are_sorted_by_value(pets: Path) -> None:
    make_table(pets, label=[10, 9] * 6, domain=[100, 20, 3] * 4).save_to_disk("saved")
    listing = list_hub_dataset("hf:./saved")
    assert (listing.classes, [each.name for each in listing.domains]) == (("9", "10"), ["3", "20", "100"])
    assert listing.domains[2].labels == (1, 0, 1, 0)


@pytest.mark.parametrize("kind", ["parquet", "imagefolder"])
def test_local_repository_is_loaded(pets: Path, kind: str) -> None:
    repository = Path("repository")
    if kind == "parquet":
        (repository / "data").mkdir(parents=True)
        make_table(pets).to_parquet(repository / "data" / "train-00000-of-00001.parquet")
    else:
        pets.rename(repository)
        rows = [
            {"file_name": str(file.relative_to(repository)), "label": file.parent.name, "domain": file.parts[-3]}
            for file in sorted(repository.rglob("*.*"))
        ]
        (repository / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
        # Referred to, not copied: each is a file as in any folder.
        listing = list_hub_dataset("hf:./repository")
        assert listing.domains[0].files[0] == (repository / "day" / "cat").absolute() / Path(rows[0]["file_name"]).name
        pets = repository
    assert_same_images("hf:./repository", pets)


def test_broken_images_are_named_by_their_row(pets: Path) -> None:
    image = make_table(pets).cast_column("image", datasets.Image(decode=False))["image"][:]
    broken = [{"bytes": b"no image", "path": None}, None, *image[2:]]
    make_table(pets, image=broken).save_to_disk("saved")
    assert error_of(hugging_face_dataset, "hf:./saved", image_size=12) == (
        "row 0 of hf:./saved, split train, column image is not an image (+1 more in domain 'day'); "
        "use --skip-broken to leave out such images"
    )
    with pytest.warns(UserWarning, match="2 of 6 images of domain 'day' are left out"):
        assert len(hugging_face_dataset("hf:./saved", image_size=12, skip_broken=True).domains[0]) == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"label": [0.5] * 12},
            "column 'label' of hf:./saved, split train has values of type float; expected ClassLabel, string",
        ),
        ({"label": ["cat"] * 12}, "hf:./saved has images of one class only, 'cat'"),
        ({"domain": ["a"] * 11 + [None]}, "hf:./saved, split train has no domain in row 11"),
    ],
)
def test_unusable_columns_raise(pets: Path, changes: dict[str, list[Any]], message: str) -> None:
    make_table(pets, **changes).save_to_disk("saved")
    assert error_of(list_hub_dataset, "hf:./saved").startswith(message)


def test_class_label_without_a_name_raises(pets: Path) -> None:
    names = datasets.ClassLabel(names=["cat", "dog"])
    table = make_table(pets, label=[0, 1] * 6).cast_column("label", names)
    # Casting checks the range, but files may have any number.
    numbers = pa.array([0, 1] * 5 + [0, 2], pa.int64())
    table = datasets.Dataset(table.data.table.set_column(1, "label", numbers), info=table.info)
    table.save_to_disk("saved")
    assert error_of(list_hub_dataset, "hf:./saved") == (
        "hf:./saved, split train has label 2 in row 11, but the column has only 2 class names"
    )


EMPTY: dict[str, list[Any]] = {"image": [], "label": [], "domain": []}


@pytest.mark.parametrize("content", [{}, EMPTY])
@pytest.mark.parametrize("has_splits", [False, True])
def test_dataset_without_rows_raises(content: dict[str, list[Any]], has_splits: bool) -> None:
    table = datasets.Dataset.from_dict(content)
    (datasets.DatasetDict({"train": table, "test": table}) if has_splits else table).save_to_disk("saved")
    assert error_of(list_hub_dataset, "hf:./saved") == "hf:./saved has no rows"


def test_empty_split_is_left_out(pets: Path) -> None:
    table = make_table(pets)
    datasets.DatasetDict({"train": table, "test": datasets.Dataset.from_dict(EMPTY)}).save_to_disk("saved")
    assert_same_images("hf:./saved", pets)
    assert error_of(list_hub_dataset, "hf:./saved", split="test").startswith("unknown split of hf:./saved 'test'")


def test_saved_dataset_has_no_configurations(pets: Path) -> None:
    make_table(pets).save_to_disk("saved")
    assert error_of(list_hub_dataset, "hf:./saved", config="small") == (
        "hf:./saved was written by save_to_disk, which has no configurations; remove the option config=small"
    )


@pytest.mark.parametrize("kind", ["split", "splits", "parquet", "parquet in data"])
@pytest.mark.parametrize("place", ["saved", "./saved", "../{folder}/saved", "{parent}/{folder}/saved"])
def test_folder_without_prefix_raises_with_the_prefix(pets: Path, tmp_path: Path, kind: str, place: str) -> None:
    table = make_table(pets)
    if kind == "split":
        table.save_to_disk("saved")
    elif kind == "splits":
        datasets.DatasetDict({"train": table}).save_to_disk("saved")
    else:
        folder = Path("saved") if kind == "parquet" else Path("saved/data")
        folder.mkdir(parents=True)
        table.to_parquet(folder / "train-00000-of-00001.parquet")
    place = place.format(folder=tmp_path.name, parent=tmp_path.parent)
    message = error_of(image_files, place)
    assert message.startswith(f"{Path(place)} is a dataset in a format of the Hugging Face Hub; pass it as hf:")
    assert_same_images(message.rpartition(" ")[2], pets)


def test_images_with_a_table_beside_them_are_a_folder_of_images(pets: Path) -> None:
    make_table(pets).to_parquet(pets / "metadata.parquet")
    assert image_files(pets, image_size=12).classes == ("cat", "dog")


def test_column_without_images_raises(pets: Path) -> None:
    make_table(pets, label=list(range(12))).save_to_disk("saved")
    assert error_of(list_hub_dataset, "hf:./saved", image_column="label") == (
        "column 'label' of hf:./saved, split train has no images; its type is Value"
    )


def test_folders_that_are_no_dataset_raise(tmp_path: Path) -> None:
    assert error_of(list_hub_dataset, "hf:./nowhere").startswith("folder nowhere not found")
    (tmp_path / "empty").mkdir()
    assert error_of(list_hub_dataset, "hf:./empty").startswith("hf:./empty could not be loaded: ")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "state.json").write_text("{")
    assert error_of(list_hub_dataset, "hf:./damaged").startswith("hf:./damaged could not be loaded: ")


def test_names() -> None:
    assert find_hub_dataset("hf:owner/pets@v1") == HubName("owner/pets", "v1")
    assert find_hub_dataset("hf:./pets") == Path("pets")
    assert [name_hub_dataset(f"hf:{name}") for name in ("owner/pets", "/data/pets")] == ["hf:owner/pets", "pets"]
    assert error_of(find_hub_dataset, "hf:pets").startswith("'hf:pets' is not the name of a dataset")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A server that the libraries take for the Hub."""
    (tmp_path / "blobs").mkdir()
    # Both libraries read their environment on import only.
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    with serve_hub(tmp_path / "blobs") as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", hub.url)
        template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield hub


def commit_table(hub: HubServer, table: "datasets.Dataset", card: str = "") -> str:
    """Push a table to owner/pets; return the commit."""
    table.to_parquet("table.parquet")
    files = {"train-00000-of-00001.parquet": (hub.keep(Path("table.parquet").read_bytes()), True)}
    return hub.commit("owner/pets", files | ({"README.md": (hub.keep(card.encode()), False)} if card else {}))


def test_dataset_of_the_hub_is_downloaded_once_and_used_offline(
    pets: Path, hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = commit_table(hub, make_table(pets))
    assert_same_images("hf:owner/pets", pets)
    assert any(method == "GET" and path.startswith("/storage/") for method, path in hub.requests)
    # A revision stays what it was when the dataset changes.
    second = commit_table(hub, make_table(pets).select(range(3, 12)))
    assert_same_images(f"hf:owner/pets@{first}", pets)
    for revision in ("", "@main"):
        assert len(list_hub_dataset(f"hf:owner/pets{revision}").domains[0].files) == 3
    assert "revision v9 of hf:owner/pets was not found (404" in error_of(list_hub_dataset, "hf:owner/pets@v9")
    for offline in (constants, datasets.config):
        monkeypatch.setattr(offline, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(cache, "decode_image", refuse)
    # Offline, the library itself would load the latest instead.
    assert error_of(list_hub_dataset, f"hf:owner/pets@{first}") == (
        f"hf:owner/pets@{first} could not be downloaded, and the latest revision in the cache of the datasets library "
        "is another"
    )
    shutil.rmtree(next((tmp_path / "hf").rglob(second)))
    for revision in ("", f"@{first}"):
        assert_same_images(f"hf:owner/pets{revision}", pets)
    assert error_of(list_hub_dataset, "hf:owner/pets@main").endswith("without a connection, give a commit of 40 digits")
    assert error_of(list_hub_dataset, "hf:owner/others").startswith(
        "hf:owner/others is not in the cache of the datasets library and could not be downloaded (Couldn't reach"
    )


def test_runs_record_the_commit_and_warn_of_another(pets: Path, hub: HubServer) -> None:
    first = commit_table(hub, make_table(pets))
    config = RunConfig(
        "hf:owner/pets",
        algorithm="erm",
        network="small_cnn",
        test_domains=("night",),
        dataset_options={"image_size": 12},
        steps=1,
        batch_size=2,
        output="run",
    )
    run = train(config).folder
    assert RunFolder(run).read_config()["data"]["revision"] == first
    # The same images in another revision: a warning, but no error.
    second = commit_table(hub, make_table(pets), card="About these images.")
    with pytest.warns(UserWarning, match=f"began with revision {first} of hf:owner/pets, not {second}; if their"):
        train(config)
    third = commit_table(hub, make_table(pets).select(range(1, 12)))
    with (
        pytest.warns(UserWarning, match=f"began with revision {first} of hf:owner/pets, not {third}; if their"),
        pytest.raises(DomainwiseError, match="the dataset does not match the run"),
    ):
        open_run(run, dataset="hf:owner/pets")
    assert open_run(run, dataset=f"hf:owner/pets@{first}").dataset.revision == first


def test_dataset_whose_urls_fail_is_copied_from_the_hub(pets: Path, hub: HubServer, tmp_path: Path) -> None:
    commit_table(hub, make_table(pets))
    # Nothing listens at port 9.
    broken = RemoteFile("pets.zip", ("http://127.0.0.1:9/pets.zip",), None, page="https://pets.example")
    copy = HubCopy("hf:owner/pets", {"day": 6, "night": 6})
    source = Source("PETS", "home", "free", (broken,), hub_copy=copy, copies="at a friend's")
    with pytest.warns(UserWarning, match="PETS is a copy of hf:owner/pets, because the original could not be"):
        folder = download_dataset("pets", tmp_path / "data", source=source)
    ours, theirs = image_files(folder, image_size=12), image_files(pets, image_size=12)
    assert (ours.classes, ours.domain_names) == (theirs.classes, theirs.domain_names)
    assert all(torch.equal(a.images, b.images) for a, b in zip(ours.domains, theirs.domains, strict=True))
    assert {file.name for file in (folder / "day" / "cat").iterdir()} == {"00000.png", "00001.png", "00002.png"}

    other = replace(source, folder="OTHER", hub_copy=replace(copy, images={"day": 6, "night": 7}))
    message = error_of(download_dataset, "pets", tmp_path / "data", source=other)
    assert message.startswith("pets.zip could not be downloaded: http://127.0.0.1:9/pets.zip: ")
    assert message.endswith(
        "; its copy could not be used either: hf:owner/pets has {'day': 6, 'night': 6} images, expected "
        "{'day': 6, 'night': 7}; copies elsewhere: at a friend's"
    )
    assert not (tmp_path / "data" / "OTHER").exists()
    # A file that the user must look at is no reason to download another dataset.
    third = replace(source, folder="THIRD")
    (tmp_path / "data" / ".downloads" / "THIRD").mkdir()
    (tmp_path / "data" / ".downloads" / "THIRD" / "pets.zip").write_text("<html>Sign in</html>")
    assert "pets.zip is a web page, not an archive" in error_of(download_dataset, "p", tmp_path / "data", source=third)
