"""Means of finished models: uniform, greedy, and interpolated."""

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from domainwise.averaging import average_states, interpolate_states, select_greedily

State = dict[str, Tensor]


def make_state(value: float, count: int = 0) -> State:
    return {"weight": torch.tensor([value, 2 * value], dtype=torch.float32), "count": torch.tensor(count)}


def test_uniform_is_the_mean_and_integers_are_those_of_the_first() -> None:
    mean = average_states([make_state(1, 5), make_state(2, 6), make_state(6, 7)])
    assert mean["weight"].tolist() == [3, 6]
    assert mean["weight"].dtype == torch.float32
    assert mean["count"] == 5
    alone = make_state(1.1)
    assert torch.equal(average_states([alone])["weight"], alone["weight"])


def test_the_mean_is_computed_in_double_precision() -> None:
    states = [{"weight": torch.tensor([value])} for value in (1e8, 1.0, -1e8, 2.0)]
    assert average_states(states)["weight"].item() == 0.75


def test_interpolation_ends_at_both_models() -> None:
    generator = torch.Generator().manual_seed(0)
    start, end = ({"weight": torch.randn(50, generator=generator), "count": torch.tensor(n)} for n in (1, 2))
    assert torch.equal(interpolate_states(start, end, 0)["weight"], start["weight"])
    assert torch.equal(interpolate_states(start, end, 1)["weight"], end["weight"])
    quarter = interpolate_states(start, end, 0.25)
    torch.testing.assert_close(quarter["weight"], 0.75 * start["weight"] + 0.25 * end["weight"])
    assert quarter["count"] == 2


def test_models_of_different_shapes_are_rejected() -> None:
    other = {**make_state(1), "weight": torch.zeros(3)}
    renamed = {"bias": torch.zeros(2), "count": torch.tensor(0)}
    for state in (other, renamed):
        with pytest.raises(ValueError, match="models of different shapes cannot be averaged"):
            average_states([make_state(1), state])
        with pytest.raises(ValueError, match="models of different shapes cannot be interpolated"):
            interpolate_states(make_state(1), state, 0.5)
    with pytest.raises(ValueError, match="nothing to average"):
        average_states([])


def test_greedy_keeps_what_does_not_lower_the_score() -> None:
    """Scored by the distance of the mean from 2. The means 1 and 3 are equally far, and equal is good enough."""
    tried: list[float] = []

    def score(state: Mapping[str, Tensor]) -> float:
        tried.append(round(state["weight"][0].item(), 4))
        return -abs(state["weight"][0].item() - 2)

    chosen, best = select_greedily([make_state(value) for value in (1, 5, 3, 0, 2)], score)
    assert tried == [1, 3, 3, 2.25, 2.2]
    assert (chosen, best) == ([0, 1, 2, 3, 4], pytest.approx(-0.2))


def test_greedy_drops_what_lowers_the_score() -> None:
    chosen, best = select_greedily(
        [make_state(value) for value in (1, 9, 3, 2, 4)], lambda state: -abs(state["weight"][0].item() - 2)
    )
    assert (chosen, best) == ([0, 2, 3], 0)
