"""Decoding of image files of all supported kinds, and of broken ones."""

import io
import os
import re
import socket
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from image_kinds import BAD, GOOD, clear_palette, content, deep, half_seen, photo, write_images
from PIL import Image
from torchvision import transforms

import domainwise
from domainwise.data.cache import decode_files
from domainwise.data.decoding import (
    MAX_BYTES,
    MAX_PIXELS,
    CenterCrop,
    UnreadableFile,
    decode_image,
    read_image_file,
)

SIZE = 16


def pixels(data: bytes, size: int = SIZE) -> np.ndarray:
    image = decode_image(data, size)
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
def test_images_are_resized_as_by_torchvision(name: str, size: int) -> None:
    data = GOOD[name]()
    expected = by_torchvision(Image.open(io.BytesIO(data)).convert("RGB"), size)
    np.testing.assert_array_equal(pixels(data, size), expected)


@pytest.mark.parametrize(("width", "height"), [(9, 200), (31, 95), (200, 9), (95, 31), (1, 40)])
def test_columns_are_resized_before_rows(width: int, height: int) -> None:
    # Pillow 13 resizes the rows of tall images first; the bytes must not depend on its version.
    image = photo(width=width, height=height)
    columns = image.resize((SIZE, height), Image.Resampling.BILINEAR)
    expected = np.asarray(columns.resize((SIZE, SIZE), Image.Resampling.BILINEAR))
    resized = pixels(content(image, "PNG"))
    np.testing.assert_array_equal(resized, expected)
    assert np.abs(resized.astype(int) - by_torchvision(image)).max() <= 1


@pytest.mark.parametrize(("width", "height"), [(90, 40), (40, 90), (25, 25), (77, 31), (9, 200)])
@pytest.mark.parametrize(("resize", "interpolation"), [(18, "bilinear"), (19, "bicubic"), (16, "bicubic")])
def test_images_are_cropped_as_by_torchvision(width: int, height: int, resize: int, interpolation: str) -> None:
    image = photo(width=width, height=height)
    decoded = decode_image(content(image, "PNG"), SIZE, CenterCrop(resize, interpolation))
    assert decoded.pixels is not None
    cropped = np.frombuffer(decoded.pixels, np.uint8).reshape(SIZE, SIZE, 3)
    resized = transforms.Resize(resize, transforms.InterpolationMode(interpolation))(image)
    # Pillow 13 may resize rows first, as above.
    assert np.abs(cropped.astype(int) - np.asarray(transforms.CenterCrop(SIZE)(resized))).max() <= 1


def test_crop_of_a_squashed_image() -> None:
    image = photo(width=90, height=40)
    decoded = decode_image(content(image, "PNG"), SIZE, CenterCrop(20, keeps_aspect=False))
    assert decoded.pixels is not None
    expected = transforms.CenterCrop(SIZE)(transforms.Resize((20, 20))(image))
    np.testing.assert_array_equal(np.frombuffer(decoded.pixels, np.uint8).reshape(SIZE, SIZE, 3), np.asarray(expected))


def test_lossless_formats_keep_their_pixels() -> None:
    image = photo(width=SIZE, height=SIZE)
    for kind, options in (("PNG", {}), ("BMP", {}), ("TIFF", {}), ("PPM", {}), ("WEBP", {"lossless": True})):
        np.testing.assert_array_equal(pixels(content(image, kind, **options)), np.asarray(image))


def test_gray_images_have_three_equal_channels() -> None:
    image = pixels(GOOD["gray.png"]())
    assert np.ptp(image, axis=2).max() == 0
    assert np.ptp(image) > 100


def test_16_bit_images_are_scaled_and_not_clipped() -> None:
    values = deep()
    values[0, :4] = (0, 257, 32896, 65535)
    data = content(Image.fromarray(values), "PNG")
    eight = np.round(values / 257).astype(np.uint8)
    assert list(eight[0, :4]) == [0, 1, 128, 255]
    resized = by_torchvision(Image.fromarray(eight).convert("RGB"))
    np.testing.assert_array_equal(pixels(data), resized)
    assert decode_image(data, SIZE).note == "16-bit"


