"""The published datasets: folders, content and default settings."""

import os
from pathlib import Path

import pytest
from PIL import Image

from domainwise.data import DATASETS
from domainwise.data.download.sources import SOURCES
from domainwise.data.image_datasets import PUBLISHED
from domainwise.errors import DomainwiseError

REAL_DATA = Path(os.environ.get("DOMAINWISE_DATA") or Path(__file__).resolve().parents[4] / "shared" / "data")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOMAINWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("DOMAINWISE_DATA", raising=False)


def write_images(folder: Path, *paths: str) -> None:
    for index, path in enumerate(paths):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (5, 4), (index, 100, 200)).save(folder / path)


def write_nico(root: Path) -> Path:
    rows = {
        "train1": ("bear\\on_snow\\1.png,bear,on_snow,animal", "car\\on_road\\2.png,car,on_road,vehicle"),
        "train2": ("bear\\in_water\\3.png,bear,in_water,animal", "car\\at_sea\\4.png,car,at_sea,vehicle"),
        "val": ("car\\on_snow\\5.png,car,on_snow,vehicle", "bear\\on_road\\6.png,bear,on_road,animal"),
        "test": ("car\\in_sun\\7.png,car,in_sun,vehicle", "bear\\in_sun\\8.png,bear,in_sun,animal"),
    }
    split = root / "NICO" / "mixed_split_corrected"
    split.mkdir(parents=True)
    for name, lines in rows.items():
        (split / f"env_{name}.csv").write_text("".join(f"{line}\n" for line in lines))
        write_images(root / "NICO", *(line.split(",")[0].replace("\\", "/") for line in lines))
    return root


@pytest.mark.skipif(not (REAL_DATA / "PACS").is_dir(), reason=f"PACS not found at {REAL_DATA}; set DOMAINWISE_DATA")
def test_pacs_has_the_published_counts() -> None:
    listing = PUBLISHED["pacs"].load_listing(REAL_DATA)
    assert {domain.name: len(domain.files) for domain in listing.domains} == {
        "art_painting": 2048,
        "cartoon": 2344,
        "photo": 1670,
        "sketch": 3929,
    }
    assert listing.classes == ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    assert listing.name == "pacs"
    assert listing.describe_missing_classes() == []


@pytest.mark.parametrize("name", list(PUBLISHED))
def test_missing_dataset_raises_with_instructions(name: str, tmp_path: Path) -> None:
    with pytest.raises(DomainwiseError) as error:
        PUBLISHED[name](data_dir=tmp_path)
    folder = SOURCES[name].folder
    assert str(error.value) == (
        f"dataset {name} not found at {tmp_path / folder}: run `domainwise data prepare {name}`, or set --data-dir or "
        f"$DOMAINWISE_DATA to the folder that contains {folder}"
    )


def test_published_datasets_are_in_the_table() -> None:
    assert all(DATASETS[name] is dataset for name, dataset in PUBLISHED.items())


def test_dataset_has_the_name_of_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_images(tmp_path / "VLCS", "SUN09/bird/1.png", "SUN09/car/2.png", "LabelMe/bird/3.png", "LabelMe/car/4.png")
    monkeypatch.setenv("DOMAINWISE_DATA", str(tmp_path))
    dataset = PUBLISHED["vlcs"](image_size=6)
    assert (dataset.name, dataset.domain_names, dataset.classes) == ("vlcs", ("LabelMe", "SUN09"), ("bird", "car"))
    assert (dataset.network, dataset.weights, dataset.is_augmented) == ("resnet18", "IMAGENET1K_V1", True)
    assert (dataset.record_every, dataset.holdout_fraction) == (300, 0.2)
    assert dataset.image_shape == (3, 6, 6)


def test_data_dir_overrides_the_environment_variable_for_listings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_images(tmp_path / "one" / "PACS", "photo/dog/1.png", "photo/cat/1.png")
    write_images(tmp_path / "two" / "PACS", "sketch/dog/1.png", "sketch/cat/1.png")
    monkeypatch.setenv("DOMAINWISE_DATA", str(tmp_path / "one"))
    assert PUBLISHED["pacs"].load_listing().domains[0].name == "photo"
    assert PUBLISHED["pacs"].load_listing(tmp_path / "two").domains[0].name == "sketch"


def test_nico_has_fixed_roles_and_no_pretrained_weights(tmp_path: Path) -> None:
    dataset = PUBLISHED["nico"](data_dir=write_nico(tmp_path), image_size=6)
    assert [(domain.name, domain.role) for domain in dataset.domains] == [
        *(("train1", "train"), ("train2", "train"), ("val", "validation"), ("test", "test"))
    ]
    assert [domain.labels.tolist() for domain in dataset.domains] == [[0, 1], [0, 1], [1, 0], [1, 0]]
    assert (dataset.weights, dataset.holdout_fraction, dataset.record_every) == ("none", 0.0, 100)
    assert (dataset.network, dataset.is_augmented) == ("resnet18", True)
    assert dataset.classes == ("animal", "vehicle")


def test_broken_images_of_a_published_dataset_can_be_skipped(tmp_path: Path) -> None:
    write_nico(tmp_path)
    broken = tmp_path / "NICO" / "bear" / "on_snow" / "1.png"
    broken.write_bytes(b"")
    with pytest.raises(DomainwiseError, match="is empty"):
        PUBLISHED["nico"](data_dir=tmp_path, image_size=6)
    with pytest.warns(UserWarning, match="1 of 2 images of domain 'train1' are left out"):
        dataset = PUBLISHED["nico"](data_dir=tmp_path, image_size=6, skip_broken=True)
    assert dataset.domains[0].labels.tolist() == [1]


def test_domainnet_is_recorded_less_often(tmp_path: Path) -> None:
    write_images(
        tmp_path / "domain_net", *(f"{kind}/1.png" for kind in ("clipart/dog", "clipart/cat", "real/dog", "real/cat"))
    )
    dataset = PUBLISHED["domainnet"](data_dir=tmp_path, image_size=6)
    assert dataset.record_every == 1000
    assert dataset.weights == "IMAGENET1K_V1"
