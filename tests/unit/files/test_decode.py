"""One image file to RGB bytes: every kind that can be used, and every kind that cannot."""

import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from image_kinds import BAD, GOOD, clear_palette, content, deep, half_seen, photo, write_images
from PIL import Image
from torchvision import transforms

from domainwise.data.cache import decode_files
from domainwise.data.decoding import decode_image

SIZE = 16


def pixels(made: bytes, size: int = SIZE) -> np.ndarray:
    image = decode_image(made, size)
    assert image.error == ""
    assert image.pixels is not None
    return np.frombuffer(image.pixels, np.uint8).reshape(size, size, 3)


def by_torchvision(image: Image.Image, size: int = SIZE) -> np.ndarray:
    resized = transforms.Resize((size, size))(image)
    return np.asarray(resized)


@pytest.mark.parametrize("size", [1, 16, 64])
@pytest.mark.parametrize(
    "name",
    [
        *("rgb.jpg", "rgb.png", "gray.jpg", "gray.png", "cmyk.jpg", "palette.png", "bits.png"),
        *("photo.webp", "photo.bmp", "photo.tiff", "photo.ppm"),
    ],
)
def test_images_are_squashed_as_torchvision_squashes_the_rgb_image(name: str, size: int) -> None:
    made = GOOD[name]()
    expected = by_torchvision(Image.open(io.BytesIO(made)).convert("RGB"), size)
    np.testing.assert_array_equal(pixels(made, size), expected)


def test_lossless_kinds_hold_the_pixels_that_were_saved() -> None:
    image = photo(width=SIZE, height=SIZE)
    for kind, options in (("PNG", {}), ("BMP", {}), ("TIFF", {}), ("PPM", {}), ("WEBP", {"lossless": True})):
        np.testing.assert_array_equal(pixels(content(image, kind, **options)), np.asarray(image))


def test_gray_images_have_three_equal_channels() -> None:
    found = pixels(GOOD["gray.png"]())
    assert np.ptp(found, axis=2).max() == 0
    assert np.ptp(found) > 100


def test_16_bits_are_scaled_and_not_cut_off() -> None:
    values = deep()
    values[0, :4] = (0, 257, 32896, 65535)
    made = content(Image.fromarray(values), "PNG")
    eight = np.round(values / 257).astype(np.uint8)
    assert list(eight[0, :4]) == [0, 1, 128, 255]
    squashed = by_torchvision(Image.fromarray(eight).convert("RGB"))
    np.testing.assert_array_equal(pixels(made), squashed)
    assert decode_image(made, SIZE).note == "16 bits"


def test_16_bits_in_the_other_byte_order_are_the_same_image() -> None:
    values = deep()
    head = b"P5\n29 19\n65535\n"
    np.testing.assert_array_equal(pixels(head + values.astype(">u2").tobytes()), pixels(GOOD["deep.png"]()))


@pytest.mark.parametrize("name", ["rgba.png", "gray_alpha.png"])
def test_what_is_transparent_is_laid_on_white(name: str) -> None:
    made = GOOD[name]()
    layers = np.asarray(Image.open(io.BytesIO(made)).convert("RGBA")).astype(float)
    alpha = layers[..., 3:] / 255
    blended = layers[..., :3] * alpha + 255 * (1 - alpha)
    expected = by_torchvision(Image.fromarray(blended.round().astype(np.uint8)))
    # PIL blends in whole numbers.
    assert np.abs(pixels(made).astype(int) - expected.astype(int)).max() <= 2
    assert decode_image(made, SIZE).note == "transparent, laid on white"


def test_wholly_transparent_images_are_white_whatever_colour_they_hide() -> None:
    image = half_seen(photo())
    image.putalpha(0)
    assert pixels(content(image, "PNG")).min() == 255


def test_the_transparent_colour_of_a_palette_is_white() -> None:
    indices = np.asarray(clear_palette())
    made = GOOD["clear_palette.png"]()
    expected = np.asarray(Image.open(io.BytesIO(GOOD["palette.png"]())).convert("RGB")).copy()
    assert 0 < (indices == 0).sum() < indices.size
    expected[indices == 0] = 255
    np.testing.assert_array_equal(pixels(made), by_torchvision(Image.fromarray(expected)))
    assert decode_image(made, SIZE).note == "transparent, laid on white"


def test_the_first_frame_of_an_animation_counts() -> None:
    first = Image.open(io.BytesIO(content(photo(1), "GIF"))).convert("RGB")
    np.testing.assert_array_equal(pixels(GOOD["animated.gif"]()), by_torchvision(first))
    assert "animated, its first frame" in decode_image(GOOD["animated.gif"](), SIZE).note


@pytest.mark.parametrize(
    ("name", "note"),
    [
        *(("rgb.jpg", ""), ("gray.png", ""), ("photo.webp", ""), ("photo.tiff", ""), ("photo.bmp", "")),
        *(("cmyk.jpg", "CMYK"), ("palette.png", "palette"), ("bits.png", "black and white")),
    ],
)
def test_a_note_says_what_was_converted(name: str, note: str) -> None:
    assert decode_image(GOOD[name](), SIZE).note == note


