"""DomainBed's layouts, from small made-up downloads."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import MNIST, ImageFolder

from domainwise.data.download.archives import (
    CATEGORIES,
    LOCATIONS,
    find_parent,
    gather_folders,
    gunzip_to_raw,
    remove_files,
    split_by_location,
)
from domainwise.data.download.sources import SOURCES
from domainwise.errors import DomainwiseError

PACS = ("art_painting", "cartoon", "photo", "sketch")


def draw(path: Path, shade: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), (shade, shade, shade)).save(path)
    return path


def files_in(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("inside", ["kfold", "PACS", "some/where/deep", "."])
def test_find_parent_finds_the_folder_with_the_domains(tmp_path: Path, inside: str) -> None:
    for domain in PACS:
        draw(tmp_path / "PACS.zip" / inside / domain / "dog" / "1.jpg")
        draw(tmp_path / "PACS.zip" / "__MACOSX" / domain / "dog" / "._1.jpg")
    parent = find_parent(tmp_path, PACS)
    assert parent == tmp_path / "PACS.zip" / inside
    assert len(ImageFolder(str(parent / "photo"))) == 1


def test_download_without_the_domains_raises(tmp_path: Path) -> None:
    draw(tmp_path / "PACS.zip" / "kfold" / "photo" / "dog" / "1.jpg")
    with pytest.raises(DomainwiseError, match="no folder with the subfolders art_painting, cartoon, photo, sketch"):
        find_parent(tmp_path, PACS)


@pytest.mark.parametrize(
    ("name", "archive", "inside", "domains"),
    [
        ("pacs", "PACS.zip", "kfold", PACS),
        ("vlcs", "VLCS.tar.gz", "VLCS", ("Caltech101", "LabelMe", "SUN09", "VOC2007")),
        ("office_home", "office_home.zip", "OfficeHomeDataset_10072016", ("Art", "Clipart", "Product", "Real World")),
    ],
)
def test_datasets_of_one_archive_have_their_domains(
    tmp_path: Path, name: str, archive: str, inside: str, domains: tuple[str, ...]
) -> None:
    for domain in domains:
        draw(tmp_path / archive / inside / domain / "dog" / "1.jpg")
    arrange = SOURCES[name].arrange
    assert arrange is not None
    assert files_in(arrange(tmp_path)) == {f"{domain}/dog/1.jpg" for domain in domains}


def test_domainnet_is_gathered_without_duplicates(tmp_path: Path) -> None:
    domains = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
    for domain in domains:
        for number in (1, 2):
            draw(tmp_path / f"{domain}.zip" / domain / "axe" / f"{number}.jpg")
    (tmp_path / "domain_net_duplicates.txt").write_text("clipart/axe/1.jpg\nreal/axe/2.jpg\nreal/axe/7.jpg\n")
    arrange = SOURCES["domainnet"].arrange
    assert arrange is not None
    expected = {f"{domain}/axe/{number}.jpg" for domain in domains for number in (1, 2)}
    assert files_in(arrange(tmp_path)) == expected - {"clipart/axe/1.jpg", "real/axe/2.jpg"}


def test_missing_domain_raises(tmp_path: Path) -> None:
    draw(tmp_path / "clipart.zip" / "other" / "axe" / "1.jpg")
    (tmp_path / "list.txt").write_text("")
    with pytest.raises(DomainwiseError, match="no folder with the subfolders clipart"):
        gather_folders(tmp_path, ["clipart"], "list.txt")


def test_only_listed_files_inside_the_folder_are_removed(tmp_path: Path) -> None:
    listing = tmp_path / "list.txt"
    kept, gone = draw(tmp_path / "in" / "a" / "kept.jpg"), draw(tmp_path / "in" / "a" / "gone.jpg")
    listing.write_text("a/gone.jpg\r\n\na\na/never.jpg\n")
    assert remove_files(tmp_path / "in", listing) == 1
    assert (kept.exists(), gone.exists()) == (True, False)
    for bad in ("../out.jpg", str(tmp_path / "out.jpg"), "a/../../out.jpg"):
        out = draw(tmp_path / "out.jpg")
        listing.write_text(bad)
        with pytest.raises(DomainwiseError, match="refused to remove"):
            remove_files(tmp_path / "in", listing)
        assert out.exists()


def annotations(*sightings: tuple[str, Any, str]) -> str:
    """Annotations in the published format, of (image, location, category)."""
    names = sorted({category for *_, category in sightings})
    return json.dumps(
        {
            "categories": [{"id": 10 + index, "name": name} for index, name in enumerate(names)],
            "images": [
                {"id": image, "file_name": f"{image}.jpg", "location": location}
                for image, location in {image: location for image, location, _ in sightings}.items()
            ],
            "annotations": [
                {"id": index, "image_id": image, "category_id": 10 + names.index(category)}
                for index, (image, _, category) in enumerate(sightings)
            ],
        }
    )


@pytest.fixture
def terra(tmp_path: Path) -> Path:
    images = tmp_path / "eccv_18_all_images_sm.tar.gz" / "eccv_18_all_images_sm"
    for shade, image in enumerate(("aa", "bb", "cc", "dd", "ee", "ff")):
        draw(images / f"{image}.jpg", 40 * shade)
    (tmp_path / "eccv_18_annotations.tar.gz" / "eccv_18_annotation_files").mkdir(parents=True)
    return tmp_path


def annotate(terra: Path, name: str, text: str) -> None:
    (terra / "eccv_18_annotations.tar.gz" / "eccv_18_annotation_files" / name).write_text(text)


def test_terra_incognita_is_split_by_location_and_category(terra: Path) -> None:
    annotate(terra, "train_annotations.json", annotations(("aa", 38, "bird"), ("bb", 100, "cat"), ("cc", 7, "cat")))
    # Category ids differ between the two files, one location is a string, and one image has two animals twice.
    annotate(
        terra,
        "trans_test_annotations.json",
        annotations(
            ("dd", "46", "cat"), ("dd", "46", "dog"), ("dd", "46", "dog"), ("ee", 43, "deer"), ("ff", 43, "empty")
        ),
    )
    arranged = split_by_location(terra)
    assert files_in(arranged) == {
        "location_38/bird/aa.jpg",
        "location_100/cat/bb.jpg",
        "location_46/cat/dd.jpg",
        "location_46/dog/dd.jpg",
        "location_43/empty/ff.jpg",
    }
    with Image.open(arranged / "location_46" / "dog" / "dd.jpg") as image:
        assert abs(image.getpixel((0, 0))[0] - 120) <= 1
    assert len(ImageFolder(str(arranged / "location_46"))) == 2


def test_terra_incognita_has_four_locations_and_ten_categories(terra: Path) -> None:
    images = terra / "eccv_18_all_images_sm.tar.gz" / "eccv_18_all_images_sm"
    expected = [(place, animal) for place in ("38", "46", "100", "43") for animal in CATEGORIES]
    assert set(LOCATIONS) == {"38", "46", "100", "43"}
    assert ",".join(CATEGORIES) == "bird,bobcat,cat,coyote,dog,empty,opossum,rabbit,raccoon,squirrel"
    for place, animal in expected:
        draw(images / f"{place}{animal}.jpg")
    annotate(terra, "all.json", annotations(*((f"{place}{animal}", place, animal) for place, animal in expected)))
    arranged = split_by_location(terra)
    assert files_in(arranged) == {f"location_{place}/{animal}/{place}{animal}.jpg" for place, animal in expected}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (annotations(("zz", 38, "bird")), r"image 'zz\.jpg' of the annotations not found in eccv_18_all_images_sm"),
        (annotations(("../eccv_18_all_images_sm/aa", 38, "bird")), "not found in eccv_18_all_images_sm"),
        (annotations(("aa", 7, "bird")), "no image from the locations 38, 43, 46, 100"),
        ('{"images": []}', r"bad\.json does not have the expected annotations: KeyError\('categories'\)"),
        ("[", r"bad\.json does not have the expected annotations"),
        ("[1]", r"bad\.json does not have the expected annotations"),
    ],
)
def test_invalid_annotations_raise(terra: Path, text: str, message: str) -> None:
    annotate(terra, "bad.json", text)
    with pytest.raises(DomainwiseError, match=message):
        split_by_location(terra)


def test_terra_incognita_without_annotations_raises(terra: Path) -> None:
    with pytest.raises(DomainwiseError, match=r"no \.json file with annotations"):
        split_by_location(terra)


def idx(values: np.ndarray) -> bytes:
    """MNIST's file format: two zeros, 8 for bytes, the number of axes, their lengths, and the bytes."""
    lengths = b"".join(length.to_bytes(4, "big") for length in values.shape)
    return bytes([0, 0, 8, values.ndim]) + lengths + values.astype(np.uint8).tobytes()


def test_mnist_has_torchvisions_layout(tmp_path: Path) -> None:
    images = np.arange(2 * 28 * 28).reshape(2, 28, 28) % 251
    for part in ("train", "t10k"):
        (tmp_path / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(images)))
        (tmp_path / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.array([7, 3]))))
    root = tmp_path / "root"
    root.mkdir()
    gunzip_to_raw(tmp_path).rename(root / "MNIST")
    for train in (True, False):
        dataset = MNIST(str(root), train=train, download=False)
        assert torch.equal(dataset.data, torch.from_numpy(images).to(torch.uint8))
        assert dataset.targets.tolist() == [7, 3]


@pytest.mark.parametrize("cut", [5, 15, 30])
def test_damaged_gzip_file_of_a_download_raises(tmp_path: Path, cut: int) -> None:
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(range(100)))[:cut])
    with pytest.raises(DomainwiseError, match=r"train-labels-idx1-ubyte\.gz is damaged"):
        gunzip_to_raw(tmp_path)
