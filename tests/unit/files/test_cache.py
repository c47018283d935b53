"""DecodedImage images on disk: found again, never mistaken, and refused in one line where they cannot be kept."""

import os
import shutil
import sys
from collections import namedtuple
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from image_kinds import BAD, GOOD, content, photo, write_images, write_photos
from torch import Tensor

from domainwise.data import Domain, cache
from domainwise.data.cache import cache_size, clear_cache, load_cached_images
from domainwise.data.decoding import DecodedImage, decode_image
from domainwise.errors import DomainwiseError

SIZE = 12


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOMAINWISE_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept"


@pytest.fixture
def nothing_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(made: bytes, size: int) -> DecodedImage:
        raise AssertionError("decoded again")

    monkeypatch.setattr(cache, "decode_image", refuse)


def entries(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/entry.json"))


def by_hand(files: Sequence[Path], size: int = SIZE) -> Tensor:
    made = [decode_image(file.read_bytes(), size).pixels for file in files]
    rows = [np.frombuffer(pixels, np.uint8).reshape(size, size, 3) for pixels in made if pixels is not None]
    return torch.from_numpy(np.stack(rows)).permute(0, 3, 1, 2)


def refused(files: Sequence[Path]) -> str:
    with pytest.raises(DomainwiseError) as error:
        load_cached_images(files, SIZE)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_images_are_those_that_decoding_gives_in_order(tmp_path: Path) -> None:
    files = write_photos(tmp_path / "a", 7)[::-1]
    found = load_cached_images(files, SIZE)
    assert found.images.shape == (7, 3, SIZE, SIZE)
    assert found.images.dtype == torch.uint8
    assert torch.equal(found.images, by_hand(files))
    assert (found.kept, found.faults, found.notes) == (list(range(7)), {}, {})


def test_broken_images_are_left_out_and_named(tmp_path: Path) -> None:
    made = [BAD["empty.jpg"], GOOD["rgb.jpg"], BAD["cut.jpg"], GOOD["palette.png"], BAD["text.jpg"], GOOD["rgb.png"]]
    kinds = {f"{index}.jpg": make for index, make in enumerate(made)}
    files = [*write_images(tmp_path / "a", kinds), tmp_path / "a" / "missing.jpg"]
    for _ in range(2):
        found = load_cached_images(files, SIZE)
        assert found.kept == [1, 3, 5]
        assert list(found.faults) == [0, 2, 4, 6]
        assert found.faults[0] == "is empty (0 bytes)"
        assert found.faults[6] == "cannot be read: No such file or directory"
        assert found.notes == {3: "palette"}
        assert torch.equal(found.images, by_hand([files[1], files[3], files[5]]))


def test_images_that_are_all_broken_are_none(tmp_path: Path) -> None:
    files = write_images(tmp_path / "a", BAD)
    found = load_cached_images(files, SIZE)
    assert found.images.shape == (0, 3, SIZE, SIZE)
    assert found.kept == []
    assert len(found.faults) == len(BAD)


def test_a_second_call_decodes_nothing(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    files = write_images(tmp_path / "a", {**GOOD, **BAD})
    first = load_cached_images(files, SIZE)
    request.getfixturevalue("nothing_is_decoded")
    told: list[object] = []
    second = load_cached_images(files, SIZE, lambda *words: told.append(words))
    assert torch.equal(first.images, second.images)
    assert (first.kept, first.faults, first.notes) == (second.kept, second.faults, second.notes)
    assert told == []


def test_what_is_there_can_be_read_where_nothing_may_be_written(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a folder that several people share and one of them fills."""
    files = write_photos(tmp_path / "a", 2)
    load_cached_images(files, SIZE)
    opened = os.open

    def refuse(path: Path, flags: int, *rest: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR) and kept in Path(path).parents:
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags, *rest)

    monkeypatch.setattr(os, "open", refuse)
    assert torch.equal(load_cached_images(files, SIZE).images, by_hand(files))
    assert "cannot be kept" in refused(files[:1])


@pytest.mark.skipif(os.name == "nt" or sys.platform == "darwin", reason="names are text there")
def test_a_name_in_no_known_encoding_is_no_obstacle(tmp_path: Path) -> None:
    (file,) = write_photos(tmp_path / "a", 1)
    odd = file.rename(file.with_name(os.fsdecode(b"caf\xe9.png")))
    for _ in range(2):
        assert torch.equal(load_cached_images([odd], SIZE).images, by_hand([odd]))


def test_what_is_done_is_reported(tmp_path: Path) -> None:
    told: list[object] = []
    load_cached_images(write_photos(tmp_path / "a", 3), SIZE, lambda *words: told.append(words))
    assert told == [("reading", 3, 3), ("decoding", 3, 3)]


def test_a_copy_of_the_images_elsewhere_shares_the_entry(
    tmp_path: Path, kept: Path, request: pytest.FixtureRequest
) -> None:
    first = load_cached_images(write_photos(tmp_path / "a", 3), SIZE)
    request.getfixturevalue("nothing_is_decoded")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    second = load_cached_images(sorted((tmp_path / "b").iterdir()), SIZE)
    assert torch.equal(first.images, second.images)
    assert len(entries(kept)) == 1


def test_the_same_relative_paths_in_another_place_are_other_files(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, seed in (("here", 1), ("there", 2)):
        write_images(tmp_path / place / "a", {"1.ppm": lambda seed=seed: content(photo(seed), "PPM")})
        monkeypatch.chdir(tmp_path / place)
        found = load_cached_images([Path("a/1.ppm")], SIZE)
        assert torch.equal(found.images, by_hand([tmp_path / place / "a" / "1.ppm"]))
    assert len(entries(kept)) == 2
    assert len(list(kept.glob("*.seen.json"))) == 2


def test_touched_files_are_the_same_entry(tmp_path: Path, kept: Path, request: pytest.FixtureRequest) -> None:
    files = write_photos(tmp_path / "a", 2)
    first = load_cached_images(files, SIZE)
    request.getfixturevalue("nothing_is_decoded")
    for file in files:
        os.utime(file, ns=(5, 5))
    assert torch.equal(load_cached_images(files, SIZE).images, first.images)
    assert len(entries(kept)) == 1


def test_a_changed_file_makes_another_entry(tmp_path: Path, kept: Path) -> None:
    files = write_photos(tmp_path / "a", 3)
    first = load_cached_images(files, SIZE).images.clone()
    files[1].write_bytes(content(photo(77), "PNG"))
    os.utime(files[1], ns=(5, 5))
    second = load_cached_images(files, SIZE).images
    assert torch.equal(second, by_hand(files))
    assert [bool((first[index] == second[index]).all()) for index in range(3)] == [True, False, True]
    assert len(entries(kept)) == 2


def test_another_order_makes_another_entry(tmp_path: Path, kept: Path) -> None:
    files = write_photos(tmp_path / "a", 3)
    forth, back = load_cached_images(files, SIZE), load_cached_images(files[::-1], SIZE)
    assert torch.equal(back.images, forth.images.flip(0))
    assert len(entries(kept)) == 2


def test_another_size_makes_another_entry(tmp_path: Path, kept: Path) -> None:
    files = write_photos(tmp_path / "a", 2)
    load_cached_images(files, SIZE)
    assert torch.equal(load_cached_images(files, 5).images, by_hand(files, 5))
    assert len(entries(kept)) == 2


def test_another_rule_makes_another_entry(tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_photos(tmp_path / "a", 2)
    load_cached_images(files, SIZE)
    monkeypatch.setattr(cache, "DECODING_RULE", "another")
    monkeypatch.setattr(cache, "decode_image", lambda made, size: DecodedImage(bytes([9]) * size * size * 3))
    assert load_cached_images(files, SIZE).images.unique().tolist() == [9]
    assert len(entries(kept)) == 2


def test_images_are_mapped_into_memory_as_rows_of_pixels(tmp_path: Path, kept: Path) -> None:
    files = write_photos(tmp_path / "a", 3)
    images = load_cached_images(files, SIZE).images
    assert images.stride() == (SIZE * SIZE * 3, 1, SIZE * 3, 3)
    assert images.is_contiguous(memory_format=torch.channels_last)
    # A dataset's domain takes them as they are.
    assert Domain("a", images, torch.zeros(3, dtype=torch.int64)).images.data_ptr() == images.data_ptr()
    (entry,) = entries(kept)
    # What is written into the file is seen through the tensor: it is no copy.
    with open(entry / "images", "r+b") as file:
        file.write(bytes([200, 100, 50]))
    assert images[0, :, 0, 0].tolist() == [200, 100, 50]
    assert str(entry / "images") in Path("/proc/self/maps").read_text() or not Path("/proc/self/maps").exists()


def test_writing_into_the_images_does_not_change_the_file(tmp_path: Path, kept: Path) -> None:
    files = write_photos(tmp_path / "a", 2)
    images = load_cached_images(files, SIZE).images
    before = (entries(kept)[0] / "images").read_bytes()
    images.zero_()
    assert (entries(kept)[0] / "images").read_bytes() == before
    assert torch.equal(load_cached_images(files, SIZE).images, by_hand(files))


@pytest.mark.parametrize(
    "damaged",
    [
        *(b"", b"{", b"[]", b"5", b"\xff\xfe", b'{"faults": {}}', b'{"faults": [], "notes": {}}'),
        *(b'{"faults": {"x": ""}, "notes": {}}', b'{"faults": {"0": "is odd"}, "notes": {}}'),
    ],
)
def test_a_damaged_entry_is_refused_in_one_line(tmp_path: Path, kept: Path, damaged: bytes) -> None:
    files = write_photos(tmp_path / "a", 2)
    load_cached_images(files, SIZE)
    (entry,) = entries(kept)
    (entry / "entry.json").write_bytes(damaged)
    said = refused(files)
    assert said.startswith(f"the decoded images in {entry} are damaged (")
    assert said.endswith("run `domainwise data clear-cache`")
    clear_cache()
    assert torch.equal(load_cached_images(files, SIZE).images, by_hand(files))


@pytest.mark.parametrize("change", ["short", "empty", "long", "missing", "no entry.json"])
def test_images_of_the_wrong_length_are_refused_in_one_line(tmp_path: Path, kept: Path, change: str) -> None:
    files = write_photos(tmp_path / "a", 2)
    load_cached_images(files, SIZE)
    (entry,) = entries(kept)
    whole = (entry / "images").read_bytes()
    if change == "missing":
        (entry / "images").unlink()
    elif change == "no entry.json":
        (entry / "entry.json").unlink()
    else:
        (entry / "images").write_bytes({"short": whole[:-1], "empty": b"", "long": whole + b"x"}[change])
    assert refused(files).startswith(f"the decoded images in {entry} are damaged (")


def test_what_a_killed_process_left_is_replaced(tmp_path: Path, kept: Path) -> None:
    files = write_photos(tmp_path / "a", 2)
    load_cached_images(files, SIZE)
    (entry,) = entries(kept)
    partial = entry.rename(entry.with_name(f".{entry.name}.partial"))
    (partial / "images").write_bytes(b"half of it")
    (partial / "other").touch()
    assert torch.equal(load_cached_images(files, SIZE).images, by_hand(files))
    assert entries(kept) == [entry]
    assert not partial.exists()
    assert sorted(path.name for path in entry.iterdir()) == ["entry.json", "images"]


def test_a_build_that_fails_leaves_no_entry_and_the_next_succeeds(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_photos(tmp_path / "a", 2)
    with monkeypatch.context() as patched:

        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        patched.setattr(os, "fsync", lambda descriptor: None)
        load_cached_images(files[:1], SIZE)
        patched.setattr(os, "fsync", full)
        assert "No space left on device; choose another folder with $DOMAINWISE_CACHE" in refused(files)
    assert len(entries(kept)) == 1
    assert torch.equal(load_cached_images(files, SIZE).images, by_hand(files))


def test_a_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch
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
        assert refused(files) == f"{files[1]} changed while it was read; run the same command again"
    assert entries(kept) == []
    assert torch.equal(load_cached_images(files, SIZE).images, by_hand(files))


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / "below"
    monkeypatch.setenv("DOMAINWISE_CACHE", str(folder))
    said = refused(write_photos(tmp_path / "a", 1))
    assert said == (
        f"decoded images cannot be kept in {folder}: Not a directory; choose another folder with $DOMAINWISE_CACHE"
    )


def test_too_little_space_is_said_before_any_image_is_decoded(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch, nothing_is_decoded: None
) -> None:
    files = write_photos(tmp_path / "a", 2)
    usage = namedtuple("usage", "total used free")
    needed = 2 * SIZE * SIZE * 3
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, needed - 1))
    said = refused(files)
    assert said.startswith(f"2 decoded images of {SIZE} x {SIZE} need 0.0 GB in {kept}, which has 0.0; ")
    assert "$DOMAINWISE_CACHE, or a smaller --image-size" in said
    assert entries(kept) == []


def test_just_enough_space_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_photos(tmp_path / "a", 2)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9, 2 * SIZE * SIZE * 3))
    assert len(load_cached_images(files, SIZE).images) == 2


def test_clearing_removes_every_entry(tmp_path: Path, kept: Path) -> None:
    files = write_photos(tmp_path / "a", 2)
    images = load_cached_images(files, SIZE).images
    load_cached_images(files, 5)
    (kept / f".{'a' * 32}.partial").mkdir()
    count, size = cache_size()
    assert count == 2
    in_json = sum((entry / "entry.json").stat().st_size for entry in entries(kept))
    assert size == 2 * 3 * (SIZE * SIZE + 5 * 5) + in_json
    clear_cache()
    # Were a lock removed, two processes could hold two of one name.
    assert {path.suffix for path in kept.iterdir()} == {".lock"}
    assert cache_size() == (0, 0)
    # Who has the images open keeps them.
    assert torch.equal(images, by_hand(files))


def test_clearing_leaves_other_files_in_the_folder_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder may be one that the user keeps other things in: $DOMAINWISE_CACHE may name a home folder."""
    monkeypatch.setenv("DOMAINWISE_CACHE", str(tmp_path))
    files = write_photos(tmp_path / "a", 2)
    (tmp_path / "thesis.tex").write_text("years of work")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "entry.json").write_text("{}")
    load_cached_images(files, SIZE)
    assert cache_size()[0] == 1
    clear_cache()
    left = sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".lock")
    assert left == ["a", "project", "thesis.tex"]
    assert len(list((tmp_path / "a").iterdir())) == 2


def test_clearing_what_was_never_made_is_nothing(kept: Path) -> None:
    clear_cache()
    assert cache_size() == (0, 0)
    assert not kept.exists()