def test_rotation_flags_are_not_followed() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    image = photo()
    np.testing.assert_array_equal(pixels(content(image, "JPEG", exif=exif)), pixels(content(image, "JPEG")))


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("empty.jpg", "is empty (0 bytes)"),
        ("cut.jpg", "cannot be decoded (image file is truncated"),
        ("cut.png", "cannot be decoded ("),
        ("text.jpg", "is not an image that can be read"),
        ("noise.jpg", "is not an image that can be read"),
        ("float.tiff", "cannot be decoded (its pixels are floating-point numbers of unknown range)"),
        ("long.tiff", "cannot be decoded (its pixels have more than 16 bits)"),
        ("below_zero.tiff", "cannot be decoded (its pixels have more than 16 bits)"),
    ],
)
def test_what_cannot_be_used_has_a_fault_in_words(name: str, fault: str) -> None:
    image = decode_image(BAD[name](), SIZE)
    assert image.pixels is None
    assert image.error.startswith(fault)
    assert "\n" not in image.error
    assert "0x" not in image.error


def test_bytes_changed_at_random_give_an_image_or_a_fault() -> None:
    whole = content(photo(), "JPEG")
    faults = 0
    for seed in range(60):
        draw = np.random.default_rng(seed)
        damaged = bytearray(whole)
        for place in draw.integers(0, len(whole), 5):
            damaged[place] = draw.integers(256)
        image = decode_image(bytes(damaged), 4)
        assert (image.pixels is None) == bool(image.error)
        assert image.pixels is None or len(image.pixels) == 4 * 4 * 3
        faults += image.pixels is None
    assert 0 < faults < 60


def test_files_are_decoded_in_order_and_faults_stay_in_their_place(tmp_path: Path) -> None:
    kinds = {**GOOD, **BAD}
    shuffled = {name: kinds[name] for name in sorted(kinds, key=lambda name: name[::-1])}
    files = write_images(tmp_path, shuffled)
    told: list[tuple[str, int, int]] = []
    images = list(decode_files(files, SIZE, lambda *words: told.append(words)))
    for file, image in zip(files, images, strict=True):
        assert bool(image.error) == (file.name in BAD)
        if file.name != "odd_exif.jpg":
            assert image == decode_image(file.read_bytes(), SIZE)
    assert told[-1] == ("decoding", len(files), len(files))


def test_more_files_than_a_chunk_are_all_decoded(tmp_path: Path) -> None:
    files = [tmp_path / f"{index}.ppm" for index in range(600)]
    for index, file in enumerate(files):
        file.write_bytes(content(Image.new("RGB", (2, 2), (index % 256, index // 256, 7)), "PPM"))
    found = [image.pixels for image in decode_files(files, 1)]
    assert found == [bytes([index % 256, index // 256, 7]) for index in range(600)]


def test_an_image_that_a_decoder_only_warns_about_is_used(tmp_path: Path) -> None:
    """Warnings are errors here: none may reach the user, and none may cost an image."""
    (file,) = write_images(tmp_path, {"odd_exif.jpg": GOOD["odd_exif.jpg"]})
    (image,) = decode_files([file], SIZE)
    assert image.error == ""
    assert image.pixels == decode_image(content(photo(), "JPEG"), SIZE).pixels


def test_a_folder_and_a_missing_file_are_faults(tmp_path: Path) -> None:
    (tmp_path / "folder.jpg").mkdir()
    images = list(decode_files([tmp_path / "folder.jpg", tmp_path / "missing.jpg"], SIZE))
    assert [image.pixels for image in images] == [None, None]
    assert images[0].error == "cannot be read: Is a directory"
    assert images[1].error == "cannot be read: No such file or directory"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_is_a_fault(tmp_path: Path) -> None:
    (file,) = write_images(tmp_path, {"rgb.png": GOOD["rgb.png"]})
    file.chmod(0)
    (image,) = decode_files([file], SIZE)
    assert image.error == "cannot be read: Permission denied"


def test_an_error_of_the_disk_is_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_images(tmp_path, {"a.png": GOOD["rgb.png"], "b.png": GOOD["gray.png"]})
    read = Path.read_bytes

    def refuse(file: Path) -> bytes:
        if file.name == "a.png":
            raise PermissionError(13, "Permission denied", str(file))
        return read(file)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    one, other = decode_files(files, SIZE)
    assert one.error == "cannot be read: Permission denied"
    assert other.error == ""


def test_bytes_become_a_tensor_of_rows(tmp_path: Path) -> None:
    image = photo(width=SIZE, height=SIZE)
    made = decode_image(content(image, "PNG"), SIZE).pixels
    assert made is not None
    rows = torch.frombuffer(bytearray(made), dtype=torch.uint8).view(SIZE, SIZE, 3)
    assert rows[3, 5].tolist() == list(image.getpixel((5, 3)))
