"""MNIST's idx files, gzipped or not, damaged or missing, and the assignment of images to domains."""

import gzip
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from domainwise.data.mnist import colored_mnist, load_digits, rotated_mnist, shuffle_into_domains
from domainwise.errors import DomainwiseError

Bytes = NDArray[np.uint8]
REAL_DATA = Path(os.environ.get("DOMAINWISE_DATA") or Path(__file__).resolve().parents[4] / "shared" / "data")
needs_mnist = pytest.mark.skipif(
    not (REAL_DATA / "MNIST" / "raw").is_dir(), reason=f"MNIST not found at {REAL_DATA}; set DOMAINWISE_DATA"
)
TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"
NAMES = (TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS)


def random_digits(count: int, seed: int = 0) -> tuple[Bytes, Bytes]:
    """Noise images, all different and without black pixels, with random labels."""
    rng = np.random.default_rng(seed)
    return rng.integers(1, 256, (count, 28, 28), np.uint8), rng.integers(0, 10, count, np.uint8)


def as_idx(values: Bytes) -> bytes:
    header = bytes([0, 0, 8, values.ndim]) + b"".join(size.to_bytes(4, "big") for size in values.shape)
    return header + values.tobytes()


def write_digits(data_dir: Path, images: Bytes, labels: Bytes, gzipped: tuple[str, ...] = ()) -> Path:
    """MNIST's four files, those in `gzipped` compressed; the last fifth of the images is the test set."""
    folder = data_dir / "MNIST" / "raw"
    folder.mkdir(parents=True)
    cut = len(images) * 4 // 5
    for name, values in zip(NAMES, (images[:cut], labels[:cut], images[cut:], labels[cut:]), strict=True):
        if name in gzipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(as_idx(values), 1))
        else:
            (folder / name).write_bytes(as_idx(values))
    return data_dir


@pytest.mark.parametrize("gzipped", [NAMES, (), (TRAIN_IMAGES, TEST_LABELS)], ids=["gzipped", "plain", "mixed"])
def test_reads_training_images_then_test_images(tmp_path: Path, gzipped: tuple[str, ...]) -> None:
    images, labels = random_digits(55)
    read_images, read_labels = load_digits(write_digits(tmp_path, images, labels, gzipped))
    assert read_images.dtype == torch.uint8
    assert read_labels.dtype == torch.int64
    assert read_images.shape == (55, 28, 28)
    assert np.array_equal(read_images.numpy(), images)
    assert np.array_equal(read_labels.numpy(), labels)


def test_data_dir_overrides_the_environment_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    default, explicit = random_digits(20, seed=1), random_digits(20, seed=2)
    monkeypatch.setenv("DOMAINWISE_DATA", str(write_digits(tmp_path / "default", *default)))
    assert np.array_equal(load_digits()[0].numpy(), default[0])
    assert np.array_equal(load_digits(str(write_digits(tmp_path / "explicit", *explicit)))[0].numpy(), explicit[0])


@needs_mnist
def test_real_mnist_is_complete() -> None:
    images, labels = load_digits(REAL_DATA)
    assert images.shape == (70_000, 28, 28)
    assert labels.bincount().tolist() == [6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958]
    assert labels[:5].tolist() == [5, 0, 4, 1, 9]
    assert labels[60_000:60_005].tolist() == [7, 2, 1, 0, 4]
    # The mean that the field normalizes the training images by.
    assert images[:60_000].float().mean().item() / 255 == pytest.approx(0.1307, abs=5e-5)


@pytest.mark.parametrize("build", [colored_mnist, rotated_mnist])
def test_missing_folder_raises(tmp_path: Path, build: Callable[..., object]) -> None:
    with pytest.raises(DomainwiseError) as caught:
        build(0, data_dir=tmp_path)
    message = str(caught.value)
    assert str(tmp_path / "MNIST" / "raw") in message
    assert f"`domainwise data prepare {build.__name__}`" in message
    assert "--data-dir" in message
    assert "$DOMAINWISE_DATA" in message
    assert "\n" not in message


@pytest.mark.parametrize("build", [colored_mnist, rotated_mnist])
@pytest.mark.parametrize("name", NAMES)
def test_missing_file_raises(tmp_path: Path, name: str, build: Callable[..., object]) -> None:
    (write_digits(tmp_path, *random_digits(20)) / "MNIST" / "raw" / name).unlink()
    with pytest.raises(DomainwiseError) as caught:
        build(0, data_dir=tmp_path)
    message = str(caught.value)
    assert name in message
    assert str(tmp_path / "MNIST" / "raw") in message
    assert f"`domainwise data prepare {build.__name__}`" in message
    assert "--data-dir" in message
    assert "$DOMAINWISE_DATA" in message
    assert "\n" not in message


def with_first_value(value: int) -> Callable[[bytes], bytes]:
    return lambda content: content[:8] + bytes([value]) + content[9:]


