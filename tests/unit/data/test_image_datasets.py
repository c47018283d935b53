"""Datasets of image files: settings, labels, and broken images."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from image_kinds import BAD, GOOD, write_images, write_photos, write_tree

from domainwise.data import image_files
from domainwise.data.decoding import decode_image
from domainwise.data.image_datasets import check_images
from domainwise.data.listing import Listing, list_images
from domainwise.errors import DomainwiseError

SIZE = 8


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOMAINWISE_CACHE", str(tmp_path / "cache"))


def with_broken(root: Path, *names: str) -> Path:
    """Two domains; one of them with the broken files `names`."""
    write_tree(root, {"day": {"cat": 2, "dog": 2}, "night": {"cat": 1, "dog": 1}})
    write_images(root / "day" / "cat", {f"000-{name}": BAD[name] for name in names})
    return root


def test_default_settings(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "pets", {"day": {"cat": 1, "dog": 1}, "night": {"cat": 1, "dog": 1}})
    dataset = image_files(root, image_size=SIZE)
    assert dataset.name == "pets"
    assert (dataset.network, dataset.weights, dataset.is_augmented) == ("resnet18", "IMAGENET1K_V1", True)
    assert dict(dataset.defaults) == {"lr": 5e-5, "batch_size": 32}
    assert (dataset.steps, dataset.record_every, dataset.holdout_fraction) == (5001, 300, 0.2)
    assert dataset.image_shape == (3, SIZE, SIZE)
    assert image_files(tmp_path / "pets").image_shape == (3, 224, 224)


def test_seed_has_no_effect(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "pets", {"day": {"cat": 3, "dog": 1}})
    one, other = (image_files(root, seed, image_size=SIZE).domains[0] for seed in (0, 5))
    assert torch.equal(one.images, other.images)
    assert torch.equal(one.labels, other.labels)


def test_labels_match_their_images(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "pets", {"day": {"cat": 2, "dog": 3}, "night": {"cat": 1, "dog": 2}})
    dataset = image_files(str(root), image_size=SIZE)
    assert dataset.classes == ("cat", "dog")
    assert dataset.domain_names == ("day", "night")
    for domain in dataset.domains:
        assert domain.labels.dtype == torch.int64
        for label, kind in enumerate(dataset.classes):
            files = sorted((root / domain.name / kind).iterdir())
            rows = [np.frombuffer(decode_image(file.read_bytes(), SIZE).pixels or b"", np.uint8) for file in files]
            expected = torch.from_numpy(np.stack(rows)).view(-1, SIZE, SIZE, 3).permute(0, 3, 1, 2)
            assert torch.equal(domain.images[domain.labels == label], expected)


def test_csv_gives_the_same_dataset_as_its_folder(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "pets", {"day": {"cat": 2, "dog": 1}, "night": {"cat": 1, "dog": 1}})
    rows = [path.relative_to(tmp_path) for path in sorted(root.rglob("*.png"))]
    table = tmp_path / "pets.csv"
    table.write_text("path,label,domain\n" + "".join(f"{row},{row.parts[2]},{row.parts[1]}\n" for row in rows))
    folder, listed = image_files(root, image_size=SIZE), image_files(table, image_size=SIZE)
    assert (listed.name, listed.classes, listed.domain_names) == (folder.name, folder.classes, folder.domain_names)
    for one, other in zip(folder.domains, listed.domains, strict=True):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)


def test_broken_image_raises(tmp_path: Path) -> None:
    root = with_broken(tmp_path / "pets", "text.jpg")
    with pytest.raises(DomainwiseError) as error:
        image_files(root, image_size=SIZE)
    file = root / "day" / "cat" / "000-text.jpg"
    assert str(error.value) == f"{file} is not an image; use --skip-broken to leave out such images"


def test_first_broken_image_is_named_and_the_others_are_counted(tmp_path: Path) -> None:
    root = with_broken(tmp_path / "pets", "text.jpg", "cut.jpg", "empty.jpg")
    with pytest.raises(DomainwiseError) as error:
        image_files(root, image_size=SIZE)
    file = root / "day" / "cat" / "000-cut.jpg"
    assert str(error.value).startswith(f"{file} could not be decoded (image file is truncated")
    assert " (+2 more in domain 'day'); use --skip-broken to leave out such images" in str(error.value)


def test_skipping_broken_images_warns_and_keeps_the_other_labels(tmp_path: Path) -> None:
    root = with_broken(tmp_path / "pets", "text.jpg", "empty.jpg")
    with pytest.warns(UserWarning, match="left out") as caught:
        dataset = image_files(root, image_size=SIZE, skip_broken=True)
    (note,) = (str(warning.message) for warning in caught)
    file = root / "day" / "cat" / "000-empty.jpg"
    assert note == f"2 of 6 images of domain 'day' are left out: {file} is empty (0 bytes) ..."
    intact = image_files(write_tree(tmp_path / "intact", {"day": {"cat": 2, "dog": 2}}), image_size=SIZE)
    assert dataset.domains[0].labels.tolist() == [0, 0, 1, 1]
    assert torch.equal(dataset.domains[0].images, intact.domains[0].images)
    assert len(dataset.domains[1]) == 2


def test_intact_images_do_not_warn(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "pets", {"day": {"cat": 2, "dog": 2}})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        image_files(root, image_size=SIZE, skip_broken=True)
    assert caught == []


def test_domain_of_broken_images_raises_even_if_skipped(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "pets", {"day": {"cat": 2, "dog": 1}})
    write_images(root / "night" / "cat", {"1.jpg": BAD["empty.jpg"], "2.jpg": BAD["text.jpg"]})
    with pytest.warns(UserWarning, match="no image of class 'dog'"), pytest.raises(DomainwiseError) as error:
        image_files(root, image_size=SIZE, skip_broken=True)
    file = root / "night" / "cat" / "1.jpg"
    assert str(error.value) == f"all 2 images of domain 'night' are broken: {file} is empty (0 bytes)"


def test_missing_file_of_a_csv_is_a_broken_image(tmp_path: Path) -> None:
    write_photos(tmp_path / "a", 1)
    table = tmp_path / "pets.csv"
    table.write_text("path,label,domain\na/000.png,cat,day\na/gone.png,dog,day\n")
    with pytest.raises(DomainwiseError) as error:
        image_files(table, image_size=SIZE)
    assert str(error.value).startswith(f"{tmp_path / 'a' / 'gone.png'} could not be read: No such file or directory;")
    with pytest.warns(UserWarning, match="1 of 2 images of domain 'day' are left out"):
        assert len(image_files(table, image_size=SIZE, skip_broken=True).domains[0]) == 1


def test_missing_class_warns(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "pets", {"day": {"cat": 1, "dog": 1}, "night": {"dog": 1}})
    with pytest.warns(UserWarning, match="^domain 'night' of pets has no image of class 'cat'$"):
        dataset = image_files(root, image_size=SIZE)
    assert dataset.domains[1].labels.tolist() == [1]


def test_converted_images_warn_once_per_kind(tmp_path: Path) -> None:
    root = tmp_path / "pets"
    kinds = {"1.jpg": "rgb.jpg", "2.jpg": "cmyk.jpg", "3.png": "deep.png", "4.jpg": "cmyk.jpg"}
    write_images(root / "day" / "cat", {name: GOOD[kind] for name, kind in kinds.items()})
    write_photos(root / "day" / "dog", 1)
    with pytest.warns(UserWarning, match="images of domain 'day' are") as caught:
        dataset = image_files(root, image_size=SIZE)
    folder = root / "day" / "cat"
    assert [str(warning.message) for warning in caught] == [
        f"2 images of domain 'day' are CMYK: {folder / '2.jpg'} ...",
        f"1 images of domain 'day' are 16-bit: {folder / '3.png'} ...",
    ]
    assert len(dataset.domains[0]) == 5


@pytest.mark.parametrize("size", [0, -3])
def test_image_size_below_1_raises(tmp_path: Path, size: int) -> None:
    root = write_tree(tmp_path / "pets", {"day": {"cat": 1, "dog": 1}})
    with pytest.raises(DomainwiseError, match=f"^image_size must be at least 1, got {size}$"):
        image_files(root, image_size=size)


def test_image_size_beyond_the_limit_raises(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "pets", {"day": {"cat": 1, "dog": 1}})
    with pytest.raises(DomainwiseError, match=r"^image_size must be at most 16384, got 1000000000000$"):
        image_files(root, image_size=10**12)


def test_listing_is_reported_before_any_image_is_read(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "pets", {"day": {"cat": 1, "dog": 1}, "night": {"cat": 1, "dog": 1}})
    reports: list[object] = []

    def stop(listing: Listing) -> None:
        raise DomainwiseError(", ".join(domain.name for domain in listing.domains))

    with pytest.raises(DomainwiseError, match=r"^day, night$"):
        image_files(root, on_progress=lambda *report: reports.append(report), on_listing=stop)
    assert reports == []
    assert not (tmp_path / "cache").exists()


def test_progress_has_the_domain(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "pets", {"day": {"cat": 1, "dog": 1}, "night": {"cat": 1, "dog": 1}})
    reports: list[object] = []
    image_files(root, image_size=SIZE, on_progress=lambda *report: reports.append(report))
    assert reports == [("reading day", 2, 2), ("decoding day", 2, 2), ("reading night", 2, 2), ("decoding night", 2, 2)]


def test_check_decodes_every_file_and_caches_none(tmp_path: Path) -> None:
    root = with_broken(tmp_path / "pets", "cut.jpg", "noise.jpg")
    write_images(root / "night" / "ant", {"1.jpg": GOOD["cmyk.jpg"]})
    reports: list[object] = []
    result = check_images(list_images(root), lambda *report: reports.append(report))
    folder = root / "day" / "cat"
    assert list(result.errors) == [folder / "000-cut.jpg", folder / "000-noise.jpg"]
    assert result.notes == {root / "night" / "ant" / "1.jpg": "CMYK"}
    assert result.missing_classes == ["domain 'day' of pets has no image of class 'ant'"]
    assert reports == [("decoding day", 6, 6), ("decoding night", 3, 3)]
    assert not (tmp_path / "cache").exists()
