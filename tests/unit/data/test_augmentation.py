"""Augmentation: independent per image, reproducible, and each change compared with torchvision or colorsys."""

import colorsys
import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torchvision
from torch import Tensor
from torchvision.transforms.v2 import functional as TF

from domainwise.data.augmentation import (
    _choose_windows,
    _crop,
    _crop_bytes,
    _jitter_colours,
    _shift_hue,
    augment_batch,
    compute_gray,
)

ORDERS = list(itertools.permutations(range(4)))
# torchvision weighs red by .2989, the standard and ours by .299.
LUMINANCE = 3e-4


def images(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_shape_dtype_and_range(channels: int, dtype: torch.dtype) -> None:
    x = images(70, channels, 7, 5, dtype=dtype).round()  # black and white, where a step too far would show
    original = x.clone()
    view = augment_batch(x, seeded(1))
    assert view.shape == x.shape
    assert view.dtype == dtype
    assert view.min() >= 0
    assert view.max() <= 1
    assert view.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(x, original)
    assert view.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


@pytest.mark.parametrize("channels", [1, 3])
def test_bytes_and_floats_give_the_same_views(channels: int) -> None:
    x = (images(40, channels, 7, 5) * 255).to(torch.uint8)
    original = x.clone()
    view = augment_batch(x, seeded(1))
    assert view.dtype == torch.float32
    assert view.is_contiguous(memory_format=torch.channels_last)
    # A crop of bytes is rounded to bytes, and colour changes enlarge that by at most 1.3 each.
    torch.testing.assert_close(view, augment_batch(x.float() / 255, seeded(1)), rtol=0, atol=1.3**3 / 255)
    assert torch.equal(x, original)


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_crops_of_bytes_and_floats_differ_only_by_rounding(channels: int, memory_format: torch.memory_format) -> None:
    x = (images(40, channels, 31, 26) * 255).to(torch.uint8).contiguous(memory_format=memory_format)
    windows, is_mirrored = _choose_windows(images(23, 40, dtype=torch.float64), 31, 26)
    assert 0 < is_mirrored.sum() < 40
    crops = _crop_bytes(x, windows, is_mirrored)
    assert crops.dtype == torch.float32
    torch.testing.assert_close(crops, _crop(x, windows, is_mirrored), rtol=0, atol=1.001 / 255)


def test_empty_batch() -> None:
    assert augment_batch(torch.empty(0, 3, 8, 8), seeded(1)).shape == (0, 3, 8, 8)


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (2, 2), (40, 3)])
def test_images_of_any_size(shape: tuple[int, int]) -> None:
    view = augment_batch(images(40, 3, *shape), seeded(1))
    assert view.shape == (40, 3, *shape)
    assert view.isfinite().all()


def test_views_depend_only_on_the_generator() -> None:
    x = images(20, 3, 8, 8)
    before = torch.get_rng_state()
    view = augment_batch(x, seeded(1))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(augment_batch(x, seeded(1)), view)
    assert not torch.equal(augment_batch(x, seeded(2)), view)
    generator = seeded(1)
    assert not torch.equal(augment_batch(x, generator), augment_batch(x, generator))


def test_default_is_the_global_generator() -> None:
    x = images(3, 3, 8, 8)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        first = augment_batch(x)
        second = augment_batch(x)
    assert torch.equal(first, augment_batch(x, seeded(1)))
    assert not torch.equal(first, second)