def test_16_bit_byte_order_does_not_matter() -> None:
    values = deep()
    head = b"P5\n29 19\n65535\n"
    np.testing.assert_array_equal(pixels(head + values.astype(">u2").tobytes()), pixels(GOOD["deep.png"]()))


@pytest.mark.parametrize("name", ["rgba.png", "gray_alpha.png"])
def test_transparent_images_are_placed_on_white(name: str) -> None:
    data = GOOD[name]()
    layers = np.asarray(Image.open(io.BytesIO(data)).convert("RGBA")).astype(float)
    alpha = layers[..., 3:] / 255
    blended = layers[..., :3] * alpha + 255 * (1 - alpha)
    expected = by_torchvision(Image.fromarray(blended.round().astype(np.uint8)))
    # Pillow blends in integers.
    assert np.abs(pixels(data).astype(int) - expected.astype(int)).max() <= 2
    assert decode_image(data, SIZE).note == "transparent, placed on white"


def test_fully_transparent_images_are_white() -> None:
    image = half_seen(photo())
    image.putalpha(0)
    assert pixels(content(image, "PNG")).min() == 255


def test_transparent_palette_colour_is_white() -> None:
    indices = np.asarray(clear_palette())
    data = GOOD["clear_palette.png"]()
    expected = np.asarray(Image.open(io.BytesIO(GOOD["palette.png"]())).convert("RGB")).copy()
    assert 0 < (indices == 0).sum() < indices.size
    expected[indices == 0] = 255
    np.testing.assert_array_equal(pixels(data), by_torchvision(Image.fromarray(expected)))
    assert decode_image(data, SIZE).note == "transparent, placed on white"


def test_first_frame_of_an_animation_is_used() -> None:
    first = Image.open(io.BytesIO(content(photo(1), "GIF"))).convert("RGB")
    np.testing.assert_array_equal(pixels(GOOD["animated.gif"]()), by_torchvision(first))
    assert "animated, first frame used" in decode_image(GOOD["animated.gif"](), SIZE).note


@pytest.mark.parametrize(
    ("name", "note"),
    [
        *(("rgb.jpg", ""), ("gray.png", ""), ("photo.webp", ""), ("photo.tiff", ""), ("photo.bmp", "")),
        *(("cmyk.jpg", "CMYK"), ("palette.png", "palette"), ("bits.png", "black and white")),
    ],
)
def test_note_names_the_conversion(name: str, note: str) -> None:
    assert decode_image(GOOD[name](), SIZE).note == note


# From the stored pixels to those that are shown.
ORIENTATIONS = {
    1: lambda rows: rows,
    2: lambda rows: rows[:, ::-1],
    3: lambda rows: rows[::-1, ::-1],
    4: lambda rows: rows[::-1],
    5: lambda rows: rows.swapaxes(0, 1),
    6: lambda rows: np.rot90(rows, -1),
    7: lambda rows: rows[::-1, ::-1].swapaxes(0, 1),
    8: np.rot90,
}


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", ORIENTATIONS)
def test_exif_orientation_is_applied(orientation: int, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"lossless": True} if kind == "WEBP" else {}
    stored = np.asarray(Image.open(io.BytesIO(content(photo(), kind, **options))))
    shown = content(Image.fromarray(np.ascontiguousarray(ORIENTATIONS[orientation](stored))), "PNG")
    rotated = content(photo(), kind, exif=exif, **options)
    np.testing.assert_array_equal(pixels(rotated), pixels(shown))
    assert decode_image(rotated, SIZE, CenterCrop(20)) == decode_image(shown, SIZE, CenterCrop(20))


