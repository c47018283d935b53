"""Smooth patterns of low rank: the style that a domain lays over all of its images."""

import numpy as np
from numpy.typing import NDArray

_FREQUENCIES = np.arange(1, 4)
# The tint's share of a channel's amplitude: enough to colour the domain, not enough to hide the pattern.
_TINT = 0.6


def smooth_pattern(rng: np.random.Generator, channels: int, size: int, rank: int = 2) -> NDArray[np.float64]:
    """One pattern of unit l2 norm, (channels, size, size).

    Each channel is the sum of `rank` outer products of smooth functions, plus a tint: a constant that raises the
    channel's rank by one at most. The draws do not depend on `size`, so one seed gives one pattern at any resolution.
    """
    down = _smooth_functions(rng, channels, rank, size)
    across = _smooth_functions(rng, channels, rank, size)
    pattern = np.einsum("crh,crw->chw", down, across) / np.sqrt(rank)
    pattern += _TINT * rng.standard_normal((channels, 1, 1))
    return np.asarray(pattern / np.linalg.norm(pattern))


def _smooth_functions(rng: np.random.Generator, channels: int, rank: int, size: int) -> NDArray[np.float64]:
    """Sums of a few cosines, (channels, rank, size), of random amplitude and phase and about unit variance."""
    shape = (channels, rank, len(_FREQUENCIES), 1)
    amplitude = rng.standard_normal(shape) / _FREQUENCIES[:, None]
    phase = rng.uniform(0, 2 * np.pi, shape)
    where = (np.arange(size) + 0.5) / size
    waves = amplitude * np.cos(np.pi * _FREQUENCIES[:, None] * where + phase)
    return np.asarray(waves.sum(axis=2))
