"""The layouts that DomainBed makes, from small made-up downloads of the same shape."""

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
    folder_holding,
    gather_folders,
    gunzip_to_raw,
    remove_listed,
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
def test_the_folder_with_the_domains_is_found(tmp_path: Path, inside: str) -> None:
    for domain in PACS:
        draw(tmp_path / "PACS.zip" / inside / domain / "dog" / "1.jpg")
        draw(tmp_path / "PACS.zip" / "__MACOSX" / domain / "dog" / "._1.jpg")
    found = folder_holding(tmp_path, PACS)
    assert found == tmp_path / "PACS.zip" / inside
    assert len(ImageFolder(str(found / "photo"))) == 1


def test_a_download_without_the_domains_is_told(tmp_path: Path) -> None:
    draw(tmp_path / "PACS.zip" / "kfold" / "photo" / "dog" / "1.jpg")
    with pytest.raises(DomainwiseError, match="no folder with art_painting, cartoon, photo, sketch in it"):
        folder_holding(tmp_path, PACS)


@pytest.mark.parametrize(
    ("name", "archive", "inside", "domains"),
    [
        ("pacs", "PACS.zip", "kfold", PACS),
        ("vlcs", "VLCS.tar.gz", "VLCS", ("Caltech101", "LabelMe", "SUN09", "VOC2007")),
        ("office_home", "office_home.zip", "OfficeHomeDataset_10072016", ("Art", "Clipart", "Product", "Real World")),
    ],
)
def test_sources_of_one_archive_give_its_domains(
    tmp_path: Path, name: str, archive: str, inside: str, domains: tuple[str, ...]
) -> None:
    for domain in domains:
        draw(tmp_path / archive / inside / domain / "dog" / "1.jpg")
    arrange = SOURCES[name].arrange
    assert arrange is not None
    assert files_in(arrange(tmp_path)) == {f"{domain}/dog/1.jpg" for domain in domains}


def test_domain_net_is_gathered_without_its_duplicates(tmp_path: Path) -> None:
    domains = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
    for domain in domains:
        for number in (1, 2):
            draw(tmp_path / f"{domain}.zip" / domain / "axe" / f"{number}.jpg")
    (tmp_path / "domain_net_duplicates.txt").write_text("clipart/axe/1.jpg\nreal/axe/2.jpg\nreal/axe/7.jpg\n")
    arrange = SOURCES["domainnet"].arrange
    assert arrange is not None
    expected = {f"{domain}/axe/{number}.jpg" for domain in domains for number in (1, 2)}
    assert files_in(arrange(tmp_path)) == expected - {"clipart/axe/1.jpg", "real/axe/2.jpg"}


def test_a_domain_that_is_missing_is_told(tmp_path: Path) -> None:
    draw(tmp_path / "clipart.zip" / "other" / "axe" / "1.jpg")
    (tmp_path / "list.txt").write_text("")
    with pytest.raises(DomainwiseError, match="no folder with clipart in it"):
        gather_folders(tmp_path, ["clipart"], "list.txt")


def test_only_listed_files_in_the_folder_are_removed(tmp_path: Path) -> None:
    listing = tmp_path / "list.txt"
    kept, gone = draw(tmp_path / "in" / "a" / "kept.jpg"), draw(tmp_path / "in" / "a" / "gone.jpg")
    listing.write_text("a/gone.jpg\r\n\na\na/never.jpg\n")
    assert remove_listed(tmp_path / "in", listing) == 1
    assert (kept.exists(), gone.exists()) == (True, False)
    for bad in ("../out.jpg", str(tmp_path / "out.jpg"), "a/../../out.jpg"):
        out = draw(tmp_path / "out.jpg")
        listing.write_text(bad)
        with pytest.raises(DomainwiseError, match="refused to remove"):
            remove_listed(tmp_path / "in", listing)
        assert out.exists()


def annotations(*sightings: tuple[str, Any, str]) -> str:
    """Annotations as they are published, of (image, location, category)."""
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
    # The categories' numbers differ between the two files, a location is text, and one image shows two animals twice.
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


def test_all_four_locations_and_ten_categories_are_kept(terra: Path) -> None:
    images = terra / "eccv_18_all_images_sm.tar.gz" / "eccv_18_all_images_sm"
    wanted = [(place, animal) for place in ("38", "46", "100", "43") for animal in CATEGORIES]
    assert set(LOCATIONS) == {"38", "46", "100", "43"}
    assert ",".join(CATEGORIES) == "bird,bobcat,cat,coyote,dog,empty,opossum,rabbit,raccoon,squirrel"
    for place, animal in wanted:
        draw(images / f"{place}{animal}.jpg")
    annotate(terra, "all.json", annotations(*((f"{place}{animal}", place, animal) for place, animal in wanted)))
    arranged = split_by_location(terra)
    assert files_in(arranged) == {f"location_{place}/{animal}/{place}{animal}.jpg" for place, animal in wanted}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (annotations(("zz", 38, "bird")), r"name the image 'zz\.jpg', which is not in eccv_18_all_images_sm"),
        (annotations(("../eccv_18_all_images_sm/aa", 38, "bird")), "which is not in eccv_18_all_images_sm"),
        (annotations(("aa", 7, "bird")), "no image of the locations 38, 43, 46, 100"),
        ('{"images": []}', r"bad\.json is not a file of annotations as expected: KeyError\('categories'\)"),
        ("[", r"bad\.json is not a file of annotations as expected"),
        ("[1]", r"bad\.json is not a file of annotations as expected"),
    ],
)
def test_annotations_that_do_not_fit_are_told(terra: Path, text: str, said: str) -> None:
    annotate(terra, "bad.json", text)
    with pytest.raises(DomainwiseError, match=said):
        split_by_location(terra)


def test_terra_incognita_without_annotations_is_told(terra: Path) -> None:
    with pytest.raises(DomainwiseError, match=r"no \.json file of annotations"):
        split_by_location(terra)


def idx(values: np.ndarray) -> bytes:
    """MNIST's file format: two zeros, 8 for bytes, the number of axes, their lengths, and the bytes."""
    lengths = b"".join(length.to_bytes(4, "big") for length in values.shape)
    return bytes([0, 0, 8, values.ndim]) + lengths + values.astype(np.uint8).tobytes()


def test_mnist_is_where_torchvision_reads_it(tmp_path: Path) -> None:
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
def test_a_damaged_gz_file_is_told(tmp_path: Path, cut: int) -> None:
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(bytes(range(100)))[:cut])
    with pytest.raises(DomainwiseError, match=r"train-labels-idx1-ubyte\.gz is damaged"):
        gunzip_to_raw(tmp_path)