GZIP_DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "cut off": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "not gzip": lambda content: b"<html>not found</html>",
    "bits flipped": lambda content: content[:40] + bytes(255 - byte for byte in content[40:60]) + content[60:],
    "no such compression": lambda content: content[:10] + b"\xff" + content[11:],
    "wrong checksum": lambda content: content[:-8] + bytes(4) + content[-4:],
}
DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "labels for images": (
        TRAIN_IMAGES,
        lambda content: bytes([0, 0, 8, 1]) + content[4:],
        "magic number 2049, expected 2051",
    ),
    "images for labels": (
        TEST_LABELS,
        lambda content: bytes([0, 0, 8, 3]) + content[4:],
        "magic number 2051, expected 2049",
    ),
    "images cut off": (TEST_IMAGES, lambda content: content[:-1], "3151 bytes, expected 3152"),
    "labels cut off": (TRAIN_LABELS, lambda content: content[:-3], "21 bytes, expected 24"),
    "images too long": (TRAIN_IMAGES, lambda content: content + b"\0", "12561 bytes, expected 12560"),
    "header cut off": (TEST_IMAGES, lambda content: content[:15], "truncated after 15 bytes"),
    "empty": (TRAIN_LABELS, lambda content: b"", "truncated after 0 bytes"),
    "eleventh digit": (TEST_LABELS, with_first_value(10), "label 10, expected 0 to 9"),
    "other size": (
        TRAIN_IMAGES,
        lambda _: as_idx(np.zeros((16, 28, 14), np.uint8)),
        "images of 28 x 14 pixels, expected 28 x 28",
    ),
    "fewer labels": (TEST_LABELS, lambda _: as_idx(np.zeros(3, np.uint8)), "3 labels for 4 images"),
    "more labels": (TRAIN_LABELS, lambda _: as_idx(np.zeros(17, np.uint8)), "17 labels for 16 images"),
}


@pytest.mark.parametrize("damage", GZIP_DAMAGE.values(), ids=GZIP_DAMAGE.keys())
@pytest.mark.parametrize("name", [TRAIN_IMAGES, TEST_LABELS])
def test_damaged_gzip_file_raises(tmp_path: Path, name: str, damage: Callable[[bytes], bytes]) -> None:
    # Enough images for either file to have bytes to flip.
    path = write_digits(tmp_path, *random_digits(400), gzipped=NAMES) / "MNIST" / "raw" / f"{name}.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DomainwiseError, match=re.escape(f"{path} is damaged (")) as caught:
        load_digits(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "damage", "why"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damaged_file_raises_with_the_reason(
    tmp_path: Path, name: str, damage: Callable[[bytes], bytes], why: str
) -> None:
    path = write_digits(tmp_path, *random_digits(20)) / "MNIST" / "raw" / name
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DomainwiseError) as caught:
        load_digits(tmp_path, dataset="rotated_mnist")
    message = str(caught.value)
    assert message.startswith(f"{path} is damaged (")
    assert why in message
    assert "`domainwise data prepare rotated_mnist`" in message


def test_small_file_of_many_bytes_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_digits(tmp_path, *random_digits(20), gzipped=NAMES) / "MNIST" / "raw" / f"{TRAIN_IMAGES}.gz"
    path.write_bytes(gzip.compress(bytes([0, 0, 8, 3]) + bytes(10**6)))
    monkeypatch.setattr("domainwise.data.mnist._MAX_BYTES", 10**5)
    with pytest.raises(DomainwiseError, match=r"is damaged \(100000 bytes, expected 16\)"):
        load_digits(tmp_path)


@pytest.mark.parametrize("build", [colored_mnist, rotated_mnist])
@pytest.mark.parametrize("count", [0, 2])
def test_too_few_images_raise(tmp_path: Path, build: Callable[..., object], count: int) -> None:
    write_digits(tmp_path, *random_digits(count))
    with pytest.raises(DomainwiseError, match="is empty"):
        build(0, data_dir=tmp_path)


def test_every_image_is_in_one_domain_of_equal_size() -> None:
    parts = shuffle_into_domains(100, 3, seed=5)
    assert [len(part) for part in parts] == [34, 33, 33]
    assert torch.cat(parts).sort().values.tolist() == list(range(100))


def test_shuffled_images_go_to_domains_in_turn() -> None:
    shuffled = np.random.default_rng(5).permutation(100)
    assert not np.array_equal(shuffled, np.arange(100))
    for index, part in enumerate(shuffle_into_domains(100, 3, seed=5)):
        assert part.tolist() == [shuffled[place] for place in range(100) if place % 3 == index]


def test_assignment_depends_on_the_seed() -> None:
    first, again, other = (torch.cat(shuffle_into_domains(100, 3, seed)) for seed in (5, 5, 6))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("build", [colored_mnist, rotated_mnist])
def test_negative_seed_raises(tmp_path: Path, build: Callable[..., object]) -> None:
    write_digits(tmp_path, *random_digits(20))
    with pytest.raises(DomainwiseError, match="seed must be at least 0, got -1"):
        build(-1, data_dir=tmp_path)