@pytest.mark.parametrize("orientation", [0, 9])
def test_unknown_exif_orientation_is_ignored(orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    np.testing.assert_array_equal(pixels(content(photo(), "JPEG", exif=exif)), pixels(content(photo(), "JPEG")))


def test_damaged_exif_does_not_break_an_image() -> None:
    damaged = content(photo(), "JPEG", exif=b"Exif\0\0no such thing")
    np.testing.assert_array_equal(pixels(damaged), pixels(content(photo(), "JPEG")))
    # Orientation 6, and a text where a number must be, which Pillow reads but cannot write.
    entries = struct.pack(">HHIHH", 0x0112, 3, 1, 6, 0) + struct.pack(">HHI4s", 0x011C, 2, 4, b"odd\0")
    odd = content(photo(), "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x02" + entries + bytes(4))
    exif = Image.Exif()
    exif[0x0112] = 6
    np.testing.assert_array_equal(pixels(odd), pixels(content(photo(), "JPEG", exif=exif)))


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("empty.jpg", "is empty (0 bytes)"),
        ("cut.jpg", "could not be decoded (image file is truncated"),
        ("cut.png", "could not be decoded ("),
        ("text.jpg", "is not an image"),
        ("noise.jpg", "is not an image"),
        ("float.tiff", "could not be decoded (floating-point pixels of unknown range)"),
        ("long.tiff", "could not be decoded (pixels of more than 16 bits)"),
        ("below_zero.tiff", "could not be decoded (pixels of more than 16 bits)"),
    ],
)
def test_broken_files_have_an_error(name: str, error: str) -> None:
    image = decode_image(BAD[name](), SIZE)
    assert image.pixels is None
    assert image.error.startswith(error)
    assert "\n" not in image.error
    assert "0x" not in image.error


def test_random_damage_gives_an_image_or_an_error() -> None:
    intact = content(photo(), "JPEG")
    errors = 0
    for seed in range(60):
        draw = np.random.default_rng(seed)
        damaged = bytearray(intact)
        for place in draw.integers(0, len(intact), 5):
            damaged[place] = draw.integers(256)
        image = decode_image(bytes(damaged), 4)
        assert (image.pixels is None) == bool(image.error)
        assert image.pixels is None or len(image.pixels) == 4 * 4 * 3
        errors += image.pixels is None
    assert 0 < errors < 60


def test_files_are_decoded_in_order_with_errors_in_place(tmp_path: Path) -> None:
    kinds = {**GOOD, **BAD}
    shuffled = {name: kinds[name] for name in sorted(kinds, key=lambda name: name[::-1])}
    files = write_images(tmp_path, shuffled)
    reports: list[tuple[str, int, int]] = []
    images = list(decode_files(files, SIZE, lambda *report: reports.append(report)))
    for file, image in zip(files, images, strict=True):
        assert bool(image.error) == (file.name in BAD)
        if file.name != "odd_exif.jpg":
            assert image == decode_image(file.read_bytes(), SIZE)
    assert reports[-1] == ("decoding", len(files), len(files))


