"""The cache of decoded images: reuse, invalidation, damage and clearing."""

import os
import shutil
import sys
from collections import namedtuple
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from image_kinds import BAD, GOOD, content, photo, write_images, write_photos
from torch import Tensor

from domainwise.data import Domain, cache
from domainwise.data.cache import cache_size, clear_cache, load_cached_images
from domainwise.data.decoding import CenterCrop, DecodedImage, decode_image
from domainwise.errors import DomainwiseError

SIZE = 12


@pytest.fixture(autouse=True)
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOMAINWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def nothing_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> DecodedImage:
        raise AssertionError("decoded again")

    monkeypatch.setattr(cache, "decode_image", refuse)


def entries(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/entry.json"))


def by_hand(files: Sequence[Path], size: int = SIZE) -> Tensor:
    content_bytes = [decode_image(file.read_bytes(), size).pixels for file in files]
    rows = [np.frombuffer(pixels, np.uint8).reshape(size, size, 3) for pixels in content_bytes if pixels is not None]
    return torch.from_numpy(np.stack(rows)).permute(0, 3, 1, 2)


def error_message(files: Sequence[Path]) -> str:
    with pytest.raises(DomainwiseError) as error:
        load_cached_images(files, SIZE)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_images_equal_the_decoded_files_in_order(tmp_path: Path) -> None:
    files = write_photos(tmp_path / "a", 7)[::-1]
    cached = load_cached_images(files, SIZE)
    assert cached.images.shape == (7, 3, SIZE, SIZE)
    assert cached.images.dtype == torch.uint8
    assert torch.equal(cached.images, by_hand(files))
    assert (cached.kept, cached.errors, cached.notes) == (list(range(7)), {}, {})


def test_broken_images_are_left_out_with_their_errors(tmp_path: Path) -> None:
    content_bytes = [
        BAD["empty.jpg"],
        GOOD["rgb.jpg"],
        BAD["cut.jpg"],
        GOOD["palette.png"],
        BAD["text.jpg"],
        GOOD["rgb.png"],
    ]
    kinds = {f"{index}.jpg": make for index, make in enumerate(content_bytes)}
    files = [*write_images(tmp_path / "a", kinds), tmp_path / "a" / "missing.jpg"]
    for _ in range(2):
        cached = load_cached_images(files, SIZE)
        assert cached.kept == [1, 3, 5]
        assert list(cached.errors) == [0, 2, 4, 6]
        assert cached.errors[0] == "is empty (0 bytes)"
        assert cached.errors[6] == "could not be read: No such file or directory"
        assert cached.notes == {3: "palette"}
        assert torch.equal(cached.images, by_hand([files[1], files[3], files[5]]))


def test_only_broken_images_give_an_empty_tensor(tmp_path: Path) -> None:
    files = write_images(tmp_path / "a", BAD)
    cached = load_cached_images(files, SIZE)
    assert cached.images.shape == (0, 3, SIZE, SIZE)
    assert cached.kept == []
    assert len(cached.errors) == len(BAD)


def test_a_second_call_decodes_nothing(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    files = write_images(tmp_path / "a", {**GOOD, **BAD})
    first = load_cached_images(files, SIZE)
    request.getfixturevalue("nothing_is_decoded")
    reports: list[object] = []
    second = load_cached_images(files, SIZE, lambda *report: reports.append(report))
    assert torch.equal(first.images, second.images)
    assert (first.kept, first.errors, first.notes) == (second.kept, second.errors, second.notes)
    assert reports == []


def test_existing_entry_is_readable_in_a_read_only_folder(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example a folder that several users share and one of them fills."""
    files = write_photos(tmp_path / "a", 2)
    load_cached_images(files, SIZE)
    opened = os.open

    def refuse(path: Path, flags: int, *rest: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR) and cache_dir in Path(path).parents:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags, *rest)

    monkeypatch.setattr(os, "open", refuse)
    assert torch.equal(load_cached_images(files, SIZE).images, by_hand(files))
    assert "could not be written" in error_message(files[:1])


@pytest.mark.skipif(os.name == "nt" or sys.platform == "darwin", reason="names are text there")
def test_file_name_may_have_invalid_encoding(tmp_path: Path) -> None:
    (file,) = write_photos(tmp_path / "a", 1)
    odd = file.rename(file.with_name(os.fsdecode(b"caf\xe9.png")))
    for _ in range(2):
        assert torch.equal(load_cached_images([odd], SIZE).images, by_hand([odd]))


def test_progress_is_reported(tmp_path: Path) -> None:
    reports: list[object] = []
    load_cached_images(write_photos(tmp_path / "a", 3), SIZE, lambda *report: reports.append(report))
    assert reports == [("reading", 3, 3), ("decoding", 3, 3)]


def test_copied_files_share_the_entry(tmp_path: Path, cache_dir: Path, request: pytest.FixtureRequest) -> None:
    first = load_cached_images(write_photos(tmp_path / "a", 3), SIZE)
    request.getfixturevalue("nothing_is_decoded")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    second = load_cached_images(sorted((tmp_path / "b").iterdir()), SIZE)
    assert torch.equal(first.images, second.images)
    assert len(entries(cache_dir)) == 1


def test_equal_relative_paths_in_other_folders_are_different_files(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, seed in (("here", 1), ("there", 2)):
        write_images(tmp_path / place / "a", {"1.ppm": lambda seed=seed: content(photo(seed), "PPM")})
        monkeypatch.chdir(tmp_path / place)
        cached = load_cached_images([Path("a/1.ppm")], SIZE)
        assert torch.equal(cached.images, by_hand([tmp_path / place / "a" / "1.ppm"]))
    assert len(entries(cache_dir)) == 2
    assert len(list(cache_dir.glob("*.seen.json"))) == 2


def test_touched_files_share_the_entry(tmp_path: Path, cache_dir: Path, request: pytest.FixtureRequest) -> None:
    files = write_photos(tmp_path / "a", 2)
    first = load_cached_images(files, SIZE)
    request.getfixturevalue("nothing_is_decoded")
    for file in files:
        os.utime(file, ns=(5, 5))
    assert torch.equal(load_cached_images(files, SIZE).images, first.images)
    assert len(entries(cache_dir)) == 1


def test_changed_file_gives_a_new_entry(tmp_path: Path, cache_dir: Path) -> None:
    files = write_photos(tmp_path / "a", 3)
    first = load_cached_images(files, SIZE).images.clone()
    files[1].write_bytes(content(photo(77), "PNG"))
    os.utime(files[1], ns=(5, 5))
    second = load_cached_images(files, SIZE).images
    assert torch.equal(second, by_hand(files))
    assert [bool((first[index] == second[index]).all()) for index in range(3)] == [True, False, True]
    assert len(entries(cache_dir)) == 2


def test_other_order_gives_a_new_entry(tmp_path: Path, cache_dir: Path) -> None:
    files = write_photos(tmp_path / "a", 3)
    forth, back = load_cached_images(files, SIZE), load_cached_images(files[::-1], SIZE)
    assert torch.equal(back.images, forth.images.flip(0))
    assert len(entries(cache_dir)) == 2


def test_other_size_gives_a_new_entry(tmp_path: Path, cache_dir: Path) -> None:
    files = write_photos(tmp_path / "a", 2)
    load_cached_images(files, SIZE)
    assert torch.equal(load_cached_images(files, 5).images, by_hand(files, 5))
    assert len(entries(cache_dir)) == 2


def test_other_decoding_rule_gives_a_new_entry(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_photos(tmp_path / "a", 2)
    load_cached_images(files, SIZE)
    monkeypatch.setattr(cache, "DECODING_RULE", "another")
    monkeypatch.setattr(cache, "decode_image", lambda _, size, crop: DecodedImage(bytes([9]) * size * size * 3))
    assert load_cached_images(files, SIZE).images.unique().tolist() == [9]
    assert len(entries(cache_dir)) == 2


def test_every_crop_has_an_entry_of_its_own(tmp_path: Path, cache_dir: Path) -> None:
    files = write_photos(tmp_path / "a", 2)
    crops = (None, CenterCrop(SIZE + 2), CenterCrop(SIZE + 2, "bicubic"), CenterCrop(SIZE + 2, keeps_aspect=False))
    images = [load_cached_images(files, SIZE, crop=crop).images.clone() for crop in crops]
    assert not any(torch.equal(first, second) for first, second in combinations(images, 2))
    assert len(entries(cache_dir)) == len(crops)
    assert torch.equal(load_cached_images(files, SIZE, crop=crops[1]).images, images[1])


def test_images_are_memory_mapped_and_channels_last(tmp_path: Path, cache_dir: Path) -> None:
    files = write_photos(tmp_path / "a", 3)
    images = load_cached_images(files, SIZE).images
    assert images.stride() == (SIZE * SIZE * 3, 1, SIZE * 3, 3)
    assert images.is_contiguous(memory_format=torch.channels_last)
    # A domain uses them without a copy.
    assert Domain("a", images, torch.zeros(3, dtype=torch.int64)).images.data_ptr() == images.data_ptr()
    (entry,) = entries(cache_dir)
    # Writing to the file changes the tensor: it is not a copy.
    with open(entry / "images", "r+b") as file:
        file.write(bytes([200, 100, 50]))
    assert images[0, :, 0, 0].tolist() == [200, 100, 50]
    assert str(entry / "images") in Path("/proc/self/maps").read_text() or not Path("/proc/self/maps").exists()


def test_writing_to_the_tensor_does_not_change_the_file(tmp_path: Path, cache_dir: Path) -> None:
    files = write_photos(tmp_path / "a", 2)
    images = load_cached_images(files, SIZE).images
    before = (entries(cache_dir)[0] / "images").read_bytes()
    images.zero_()
    assert (entries(cache_dir)[0] / "images").read_bytes() == before
    assert torch.equal(load_cached_images(files, SIZE).images, by_hand(files))


@pytest.mark.parametrize(
    "damaged",
    [
        *(b"[" * 100_000, b"", b"{", b"[]", b"5", b"\xff\xfe", b'{"faults": {}}', b'{"faults": [], "notes": {}}'),
        *(b'{"faults": {"x": ""}, "notes": {}}', b'{"faults": {"0": "is odd"}, "notes": {}}'),
    ],
)
def test_damaged_entry_raises(tmp_path: Path, cache_dir: Path, damaged: bytes) -> None:
    files = write_photos(tmp_path / "a", 2)
    load_cached_images(files, SIZE)
    (entry,) = entries(cache_dir)
    (entry / "entry.json").write_bytes(damaged)
    message = error_message(files)
    assert message.startswith(f"cache entry {entry} is damaged (")
    assert message.endswith("; delete that folder")
    clear_cache()
    assert torch.equal(load_cached_images(files, SIZE).images, by_hand(files))


@pytest.mark.parametrize("change", ["short", "empty", "long", "missing", "no entry.json"])
def test_images_of_the_wrong_length_raise(tmp_path: Path, cache_dir: Path, change: str) -> None:
    files = write_photos(tmp_path / "a", 2)
    load_cached_images(files, SIZE)
    (entry,) = entries(cache_dir)
    intact = (entry / "images").read_bytes()
    if change == "missing":
        (entry / "images").unlink()
    elif change == "no entry.json":
        (entry / "entry.json").unlink()
    else:
        (entry / "images").write_bytes({"short": intact[:-1], "empty": b"", "long": intact + b"x"}[change])
    assert error_message(files).startswith(f"cache entry {entry} is damaged (")


def test_partial_entry_of_a_killed_process_is_replaced(tmp_path: Path, cache_dir: Path) -> None:
    files = write_photos(tmp_path / "a", 2)
    load_cached_images(files, SIZE)
    (entry,) = entries(cache_dir)
    partial = entry.rename(entry.with_name(f".{entry.name}.partial"))
    (partial / "images").write_bytes(b"half of it")
    (partial / "other").touch()
    assert torch.equal(load_cached_images(files, SIZE).images, by_hand(files))
    assert entries(cache_dir) == [entry]
    assert not partial.exists()
    assert sorted(path.name for path in entry.iterdir()) == ["entry.json", "images"]


def test_failed_build_leaves_no_entry_and_can_be_repeated(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_photos(tmp_path / "a", 2)
    with monkeypatch.context() as patched:

        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        patched.setattr(os, "fsync", lambda descriptor: None)
        load_cached_images(files[:1], SIZE)
        patched.setattr(os, "fsync", full)
        assert "No space left on device; set $DOMAINWISE_CACHE to another folder" in error_message(files)
    assert len(entries(cache_dir)) == 1
    assert torch.equal(load_cached_images(files, SIZE).images, by_hand(files))


def test_file_that_changes_while_reading_raises(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_photos(tmp_path / "a", 3)
    read, seen = Path.read_bytes, set()

    def changing(file: Path) -> bytes:
        if file.name == "001.png" and file in seen:
            raise OSError(5, "Input/output error")
        seen.add(file)
        return read(file)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", changing)
        assert error_message(files) == f"{files[1]} changed while it was read; run the same command again"
    assert entries(cache_dir) == []
    assert torch.equal(load_cached_images(files, SIZE).images, by_hand(files))


def test_cache_folder_that_cannot_be_created_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "below"
    monkeypatch.setenv("DOMAINWISE_CACHE", str(folder))
    message = error_message(write_photos(tmp_path / "a", 1))
    assert message == (
        f"decoded images could not be written to {folder}: Not a directory; set $DOMAINWISE_CACHE to another folder"
    )


def test_insufficient_disk_space_raises_before_decoding(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch, nothing_is_decoded: None
) -> None:
    files = write_photos(tmp_path / "a", 2)
    usage = namedtuple("usage", "total used free")
    needed = 2 * SIZE * SIZE * 3
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, needed - 1))
    message = error_message(files)
    assert message.startswith(f"2 decoded images of {SIZE} x {SIZE} need 0.0 GB, but {cache_dir} has 0.0 GB free; ")
    assert "$DOMAINWISE_CACHE to another folder, or reduce --image-size" in message
    assert entries(cache_dir) == []


def test_exactly_sufficient_disk_space_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_photos(tmp_path / "a", 2)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 2 * SIZE * SIZE * 3))
    assert len(load_cached_images(files, SIZE).images) == 2


def test_clear_cache_removes_every_entry(tmp_path: Path, cache_dir: Path) -> None:
    files = write_photos(tmp_path / "a", 2)
    images = load_cached_images(files, SIZE).images
    load_cached_images(files, 5)
    (cache_dir / f".{'a' * 32}.partial").mkdir()
    count, size = cache_size()
    assert count == 2
    in_json = sum((entry / "entry.json").stat().st_size for entry in entries(cache_dir))
    assert size == 2 * 3 * (SIZE * SIZE + 5 * 5) + in_json
    clear_cache()
    # If a lock file were removed, two processes could hold locks of the same name.
    assert {path.suffix for path in cache_dir.iterdir()} == {".lock"}
    assert cache_size() == (0, 0)
    # Open images stay usable.
    assert torch.equal(images, by_hand(files))


def list_paths(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.suffix != ".lock")


def test_clear_cache_keeps_other_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$DOMAINWISE_CACHE may be a folder with other files, some of them with names like those of entries."""
    folder, elsewhere = tmp_path / "shared", tmp_path / "elsewhere"
    monkeypatch.setenv("DOMAINWISE_CACHE", str(folder))
    files = write_photos(tmp_path / "a", 2)
    elsewhere.mkdir()
    for name in ("entry.json", "images"):
        (elsewhere / name).write_text("years of work")
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work")
    (folder / ("0" * 32)).write_text("a file")
    (folder / ("1" * 32)).symlink_to(elsewhere)
    (folder / f"{'2' * 32}.seen.json").symlink_to(elsewhere / "images")
    (folder / f".{'3' * 32}.partial").symlink_to(elsewhere)
    contents = {
        "project": ["entry.json", "images"],
        "4" * 32: ["entry.json", "images", "notes.txt"],
        "5" * 32: ["entry.json"],
        "6" * 32: ["checkout", "src"],
        "7" * 32: ["entry.json", "images/deeper"],
        f".{'8' * 32}.partial": ["images", "notes.txt"],
        "A" * 32: ["entry.json", "images"],
    }
    for place, names in contents.items():
        for name in names:
            (folder / place / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / place / name).write_text("years of work")
    (folder / ("9" * 32)).mkdir()
    (folder / ("9" * 32) / "entry.json").symlink_to(elsewhere / "entry.json")
    (folder / ("9" * 32) / "images").symlink_to(elsewhere / "images")
    before = list_paths(folder)
    load_cached_images(files, SIZE)
    assert cache_size()[0] == 1
    clear_cache()
    assert list_paths(folder) == before
    assert list_paths(elsewhere) == ["entry.json", "images"]
    assert len(list((tmp_path / "a").iterdir())) == 2


@pytest.mark.parametrize("place", ["/", "home", "other"])
def test_clear_cache_refuses_a_folder_that_is_not_a_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = tmp_path / place
    entry = folder / ("0" * 32)
    if place == "other":
        (folder / "thesis").mkdir(parents=True)
    elif place == "home":
        entry.mkdir(parents=True)
        for name in ("entry.json", "images"):
            (entry / name).touch()
    monkeypatch.setenv("DOMAINWISE_CACHE", str(folder))
    with pytest.raises(DomainwiseError) as error:
        clear_cache()
    assert str(error.value).startswith(f"{folder} is not ")
    assert "$DOMAINWISE_CACHE" in str(error.value)
    assert place != "home" or len(list(entry.iterdir())) == 2


def test_clear_cache_without_a_folder_does_nothing(cache_dir: Path) -> None:
    clear_cache()
    assert cache_size() == (0, 0)
    assert not cache_dir.exists()
