"""Strong augmentation: each operation compared with torchvision's, drawn per image, reproducible."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torchvision.transforms import InterpolationMode, TrivialAugmentWide
from torchvision.transforms.autoaugment import _apply_op

from domainwise.data import strong_augmentation
from domainwise.data.augmentation import crop_images, draw_windows
from domainwise.data.strong_augmentation import OPERATIONS, apply_operations, augment_strongly

SPACE = TrivialAugmentWide()._augmentation_space(31)
# In 255ths. torchvision rounds down after each operation, and before it the gray or smooth image to blend with.
TOLERANCES = {"Color": 2, "Contrast": 2, "Sharpness": 2, "Brightness": 1.001, "AutoContrast": 1}
EXACT = ("Identity", "Posterize", "Solarize", "Equalize")


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(*shape: int, seed: int = 0) -> Tensor:
    """Smooth images of bytes that leave out the darkest and brightest values."""
    coarse = torch.rand(*shape[:2], 4, 3, generator=seeded(seed))
    smooth = F.interpolate(coarse, size=shape[2:], mode="bilinear", align_corners=False)
    return (20 + 200 * smooth).round().to(torch.uint8)


def test_operations_are_those_of_torchvision_in_its_order() -> None:
    assert [name.replace("_", "") for name in OPERATIONS] == [name.lower() for name in SPACE]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", SPACE)
def test_operations_equal_torchvision(name: str, channels: int) -> None:
    noise = torch.randint(256, (1, channels, 41, 33), generator=seeded(0), dtype=torch.uint8)
    plain = torch.full_like(noise, 77)
    two_tone = torch.where(noise > 128, 90, 12).to(torch.uint8)
    x = torch.cat([images(1, channels, 41, 33), noise, plain, two_tone])
    magnitudes, is_signed = SPACE[name]
    operation = torch.full((len(x),), list(SPACE).index(name))
    for level in range(-30, 31):
        # torchvision has 15.999999 pixels at the middle level, and then truncates.
        magnitude = round(float(magnitudes[abs(level)]) if magnitudes.ndim else 0.0, 5)
        magnitude *= -1 if is_signed and level < 0 else 1
        expected = _apply_op(x, name, magnitude, InterpolationMode.BILINEAR, None).float()
        views = 255 * apply_operations(x / 255, operation, torch.full((len(x),), level))
        tolerance = 1e-3 if name in EXACT else TOLERANCES.get(name, 0.501)
        torch.testing.assert_close(views, expected, rtol=0, atol=tolerance, msg=lambda text, at=level: f"{at}: {text}")


@pytest.mark.parametrize("channels", [2, 4])
def test_without_three_channels_only_saturation_stays_the_same(channels: int) -> None:
    x = (images(1, channels, 40, 30) / 255).expand(len(OPERATIONS), -1, -1, -1)
    views = apply_operations(x.clone(), torch.arange(len(OPERATIONS)), torch.full((len(OPERATIONS),), 15))
    same = {name for name, view in zip(OPERATIONS, views, strict=True) if torch.equal(view, x[0])}
    assert same == {"identity", "color"}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_shape_dtype_and_range(channels: int, dtype: torch.dtype) -> None:
    x = torch.randint(2, (150, channels, 7, 5), generator=seeded(0))  # black and white, where a step too far would show
    x = (255 * x).to(dtype) if dtype == torch.uint8 else x.to(dtype).requires_grad_()
    original = x.detach().clone()
    view = augment_strongly(x, seeded(1))
    assert view.shape == x.shape
    assert view.dtype == (torch.float32 if dtype == torch.uint8 else dtype)
    assert view.min() >= 0
    assert view.max() <= 1
    assert view.is_contiguous(memory_format=torch.channels_last)
    assert not view.requires_grad
    assert torch.equal(x, original)


def test_bytes_and_floats_give_the_same_views() -> None:
    x = images(150, 3, 24, 20)
    difference = (augment_strongly(x, seeded(1)) - augment_strongly(x / 255, seeded(1))).abs()
    # A crop of bytes is rounded to bytes, which may be the other side of a threshold.
    assert difference.quantile(0.98) < 2 / 255
    # An image of one pixel has one crop.
    x = images(150, 3, 1, 1)
    torch.testing.assert_close(augment_strongly(x, seeded(1)), augment_strongly(x / 255, seeded(1)))


def test_views_are_crops_with_one_operation() -> None:
    x = images(60, 3, 24, 20)
    generator = seeded(1)
    crops = crop_images(x, *draw_windows(x, generator))
    operation = torch.randint(len(OPERATIONS), (60,), generator=generator)
    views = augment_strongly(x, seeded(1))
    is_same = [torch.equal(view, crop) for view, crop in zip(views, crops, strict=True)]
    assert 0 < sum(is_same) < 30
    assert all(is_same[index] for index in (operation == 0).nonzero().flatten())


def test_operations_levels_and_signs_are_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[tuple[Tensor, Tensor]] = []

    def record_call(x: Tensor, operation: Tensor, level: Tensor) -> Tensor:
        drawn.append((operation, level))
        return x

    monkeypatch.setattr(strong_augmentation, "apply_operations", record_call)
    augment_strongly(torch.zeros(28_000, 1, 1, 1), seeded(0))
    [(operation, level)] = drawn
    for values, count in ((operation, 14), (level.abs(), 31), (14 * level.abs() + operation, 434)):
        expected = 28_000 / count
        counts = values.bincount(minlength=count)
        assert (counts - expected).abs().max() < 5 * expected**0.5
    for place in (operation[level > 0], operation[level < 0]):
        assert abs(len(place) - 14_000 * 30 / 31) < 500
        assert set(place.tolist()) == set(range(14))


def test_an_image_does_not_depend_on_the_others() -> None:
    x = images(56, 3, 15, 18) / 255
    operation = torch.arange(56) % len(OPERATIONS)
    level = torch.randint(-30, 31, (56,), generator=seeded(0))
    views = apply_operations(x.clone(), operation, level)
    order = torch.randperm(56, generator=seeded(1))[:40]
    torch.testing.assert_close(apply_operations(x[order], operation[order], level[order]), views[order])


def test_views_depend_only_on_the_generator() -> None:
    x = images(40, 3, 8, 8)
    before = torch.get_rng_state()
    view = augment_strongly(x, seeded(1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(augment_strongly(x, seeded(1)), view)
    generator = seeded(1)
    assert torch.equal(augment_strongly(x, generator), view)
    assert not torch.equal(augment_strongly(x, generator), view)


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (2, 2), (40, 3)])
def test_images_of_any_size(shape: tuple[int, int]) -> None:
    view = augment_strongly(images(150, 3, *shape), seeded(1))
    assert view.shape == (150, 3, *shape)
    assert view.isfinite().all()


def test_empty_batch() -> None:
    assert augment_strongly(torch.empty(0, 3, 8, 8), seeded(1)).shape == (0, 3, 8, 8)


def test_other_inputs_raise() -> None:
    with pytest.raises(ValueError, match=r"expects images \(b, C, H, W\), not inputs of shape"):
        augment_strongly(torch.rand(3, 8, 8))
