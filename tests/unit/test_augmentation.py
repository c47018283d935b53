"""Random views: every image its own, reproducible, and each change against another library's or by hand."""

import colorsys
import math

import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as TF

from domainwise.data.augmentation import _blended, _cropped, _gray, _hue_turned, augmented


def images(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_views_have_the_shape_dtype_and_range_of_images(channels: int, dtype: torch.dtype) -> None:
    x = images(64, channels, 7, 5, dtype=dtype).round()  # black and white, where a step too far would show
    kept = x.clone()
    view = augmented(x, seeded(1))
    assert view.shape == x.shape
    assert view.dtype == dtype
    assert view.min() >= 0
    assert view.max() <= 1
    assert torch.equal(x, kept)


def test_views_come_from_the_seed_and_from_nothing_else() -> None:
    x = images(4, 3, 8, 8)
    before = torch.get_rng_state()
    view = augmented(x, seeded(1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(augmented(x, seeded(1)), view)
    assert not torch.equal(augmented(x, seeded(2)), view)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_every_image_is_changed_in_its_own_way(channels: int) -> None:
    views = augmented(images(1, channels, 8, 8).expand(6, -1, -1, -1), seeded(1))
    for i in range(6):
        for j in range(i):
            assert not torch.allclose(views[i], views[j], atol=1e-3), (i, j)


def test_about_a_tenth_becomes_gray() -> None:
    views = augmented(images(2000, 3, 2, 2), seeded(1))
    is_gray = (views.amax(1) - views.amin(1)).amax((1, 2)) < 1e-6
    assert 160 < is_gray.sum() < 240


@pytest.mark.parametrize("shape", [(3, 8, 8), (8, 8), (2, 3, 4, 8, 8), (5, 48)])
def test_other_inputs_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"for images \(b, C, H, W\), not for inputs of shape"):
        augmented(torch.rand(shape))


@pytest.mark.parametrize("draw", [0.0, 0.2, 0.5, 1.0])
def test_brightness_contrast_and_saturation_are_torchvisions(draw: float) -> None:
    x = images(1, 3, 6, 5)
    factor = 0.7 + 0.6 * draw
    at = torch.tensor(draw).reshape(1, 1, 1, 1)
    brighter, contrasted = _blended(x, torch.zeros_like(x), at), _blended(x, _gray(x).mean((1, 2, 3), keepdim=True), at)
    # torchvision weighs red by .2989, not .299.
    close = {"rtol": 0, "atol": 5e-5}
    torch.testing.assert_close(brighter, TF.adjust_brightness(x, factor))
    torch.testing.assert_close(contrasted, TF.adjust_contrast(x, factor), **close)
    torch.testing.assert_close(_blended(x, _gray(x), at), TF.adjust_saturation(x, factor), **close)
    torch.testing.assert_close(_gray(x), TF.rgb_to_grayscale(x, 3), rtol=0, atol=2e-4)


@pytest.mark.parametrize("turn", [-0.3, -0.1, 0.0, 0.17, 0.3])
def test_hue_turns_as_in_colorsys(turn: float) -> None:
    special = torch.tensor([[0, 0, 0], [1, 1, 1], [0.4, 0.4, 0.4], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0.5, 0.5, 0.2]])
    pixels = torch.cat([special.double(), images(200, 3, dtype=torch.float64)])
    turned = _hue_turned(pixels.T.reshape(1, 3, -1, 1), torch.full((1, 1, 1, 1), turn, dtype=torch.float64))
    expected = []
    for pixel in pixels.tolist():
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
        expected.append(colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value))
    torch.testing.assert_close(turned[0, :, :, 0].T, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def test_plain_colours_go_through_all_changes_in_order() -> None:
    """A crop changes nothing in an image of one colour, so the colour can be followed alone."""
    colours = images(40, 3, dtype=torch.float64)
    views = augmented(colours[:, :, None, None].expand(-1, -1, 3, 3), seeded(1))
    draws = torch.rand(10, 40, 1, 1, 1, generator=seeded(1)).flatten(1).T.tolist()
    for colour, view, (*_, bright, contrast, saturation, hue, gray) in zip(colours.tolist(), views, draws, strict=True):
        rgb = colour
        for draw, is_darkening in ((bright, True), (contrast, False), (saturation, False)):
            factor = 0.7 + 0.6 * draw
            # The mean gray of an image of one colour is that colour's own gray.
            other = 0 if is_darkening else 0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2]
            rgb = [min(max(factor * part + (1 - factor) * other, 0), 1) for part in rgb]
        turned, strength, value = colorsys.rgb_to_hsv(*rgb)
        rgb = colorsys.hsv_to_rgb((turned + 0.3 * (2 * hue - 1)) % 1, strength, value)
        if gray < 0.1:
            rgb = [0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2]] * 3
        expected = torch.tensor(rgb, dtype=torch.float64)[:, None, None].expand(3, 3, 3)
        torch.testing.assert_close(view, expected, rtol=0, atol=1e-9)


def test_crop_of_a_ramp_is_the_ramp_over_the_window() -> None:
    height, width, count = 6, 9, 30

    def ramp(row: float, column: float) -> float:
        """At a place in [0, 1]^2; beyond the centres of the outer pixels the border goes on."""
        row = min(max(row, 0.5 / height), 1 - 0.5 / height)
        column = min(max(column, 0.5 / width), 1 - 0.5 / width)
        return 0.1 + 0.3 * row + 0.5 * column

    image = [[ramp((i + 0.5) / height, (j + 0.5) / width) for j in range(width)] for i in range(height)]
    x = torch.tensor(image, dtype=torch.float64).expand(count, 1, -1, -1)
    draws = images(5, count, 1, 1, 1, seed=4, dtype=torch.float64)
    for view, (area, ratio, across, down, flip) in zip(_cropped(x, draws), draws.flatten(1).T.tolist(), strict=True):
        area, ratio = 0.7 + 0.3 * area, 0.75 * (16 / 9) ** ratio
        wide, high = min(math.sqrt(area * ratio), 1), min(math.sqrt(area / ratio), 1)
        left, top = across * (1 - wide), down * (1 - high)
        for i in range(height):
            for j in range(width):
                shown = width - 1 - j if flip < 0.5 else j
                expected = ramp(top + high * (i + 0.5) / height, left + wide * (shown + 0.5) / width)
                assert view[0, i, j].item() == pytest.approx(expected, abs=1e-12)
