"""The common corruptions of ImageNet-C (Hendrycks and Dietterich, ICLR 2019), applied to one's own images.

The package `imagecorruptions` has the corruptions and their parameters, which were chosen for images of 224 x 224
pixels. It draws from numpy's global random state, or, for two corruptions, from fresh entropy. Here, a corrupted image
depends on the seed, the corruption, the severity, the image and its index only.

Imports no torch, because worker processes import this module.
"""

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from domainwise.errors import DomainwiseError, suggest_install, unknown_choice
from domainwise.seeds import seed_hash

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    Images = NDArray[np.uint8]

CORRUPTIONS: tuple[str, ...] = (
    *("gaussian_noise", "shot_noise", "impulse_noise"),
    *("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness"),
    *("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
SEVERITIES: tuple[int, ...] = (1, 2, 3, 4, 5)
MIN_SIZE = 32
# These two do not draw from numpy's global state, and take a seed instead.
_SEEDED = ("impulse_noise", "glass_blur")
# Below this many pixels per worker (about 5 s), starting worker processes takes longer than it saves.
_PIXELS_PER_WORKER = 20_000_000
# A process has one global random state; threads take turns.
_RANDOM_STATE = threading.Lock()


def corrupt_images(
    images: "Tensor",
    corruption: str,
    severity: int,
    seed: int = 0,
    *,
    indices: Sequence[int] | None = None,
    workers: int = 1,
) -> "Tensor":
    """Return corrupted copies of images, uint8, (n, C, H, W). The caller's random state does not change.

    Images of one channel are corrupted as gray images of three, of which the first is returned.

    Args:
        images: uint8, (n, C, H, W), with 1 or 3 channels and at least 32 x 32 pixels.
        corruption: one of `CORRUPTIONS`.
        severity: 1 to 5.
        seed: seed for the random part of the corruption.
        indices: number of each image, from which its random part is drawn (default: its position). An image with the
            same index is corrupted in the same way whatever other images there are.
        workers: number of processes. It does not change the result.
    """
    import torch

    check_corruption(corruption, severity)
    if images.dtype != torch.uint8 or images.ndim != 4:
        raise DomainwiseError(f"images must be uint8 (n, C, H, W), got {images.dtype} {tuple(images.shape)}")
    check_corruptible(images.shape[1:])
    numbers = list(range(len(images))) if indices is None else [int(index) for index in indices]
    if len(numbers) != len(images):
        raise DomainwiseError(f"expected one index per image, got {len(numbers)} for {len(images)} images")
    # Images (n, H, W, C), as the package expects them.
    rows = images.permute(0, 2, 3, 1).cpu().numpy()
    workers = max(1, min(workers, len(rows)))
    if workers == 1:
        corrupted = _corrupt(rows, numbers, corruption, severity, seed)
    else:
        corrupted = _corrupt_in_processes(rows, numbers, corruption, severity, seed, workers)
    return torch.from_numpy(corrupted).permute(0, 3, 1, 2).to(images.device)


def count_workers(pixels: int) -> int:
    """Return the number of processes that make corrupting so many pixels fastest: at most one per core."""
    return max(1, min(_count_cores(), pixels // _PIXELS_PER_WORKER))


def _count_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_corruption(corruption: str, severity: int) -> None:
    if corruption not in CORRUPTIONS:
        raise unknown_choice("corruption", corruption, CORRUPTIONS)
    if severity not in SEVERITIES:
        raise DomainwiseError(f"severity must be an integer from 1 to 5, got {severity}")


def check_corruptible(shape: Sequence[int]) -> None:
    """Raise an error if images (C, H, W) cannot be corrupted, or if the library is not installed."""
    channels, height, width = shape
    if channels not in (1, 3):
        raise DomainwiseError(f"corruptions need images with 1 or 3 channels, got {channels}")
    if min(height, width) < MIN_SIZE:
        raise DomainwiseError(
            f"corruptions need images of at least {MIN_SIZE} x {MIN_SIZE} pixels, got {height} x {width}"
        )
    _load_library()


def _load_library() -> ModuleType:
    try:
        import imagecorruptions  # type: ignore[import-untyped]
    except ImportError as error:
        raise DomainwiseError(f"corruptions need {error.name}; {suggest_install('corruptions')}") from error
    # Compiling glass_blur takes 4 s in each process, unless the code is kept on disk. Not every version compiles, and
    # not every disk can be written to.
    with suppress(AttributeError, RuntimeError):
        imagecorruptions.corruptions._shuffle_pixels_njit_glass_blur.enable_caching()
    return imagecorruptions  # type: ignore[no-any-return]


def _corrupt(rows: "Images", numbers: Sequence[int], corruption: str, severity: int, seed: int) -> "Images":
    """Return corrupted copies of images (n, H, W, C)."""
    corrupt: Callable[..., Images] = _load_library().corrupt
    corrupted = np.empty_like(rows)
    with _RANDOM_STATE:
        before = np.random.get_state()
        try:
            for place, number in enumerate(numbers):
                image_seed = seed_hash(seed, corruption, severity, number)
                np.random.seed(image_seed)
                seeded: dict[str, Any] = {"seed": image_seed} if corruption in _SEEDED else {}
                image = corrupt(rows[place], severity, corruption, **seeded)
                corrupted[place] = image[..., : rows.shape[-1]]
        finally:
            np.random.set_state(before)
    return corrupted


def _corrupt_in_processes(
    rows: "Images", numbers: Sequence[int], corruption: str, severity: int, seed: int, workers: int
) -> "Images":
    # Processes of joblib need no `if __name__ == "__main__"`, and stay alive from one call to the next.
    from joblib import Parallel, delayed  # type: ignore[import-untyped]

    # Without memory maps: each part is read once, and a map would stay on disk.
    parts = Parallel(n_jobs=workers, backend="loky", max_nbytes=None)(
        delayed(_corrupt)(part, numbers[start : start + len(part)], corruption, severity, seed)
        for start, part in _split(rows, workers)
    )
    return np.concatenate(parts)


def _split(rows: "Images", count: int) -> list[tuple[int, "Images"]]:
    bounds = [len(rows) * part // count for part in range(count + 1)]
    return [(start, rows[start:stop]) for start, stop in pairwise(bounds)]