def test_more_files_than_one_chunk_are_decoded(tmp_path: Path) -> None:
    files = [tmp_path / f"{index}.ppm" for index in range(600)]
    for index, file in enumerate(files):
        file.write_bytes(content(Image.new("RGB", (2, 2), (index % 256, index // 256, 7)), "PPM"))
    decoded = [image.pixels for image in decode_files(files, 1)]
    assert decoded == [bytes([index % 256, index // 256, 7]) for index in range(600)]


def test_image_with_a_decoder_warning_is_used(tmp_path: Path) -> None:
    """Warnings are errors in tests: none may reach the user or break an image."""
    (file,) = write_images(tmp_path, {"odd_exif.jpg": GOOD["odd_exif.jpg"]})
    (image,) = decode_files([file], SIZE)
    assert image.error == ""
    assert image.pixels == decode_image(content(photo(), "JPEG"), SIZE).pixels


def test_folder_and_missing_file_are_errors(tmp_path: Path) -> None:
    (tmp_path / "folder.jpg").mkdir()
    images = list(decode_files([tmp_path / "folder.jpg", tmp_path / "missing.jpg"], SIZE))
    assert [image.pixels for image in images] == [None, None]
    assert images[0].error == "is a folder, not a file"
    assert images[1].error == "could not be read: No such file or directory"


def test_read_error_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = write_images(tmp_path, {"a.png": GOOD["rgb.png"], "b.png": GOOD["gray.png"]})
    read = Path.read_bytes

    def refuse(file: Path) -> bytes:
        if file.name == "a.png":
            raise PermissionError(13, "Permission denied", str(file))
        return read(file)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    one, other = decode_files(files, SIZE)
    assert one.error == "could not be read: Permission denied"
    assert other.error == ""


def test_pixels_are_rows_of_rgb(tmp_path: Path) -> None:
    image = photo(width=SIZE, height=SIZE)
    data = decode_image(content(image, "PNG"), SIZE).pixels
    assert data is not None
    rows = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(SIZE, SIZE, 3)
    assert rows[3, 5].tolist() == list(image.getpixel((5, 3)))


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n%%EOF\n"


def test_postscript_starts_no_other_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*words: object, **options: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr("subprocess.Popen", refuse)
    assert Image.open(io.BytesIO(POSTSCRIPT)).format == "EPS"
    assert decode_image(POSTSCRIPT, SIZE).error == "is not an image"


def test_images_are_opened_in_one_place() -> None:
    root = Path(domainwise.__file__).parent
    opened = [
        str(file.relative_to(root))
        for file in sorted(root.rglob("*.py"))
        for _ in re.findall(r"\bImage\.open\(", file.read_text())
    ]
    assert opened == ["data/decoding.py"]


def test_image_of_too_many_pixels_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    side = int(MAX_PIXELS**0.5) + 1
    head = f"P6\n{side} {side}\n255\n".encode()
    assert f"({side**2} pixels) exceeds limit of {MAX_PIXELS} pixels" in decode_image(head, SIZE).error
    # Programs switch Pillow's limit off.
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    reason = f"{side} x {side} pixels; the limit is {MAX_PIXELS:,} pixels"
    assert decode_image(head, SIZE).error == f"could not be decoded ({reason})"


def test_too_large_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "large.png"
    with open(file, "wb") as sparse:
        sparse.truncate(MAX_BYTES + 1)
    with pytest.raises(
        UnreadableFile, match=rf"^is too large \({MAX_BYTES + 1:,} bytes; the limit is {MAX_BYTES:,}\)$"
    ):
        read_image_file(file)


def make_fifo(file: Path) -> None:
    os.mkfifo(file)


def make_socket(file: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(file))


def make_loop(file: Path) -> None:
    file.symlink_to(file.name)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (make_fifo, "is a FIFO, not a file"),
        (make_socket, "is a socket, not a file"),
        (lambda file: file.symlink_to("/dev/zero"), "is a device, not a file"),
        (lambda file: file.symlink_to("/proc/kmsg"), "is empty (0 bytes)"),
        (Path.mkdir, "is a folder, not a file"),
        (make_loop, "could not be read: Too many levels of symbolic links"),
        (lambda file: None, "could not be read: No such file or directory"),
    ],
)
def test_what_is_not_a_file_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: object, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    make(Path("1.png"))  # type: ignore[operator]
    assert [image.error for image in decode_files([Path("1.png")], SIZE)] == [reason]


@pytest.mark.parametrize("name", ["a\0b.png", "\ud800.png", "x" * 5000])
def test_name_that_no_file_can_have_is_reported(name: str) -> None:
    (image,) = decode_files([Path(name)], SIZE)
    assert image.error.startswith("could not be read: ")
