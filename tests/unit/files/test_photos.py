"""Image files to a dataset: settings, labels, and what is done about broken images."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from image_kinds import BAD, GOOD, write_images, write_photos, write_tree

from domainwise.data import image_files
from domainwise.data.decoding import decode_image
from domainwise.data.image_files import check_files, list_images
from domainwise.errors import DomainwiseError

SIZE = 8


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOMAINWISE_CACHE", str(tmp_path / "kept"))


def with_broken(root: Path, *names: str) -> Path:
    """Two domains; `names` of what cannot be used lie among the images of one."""
    write_tree(root, {"day": {"cat": 2, "dog": 2}, "night": {"cat": 1, "dog": 1}})
    write_images(root / "day" / "cat", {f"000-{name}": BAD[name] for name in names})
    return root


def test_settings_are_those_that_suit_photographs(tmp_path: Path) -> None:
    dataset = image_files(write_tree(tmp_path / "pets", {"day": {"cat": 2}, "night": {"cat": 1}}), image_size=SIZE)
    assert dataset.name == "pets"
    assert (dataset.network, dataset.weights, dataset.is_augmented) == ("resnet18", "IMAGENET1K_V1", True)
    assert dict(dataset.defaults) == {"lr": 5e-5, "batch_size": 32}
    assert (dataset.steps, dataset.record_every, dataset.holdout_fraction) == (5001, 300, 0.2)
    assert dataset.image_shape == (3, SIZE, SIZE)
    assert image_files(tmp_path / "pets").image_shape == (3, 224, 224)


def test_the_seed_changes_nothing(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "pets", {"day": {"cat": 3}})
    one, other = (image_files(root, seed, image_size=SIZE).domains[0] for seed in (0, 5))
    assert torch.equal(one.images, other.images)
    assert torch.equal(one.labels, other.labels)


def test_labels_are_those_of_the_images_beside_them(tmp_path: Path) -> None:
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


def test_a_csv_file_is_the_same_dataset_as_its_folder(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "pets", {"day": {"cat": 2, "dog": 1}, "night": {"cat": 1, "dog": 1}})
    rows = [path.relative_to(tmp_path) for path in sorted(root.rglob("*.png"))]
    table = tmp_path / "pets.csv"
    table.write_text("path,label,domain\n" + "".join(f"{row},{row.parts[2]},{row.parts[1]}\n" for row in rows))
    folder, listed = image_files(root, image_size=SIZE), image_files(table, image_size=SIZE)
    assert (listed.name, listed.classes, listed.domain_names) == (folder.name, folder.classes, folder.domain_names)
    for one, other in zip(folder.domains, listed.domains, strict=True):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)


def test_a_broken_image_refuses_the_dataset_and_is_named(tmp_path: Path) -> None:
    root = with_broken(tmp_path / "pets", "text.jpg")
    with pytest.raises(DomainwiseError) as error:
        image_files(root, image_size=SIZE)
    file = root / "day" / "cat" / "000-text.jpg"
    assert str(error.value) == f"{file} is not an image that can be read; --skip-broken leaves such images out"


def test_the_first_broken_image_is_named_and_the_others_are_counted(tmp_path: Path) -> None:
    root = with_broken(tmp_path / "pets", "text.jpg", "cut.jpg", "empty.jpg")
    with pytest.raises(DomainwiseError) as error:
        image_files(root, image_size=SIZE)
    file = root / "day" / "cat" / "000-cut.jpg"
    assert str(error.value).startswith(f"{file} cannot be decoded (image file is truncated")
    assert ", and 2 more images of the domain; --skip-broken leaves such images out" in str(error.value)


def test_broken_images_are_left_out_with_a_word_and_the_rest_keeps_its_labels(tmp_path: Path) -> None:
    root = with_broken(tmp_path / "pets", "text.jpg", "empty.jpg")
    with pytest.warns(UserWarning, match="left out") as noted:
        dataset = image_files(root, image_size=SIZE, skip_broken=True)
    (note,) = (str(warning.message) for warning in noted)
    file = root / "day" / "cat" / "000-empty.jpg"
    assert note == f"2 of 6 images of domain 'day' are left out: {file} is empty (0 bytes) ..."
    whole = image_files(write_tree(tmp_path / "whole", {"day": {"cat": 2, "dog": 2}}), image_size=SIZE)
    assert dataset.domains[0].labels.tolist() == [0, 0, 1, 1]
    assert torch.equal(dataset.domains[0].images, whole.domains[0].images)
    assert len(dataset.domains[1]) == 2


def test_whole_images_need_no_word(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "pets", {"day": {"cat": 2, "dog": 2}})
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        image_files(root, image_size=SIZE, skip_broken=True)
    assert noted == []


def test_a_domain_of_broken_images_is_refused_even_then(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "pets", {"day": {"cat": 2}})
    write_images(root / "night" / "cat", {"1.jpg": BAD["empty.jpg"], "2.jpg": BAD["text.jpg"]})
    with pytest.raises(DomainwiseError) as error:
        image_files(root, image_size=SIZE, skip_broken=True)
    file = root / "night" / "cat" / "1.jpg"
    assert str(error.value) == f"none of the 2 images of domain 'night' is left: {file} is empty (0 bytes)"


def test_a_row_of_a_csv_file_whose_file_is_missing_is_a_broken_image(tmp_path: Path) -> None:
    write_photos(tmp_path / "a", 1)
    table = tmp_path / "pets.csv"
    table.write_text("path,label,domain\na/000.png,cat,day\na/gone.png,cat,day\n")
    with pytest.raises(DomainwiseError) as error:
        image_files(table, image_size=SIZE)
    assert str(error.value).startswith(f"{tmp_path / 'a' / 'gone.png'} cannot be read: No such file or directory;")
    with pytest.warns(UserWarning, match="1 of 2 images of domain 'day' are left out"):
        assert len(image_files(table, image_size=SIZE, skip_broken=True).domains[0]) == 1


def test_a_class_that_a_domain_lacks_is_noted(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "pets", {"day": {"cat": 1, "dog": 1}, "night": {"dog": 1}})
    with pytest.warns(UserWarning, match="^domain 'night' of pets has no image of class 'cat'$"):
        dataset = image_files(root, image_size=SIZE)
    assert dataset.domains[1].labels.tolist() == [1]


def test_converted_images_are_noted_once_a_kind(tmp_path: Path) -> None:
    root = tmp_path / "pets"
    kinds = {"1.jpg": "rgb.jpg", "2.jpg": "cmyk.jpg", "3.png": "deep.png", "4.jpg": "cmyk.jpg"}
    write_images(root / "day" / "cat", {name: GOOD[kind] for name, kind in kinds.items()})
    with pytest.warns(UserWarning, match="images of domain 'day' are") as noted:
        dataset = image_files(root, image_size=SIZE)
    folder = root / "day" / "cat"
    assert [str(warning.message) for warning in noted] == [
        f"2 images of domain 'day' are CMYK: {folder / '2.jpg'} ...",
        f"1 images of domain 'day' are 16 bits: {folder / '3.png'} ...",
    ]
    assert len(dataset.domains[0]) == 4


@pytest.mark.parametrize("size", [0, -3])
def test_an_image_size_below_1_is_refused(tmp_path: Path, size: int) -> None:
    root = write_tree(tmp_path / "pets", {"day": {"cat": 1}})
    with pytest.raises(DomainwiseError, match=f"^image_size must be at least 1, not {size}$"):
        image_files(root, image_size=size)


def test_progress_names_the_domain(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "pets", {"day": {"cat": 2}, "night": {"cat": 1}})
    told: list[object] = []
    image_files(root, image_size=SIZE, on_progress=lambda *words: told.append(words))
    assert told == [("reading day", 2, 2), ("decoding day", 2, 2), ("reading night", 1, 1), ("decoding night", 1, 1)]


def test_a_check_opens_every_file_and_keeps_none(tmp_path: Path) -> None:
    root = with_broken(tmp_path / "pets", "cut.jpg", "noise.jpg")
    write_images(root / "night" / "ant", {"1.jpg": GOOD["cmyk.jpg"]})
    told: list[object] = []
    found = check_files(list_images(root), lambda *words: told.append(words))
    folder = root / "day" / "cat"
    assert list(found.faults) == [folder / "000-cut.jpg", folder / "000-noise.jpg"]
    assert found.notes == {root / "night" / "ant" / "1.jpg": "CMYK"}
    assert found.gaps == ["domain 'day' of pets has no image of class 'ant'"]
    assert told == [("decoding day", 6, 6), ("decoding night", 3, 3)]
    assert not (tmp_path / "kept").exists()