@pytest.mark.usefixtures("_threads")
def test_views_do_not_depend_on_threads_or_memory_format() -> None:
    x = images(33, 3, 31, 29)
    torch.set_num_threads(1)
    alone = augment_batch(x, seeded(1))
    channels_last = augment_batch(x.contiguous(memory_format=torch.channels_last), seeded(1))
    torch.set_num_threads(3)
    together = augment_batch(x, seeded(1))
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)
    torch.testing.assert_close(channels_last, alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_images_are_augmented_independently(channels: int) -> None:
    views = augment_batch(images(1, channels, 8, 8).expand(40, -1, -1, -1), seeded(1))
    for i in range(40):
        for j in range(i):
            assert not torch.allclose(views[i], views[j], atol=1e-3), (i, j)


@pytest.mark.parametrize("shape", [(3, 8, 8), (8, 8), (2, 3, 4, 8, 8), (5, 48)])
def test_other_inputs_raise(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expects images \(b, C, H, W\), not inputs of shape"):
        augment_batch(torch.rand(shape))


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("size", [(12, 12), (9, 14), (33, 20)])
def test_crops_equal_torchvisions(size: tuple[int, int], antialias: bool) -> None:
    height, width = size
    windows = [
        (0, 0, height, width),
        (0, 0, height - 2, width - 3),
        (2, 3, height - 2, width - 3),
        (0, 3, height - 1, width - 3),
        (1, 1, height - 3, width - 2),
        (height - 1, width - 1, 1, 1),
        (0, width - 1, height, 1),
        (1, 0, 2, width),
    ]
    x = images(len(windows), 3, height, width)
    for is_mirrored in (False, True):
        mirror = torch.full((len(windows),), is_mirrored)
        views = _crop(x, torch.tensor(windows, dtype=torch.float64).T, mirror)
        for image, view, window in zip(x, views, windows, strict=True):
            expected = TF.resized_crop(image, *window, [height, width], antialias=antialias)
            if is_mirrored:
                expected = TF.horizontal_flip(expected)
            torch.testing.assert_close(view, expected, rtol=0, atol=1e-5)


def test_only_chosen_images_are_mirrored() -> None:
    x = images(4, 1, 6, 7)
    full_window = torch.tensor([0.0, 0.0, 6.0, 7.0], dtype=torch.float64)[:, None].expand(4, 4)
    views = _crop(x, full_window, torch.tensor([True, False, False, True]))
    for index, is_mirrored in enumerate((True, False, False, True)):
        torch.testing.assert_close(views[index], x[index].flip(2) if is_mirrored else x[index], rtol=0, atol=1e-5)


@pytest.mark.parametrize("order", ORDERS)
def test_colour_changes_in_any_order_equal_torchvisions(order: tuple[int, ...]) -> None:
    x = images(6, 3, 5, 4, seed=sum(order) + 7)
    draw = images(5, 6, 1, 1, 1, seed=3)
    draw[:4, 0], draw[:4, 1] = 0.0, 1.0  # the ends, where values leave [0, 1] and are cut
    draw[4] = 1.0  # never gray
    adjust = (TF.adjust_brightness, TF.adjust_contrast, TF.adjust_saturation, TF.adjust_hue)
    views = _jitter_colours(x.clone(), draw, list(order))
    for image, view, own in zip(x, views, draw.flatten(1).T.tolist(), strict=True):
        expected = image
        for change in order:
            moved = 0.3 * (2 * own[change] - 1)
            expected = adjust[change](expected, moved if change == 3 else 1 + moved)
        torch.testing.assert_close(view, expected, rtol=0, atol=LUMINANCE)


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_images_without_three_channels_keep_their_hue_and_saturation(channels: int) -> None:
    x = images(3, channels, 5, 4)
    draw = images(5, 3, 1, 1, 1, seed=3)
    draw[4] = 0.0  # gray, if they were coloured
    brightness, contrast = (0.7 + 0.6 * draw[0]).double(), (0.7 + 0.6 * draw[1]).double()
    brighter = (x.double() * brightness).clamp(0, 1)
    mean = brighter.mean((1, 2, 3), keepdim=True)
    expected = (contrast * brighter + (1 - contrast) * mean).clamp(0, 1)
    view = _jitter_colours(x.clone(), draw, [3, 0, 2, 1])
    torch.testing.assert_close(view.double(), expected, rtol=0, atol=1e-6)


def test_gray_equals_torchvisions() -> None:
    x = images(4, 3, 5, 4)
    torch.testing.assert_close(compute_gray(x), TF.rgb_to_grayscale(x, 1), rtol=0, atol=LUMINANCE)
    pure = torch.eye(3).reshape(3, 3, 1, 1)
    assert compute_gray(pure).flatten().tolist() == pytest.approx([0.299, 0.587, 0.114])


def test_grayscale_comes_last_and_only_for_chosen_images() -> None:
    x = images(3, 3, 5, 4)
    still = torch.full((5, 3, 1, 1, 1), 0.5)  # factors of 1, no turn
    still[4] = torch.tensor([0.05, 0.2, 0.09]).reshape(3, 1, 1, 1)
    view = _jitter_colours(x.clone(), still, [0, 1, 2, 3])
    for index in (0, 2):
        torch.testing.assert_close(view[index], TF.rgb_to_grayscale(x[index], 3), rtol=0, atol=LUMINANCE)
        assert (view[index].amax(0) == view[index].amin(0)).all()
    torch.testing.assert_close(view[1], x[1], rtol=0, atol=1e-6)


@pytest.mark.parametrize("turn", [-0.3, -0.1, 0.0, 0.17, 0.3])
def test_hue_shift_equals_colorsys(turn: float) -> None:
    special = torch.tensor([[0, 0, 0], [1, 1, 1], [0.4, 0.4, 0.4], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0.5, 0.5, 0.2]])
    ties = torch.tensor([[0.5, 0.2, 0.5], [0.2, 0.5, 0.5], [1, 1, 0], [0, 1, 1], [1, 0, 1]])
    pixels = torch.cat([special.double(), ties.double(), images(200, 3, dtype=torch.float64)])
    x = pixels.T.reshape(1, 3, -1, 1).clone()
    _shift_hue(x, torch.full((1, 1, 1), turn, dtype=torch.float64))
    expected = []
    for pixel in pixels.tolist():
        hue, saturation, value = colorsys.rgb_to_hsv(*pixel)
        expected.append(colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value))
    torch.testing.assert_close(x[0, :, :, 0].T, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("size", [(32, 32), (20, 35), (30, 24)])
def test_windows_have_torchvisions_distribution(size: tuple[int, int]) -> None:
    height, width = size
    count = 4000
    windows, is_mirrored = _choose_windows(
        torch.rand(23, count, generator=seeded(0), dtype=torch.float64), height, width
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        image = torch.empty(1, height, width)
        draw = torchvision.transforms.RandomResizedCrop.get_params
        theirs = np.array([draw(image, [0.7, 1.0], [3 / 4, 4 / 3]) for _ in range(count)], dtype=float)
    for name, own, other in zip(("top", "left", "height", "width"), windows.numpy(), theirs.T, strict=True):
        error = math.sqrt((own.var() + other.var()) / count)
        assert abs(own.mean() - other.mean()) <= 4.5 * error, name
        # The fraction below any integer: two samples of one distribution differ this much once in 100,000.
        places = np.union1d(own, other)
        shares = np.abs((own[:, None] <= places).mean(0) - (other[:, None] <= places).mean(0))
        assert shares.max() <= 2.5 * math.sqrt(2 / count), name
    # Place and size belong together: no window leaves the image, and areas are those asked for.
    top, left, tall, wide = windows.numpy()
    assert (top >= 0).all()
    assert (left >= 0).all()
    assert (top + tall <= height).all()
    assert (left + wide <= width).all()
    assert np.corrcoef(top, left)[0, 1] == pytest.approx(np.corrcoef(theirs[:, 0], theirs[:, 1])[0, 1], abs=0.08)
    assert np.corrcoef(tall, wide)[0, 1] == pytest.approx(np.corrcoef(theirs[:, 2], theirs[:, 3])[0, 1], abs=0.08)
    assert is_mirrored.double().mean().item() == pytest.approx(0.5, abs=4.5 * 0.5 / math.sqrt(count))
    assert abs(np.corrcoef(is_mirrored.numpy(), left)[0, 1]) <= 0.08 or left.var() == 0


@pytest.mark.parametrize("size", [(4, 40), (40, 4), (6, 100), (31, 3), (1, 7)])
def test_fallback_window_equals_torchvisions(size: tuple[int, int]) -> None:
    height, width = size
    windows, _ = _choose_windows(torch.rand(23, 50, generator=seeded(0), dtype=torch.float64), height, width)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        image = torch.empty(1, height, width)
        theirs = {
            torchvision.transforms.RandomResizedCrop.get_params(image, [0.7, 1.0], [3 / 4, 4 / 3]) for _ in range(50)
        }
    assert len(theirs) == 1
    assert set(map(tuple, windows.T.int().tolist())) == theirs


def test_half_of_the_images_are_mirrored_and_a_tenth_gray() -> None:
    count = 2000
    # Bright on the right, in one colour; a crop keeps that, a mirror turns it.
    ramp = torch.linspace(0.2, 0.5, 8)[None, :] * torch.tensor([1.0, 0.5, 0.4])[:, None]
    views = augment_batch(ramp[None, :, None, :].expand(count, -1, 4, -1), seeded(1))
    is_mirrored = views[:, :, :, 0].mean((1, 2)) > views[:, :, :, -1].mean((1, 2))
    is_gray = (views.amax(1) - views.amin(1)).amax((1, 2)) < 1e-6
    assert is_mirrored.float().mean().item() == pytest.approx(0.5, abs=4.5 * 0.5 / math.sqrt(count))
    assert is_gray.float().mean().item() == pytest.approx(0.1, abs=4.5 * 0.3 / math.sqrt(count))
    both = (is_mirrored & is_gray).float().mean().item()
    assert both == pytest.approx(0.05, abs=4.5 * 0.22 / math.sqrt(count))


def test_brightness_is_uniform_and_independent_per_image() -> None:
    """In a uniform gray image no other change is visible, so its brightness is the factor."""
    count = 3000
    views = augment_batch(torch.full((count, 3, 2, 2), 0.5, dtype=torch.float64), seeded(1))
    factors = views[:, 0, 0, 0] * 2
    torch.testing.assert_close(views, (factors / 2)[:, None, None, None].expand_as(views), rtol=0, atol=1e-9)
    assert 0.7 <= factors.min() < 0.701
    assert 1.299 < factors.max() <= 1.3
    _assert_uniform((factors - 0.7) / 0.6)
    neighbours = np.corrcoef(factors[:-1].numpy(), factors[1:].numpy())[0, 1]
    assert abs(neighbours) < 4.5 / math.sqrt(count)


def test_hue_is_uniform_and_independent_per_image() -> None:
    """In a uniform image, contrast and saturation move towards its own gray and keep the hue."""
    count = 3000
    colour = torch.tensor([0.5, 0.35, 0.35], dtype=torch.float64)
    views = augment_batch(colour[None, :, None, None].expand(count, -1, 2, 2), seeded(1))
    observed = np.array([colorsys.rgb_to_hsv(*view[:, 0, 0].tolist()) for view in views])
    hue = (observed[observed[:, 1] > 1e-9, 0] + 0.5) % 1 - 0.5
    assert -0.3 <= hue.min() < -0.298
    assert 0.298 < hue.max() <= 0.3
    _assert_uniform(torch.from_numpy((hue + 0.3) / 0.6))
    assert abs(np.corrcoef(hue[:-1], hue[1:])[0, 1]) < 4.5 / math.sqrt(len(hue))


def test_contrast_is_uniform_and_independent_of_brightness() -> None:
    count = 3000
    x = torch.full((count, 3, 8, 8), 0.4, dtype=torch.float64)
    x[:, :, 4:] = 0.6
    views = augment_batch(x, seeded(1))[:, 0]
    low, high, mean = views[:, 0, 0], views[:, -1, 0], views.mean((1, 2))
    # Where between both grays the mean lies depends on the crop alone; that tells what it was before the changes.
    before = 0.4 + 0.2 * (mean - low) / (high - low)
    brightness = mean / before
    contrast = (high - low) / (0.2 * brightness)
    for factor in (brightness, contrast):
        assert factor.min() >= 0.7 - 1e-9
        assert factor.max() <= 1.3 + 1e-9
        _assert_uniform((factor - 0.7) / 0.6)
    assert abs(np.corrcoef(brightness.numpy(), contrast.numpy())[0, 1]) < 4.5 / math.sqrt(count)


def test_changes_use_different_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    draws: list[Tensor] = []

    def record_call(x: Tensor, draw: Tensor, order: list[int]) -> Tensor:
        draws.append(draw.flatten(1))
        return x

    monkeypatch.setattr("domainwise.data.augmentation._jitter_colours", record_call)
    count = 3000
    augment_batch(images(count, 3, 1, 1), seeded(2))
    together = torch.cat(draws, dim=1)
    assert together.shape == (5, count)
    for row in together:
        _assert_uniform(row)
    shared = np.corrcoef(np.concatenate([together.numpy()[:, 1:], together.numpy()[:, :-1]])) - np.eye(10)
    assert np.abs(shared).max() < 4.5 / math.sqrt(count)


def test_all_orders_occur_one_per_group_of_images(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[tuple[int, ...], int]] = []

    def record_call(x: Tensor, draw: Tensor, order: list[int]) -> Tensor:
        seen.append((tuple(order), len(x)))
        return _jitter_colours(x, draw, order)

    monkeypatch.setattr("domainwise.data.augmentation._jitter_colours", record_call)
    augment_batch(images(16 * 300 + 5, 1, 1, 1), seeded(0))
    assert [count for _, count in seen] == [16] * 300 + [5]
    observed = [order for order, _ in seen]
    assert set(observed) == set(ORDERS)
    # 12.5 of each are expected.
    assert max(map(observed.count, ORDERS)) < 30


def test_view_is_crop_mirror_and_colours_of_its_image() -> None:
    """Uniform images: a view changes only that colour, in float64, and stays at its position in the batch."""
    colours = torch.tensor([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]], dtype=torch.float64).repeat(15, 1)
    views = augment_batch(colours[:, :, None, None].expand(-1, -1, 3, 3), seeded(1))
    for index, view in enumerate(views):
        assert (view.amax((1, 2)) - view.amin((1, 2))).max() < 1e-9
        red, green, blue = view[:, 0, 0].tolist()
        hue, saturation, _ = colorsys.rgb_to_hsv(red, green, blue)
        if saturation > 1e-9:
            turned = (hue - (index % 3) / 3 + 0.5) % 1 - 0.5
            assert abs(turned) <= 0.3 + 1e-9


def _assert_uniform(values: Tensor) -> None:
    """Kolmogorov-Smirnov test, with a bound that a uniform sample exceeds once in 20,000."""
    ordered, count = values.sort().values.double(), len(values)
    places = torch.arange(1, count + 1) / count
    assert (ordered - places).abs().max() < 2.3 / math.sqrt(count)
