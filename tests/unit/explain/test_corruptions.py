"""Corrupted images depend on seed, corruption, severity and index only; severity counts; errors."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor

from domainwise.errors import DomainwiseError
from domainwise.explain.corruptions import CORRUPTIONS, SEVERITIES, corrupt_images, count_workers

# One that draws from numpy's global state, one that takes a seed, one that draws nothing.
CHEAP = ("gaussian_noise", "impulse_noise", "contrast")


def make_images(count: int, channels: int = 3, size: int = 32) -> Tensor:
    """Smooth images away from black and white, so that no corruption is clipped away."""
    generator = torch.Generator().manual_seed(0)
    coarse = 60 + 130 * torch.rand(count, channels, 4, 4, generator=generator)
    return torch.nn.functional.interpolate(coarse, size=size, mode="bilinear").to(torch.uint8)


def measure_distance(one: Tensor, other: Tensor) -> float:
    return float((one.float() - other.float()).pow(2).mean().sqrt())


@pytest.fixture(scope="module")
def images() -> Tensor:
    return make_images(6)


def test_the_names_are_those_of_the_package() -> None:
    import imagecorruptions

    assert list(CORRUPTIONS) == imagecorruptions.get_corruption_names("common")


@pytest.mark.parametrize("corruption", [*CHEAP, "motion_blur", "frost"])
def test_a_corrupted_image_depends_on_its_index_and_not_on_its_batch(images: Tensor, corruption: str) -> None:
    everything = corrupt_images(images, corruption, 3)
    assert everything.shape == images.shape
    assert everything.dtype == torch.uint8
    order = [4, 1, 5]
    assert torch.equal(corrupt_images(images[order], corruption, 3, indices=order), everything[order])
    np.random.seed(1)
    assert torch.equal(corrupt_images(images, corruption, 3), everything)


@pytest.mark.parametrize("corruption", ["gaussian_noise", "impulse_noise"])
def test_seed_index_and_severity_change_the_noise(images: Tensor, corruption: str) -> None:
    same = images[:1].expand(2, -1, -1, -1)
    noisy = corrupt_images(same, corruption, 2)
    assert not torch.equal(noisy[0], noisy[1])
    assert not torch.equal(noisy, corrupt_images(same, corruption, 2, seed=1))
    assert not torch.equal(noisy, corrupt_images(same, corruption, 3))


@pytest.mark.parametrize("corruption", CHEAP)
def test_the_random_state_of_the_caller_does_not_change(images: Tensor, corruption: str) -> None:
    def draw() -> list[float]:
        return [*np.random.normal(size=3), *torch.rand(3).tolist()]

    np.random.seed(0)
    torch.manual_seed(0)
    # An odd number: numpy keeps the second half of a pair of normal draws.
    np.random.normal()
    expected = draw()
    np.random.seed(0)
    torch.manual_seed(0)
    np.random.normal()
    corrupt_images(images, corruption, 1)
    assert draw() == expected


def test_the_random_state_survives_an_error(images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    import imagecorruptions

    def fail(*_: object) -> None:
        raise OSError("disk")

    monkeypatch.setattr(imagecorruptions, "corrupt", fail)
    before = np.random.get_state()
    with pytest.raises(OSError, match="disk"):
        corrupt_images(images, "snow", 1)
    after = np.random.get_state()
    assert np.array_equal(before[1], after[1])
    assert before[2:] == after[2:]


def test_threads_do_not_disturb_each_other(images: Tensor) -> None:
    expected = corrupt_images(images, "gaussian_noise", 1)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: corrupt_images(images, "gaussian_noise", 1), range(12)))
    assert all(torch.equal(result, expected) for result in results)


@pytest.mark.parametrize(
    "corruption",
    ["gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "motion_blur", "brightness", "contrast"],
)
def test_a_higher_severity_is_farther_from_the_clean_image(images: Tensor, corruption: str) -> None:
    distances = [measure_distance(images, corrupt_images(images, corruption, severity)) for severity in SEVERITIES]
    assert distances[0] > 1
    assert distances == sorted(distances)
    assert distances[-1] > 1.2 * distances[0]


def test_one_channel_is_corrupted_as_gray() -> None:
    gray = make_images(3, channels=1)
    colored = corrupt_images(gray.expand(-1, 3, -1, -1), "gaussian_noise", 3)
    corrupted = corrupt_images(gray, "gaussian_noise", 3)
    assert corrupted.shape == gray.shape
    assert torch.equal(corrupted, colored[:, :1])


@pytest.mark.parametrize(
    ("images", "corruption", "severity", "message"),
    [
        (make_images(1, size=28), "fog", 1, r"at least 32 x 32 pixels, got 28 x 28"),
        (make_images(1, channels=2), "fog", 1, "1 or 3 channels, got 2"),
        (make_images(1).float(), "fog", 1, r"must be uint8 \(n, C, H, W\), got torch.float32"),
        (make_images(1)[0], "fog", 1, r"got torch.uint8 \(3, 32, 32\)"),
        (make_images(1), "foggy", 1, "did you mean 'fog'"),
        (make_images(1), "fog", 0, "from 1 to 5, got 0"),
        (make_images(1), "fog", 6, "from 1 to 5, got 6"),
    ],
)
def test_errors(images: Tensor, corruption: str, severity: int, message: str) -> None:
    with pytest.raises(DomainwiseError, match=message):
        corrupt_images(images, corruption, severity)


def test_one_index_per_image(images: Tensor) -> None:
    with pytest.raises(DomainwiseError, match="got 2 for 6 images"):
        corrupt_images(images, "fog", 1, indices=[0, 1])


def test_a_missing_package_names_the_extra(images: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imagecorruptions", None)
    with pytest.raises(DomainwiseError, match=r"pip install 'imagecorruptions-imaug>="):
        corrupt_images(images, "fog", 1)


def test_few_pixels_start_no_processes() -> None:
    assert count_workers(100 * 64 * 64) == 1
    assert count_workers(10**12) >= 1


def test_workers_need_no_torch() -> None:
    program = "import sys, domainwise.explain.corruptions; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


@pytest.mark.slow
def test_all_corruptions_in_one_process_and_in_two() -> None:
    images = make_images(5, size=40)
    for corruption in CORRUPTIONS:
        for severity in SEVERITIES:
            corrupted = corrupt_images(images, corruption, severity)
            assert measure_distance(corrupted, images) > 0.5, (corruption, severity)
            assert torch.equal(corrupt_images(images, corruption, severity), corrupted), (corruption, severity)
            in_two = corrupt_images(images, corruption, severity, workers=2)
            assert torch.equal(in_two, corrupted), (corruption, severity)
