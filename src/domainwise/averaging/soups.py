"""Averages of finished models that began with the same weights: uniform and greedy soups (DiWA), and WiSE-FT.

Models are given as state dicts. Only models with a shared start can be averaged: others lie in different valleys of the
loss, and their mean is no better than chance.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

State = Mapping[str, Tensor]


def average_states(states: Sequence[State]) -> dict[str, Tensor]:
    """Return the mean of each parameter and buffer; integers are those of the first."""
    if not states:
        raise ValueError("there is nothing to average")
    first = states[0]
    for state in states[1:]:
        if {name: each.shape for name, each in state.items()} != {name: each.shape for name, each in first.items()}:
            raise ValueError("models of different shapes cannot be averaged")
    return {
        name: torch.stack([state[name].double() for state in states]).mean(0).to(value.dtype)
        if value.is_floating_point()
        else value.clone()
        for name, value in first.items()
    }


def interpolate_states(start: State, end: State, alpha: float) -> dict[str, Tensor]:
    """Return (1 - alpha) start + alpha end (WiSE-FT, Wortsman et al. 2022); integers are those of `end`."""
    if {name: each.shape for name, each in start.items()} != {name: each.shape for name, each in end.items()}:
        raise ValueError("models of different shapes cannot be interpolated")
    return {
        name: (start[name].double().lerp(value.double(), alpha)).to(value.dtype)
        if value.is_floating_point()
        else value.clone()
        for name, value in end.items()
    }


def select_greedily(states: Sequence[State], score: Callable[[State], float]) -> tuple[list[int], float]:
    """Return which of the states to average, and the score of their mean.

    Starts from the first, tries the others in order, and keeps one if the mean with it scores at least as well as the
    best so far. Pass the states in the order of their own scores (Wortsman et al. 2022; DiWA's restricted variant).
    """
    chosen, best = [0], score(average_states(states[:1]))
    for index in range(1, len(states)):
        value = score(average_states([states[each] for each in (*chosen, index)]))
        if value >= best:
            chosen, best = [*chosen, index], value
    return chosen, best
