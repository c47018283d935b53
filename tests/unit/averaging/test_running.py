"""SMA and EMA against their rules, written out over recorded weights."""

import io

import pytest
import torch
from torch import Tensor, nn

from domainwise.averaging import EMA, SMA, WeightAverage, build_average

State = dict[str, Tensor]


def make_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))


def copy_state(network: nn.Module) -> State:
    return {name: value.clone() for name, value in network.state_dict().items()}


def train_steps(network: nn.Module, average: WeightAverage, count: int) -> tuple[list[State], list[State]]:
    """Return the states of the network, the initial one first, and those of the average after each update."""
    optimizer = torch.optim.SGD(network.parameters(), lr=0.02)
    network.train()
    states, averages = [copy_state(network)], []
    for step in range(count):
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        network(x).square().mean().backward()
        optimizer.step()
        average.update_(network)
        states.append(copy_state(network))
        averages.append(copy_state(average.averaged_network()))
    return states, averages


def assert_close(state: State, expected: State) -> None:
    assert state.keys() == expected.keys()
    for name, value in state.items():
        torch.testing.assert_close(value, expected[name], rtol=1e-5, atol=1e-6)


def mean_of(states: list[State]) -> State:
    """The mean of everything but integers, which are those of the last."""
    return {
        name: torch.stack([state[name] for state in states]).mean(0) if value.is_floating_point() else value
        for name, value in states[-1].items()
    }


@pytest.mark.parametrize("start", [1, 2, 5, 100])
def test_sma_is_the_mean_from_the_update_before_its_start(start: int) -> None:
    network = make_network()
    states, averages = train_steps(network, SMA(network, start=start), 9)
    for update, average in enumerate(averages, start=1):
        expected = states[update] if update < start else mean_of(states[start - 1 : update + 1])
        assert_close(average, expected)
    # So the statistics of batch norm are averaged because they change, and counts are not.
    assert not torch.equal(states[1]["1.running_mean"], states[9]["1.running_mean"])
    assert averages[-1]["1.num_batches_tracked"] == 9


def test_sma_is_the_recursion_of_its_authors() -> None:
    network = make_network()
    states, averages = train_steps(network, SMA(network, start=3), 8)
    expected = states[0]
    for t in range(1, 9):
        n = t - 3 + 1
        expected = states[t] if n < 1 else {name: (n * expected[name] + states[t][name]) / (n + 1) for name in expected}
        torch.testing.assert_close(averages[t - 1]["0.weight"], expected["0.weight"])


@pytest.mark.parametrize("decay", [0.0, 0.3, 0.999])
def test_ema_is_its_recursion(decay: float) -> None:
    network = make_network()
    states, averages = train_steps(network, EMA(network, decay=decay), 9)
    expected = states[1]
    assert_close(averages[0], expected)
    for t in range(1, 9):
        kept = min(decay, (1 + t) / (10 + t))
        new = states[t + 1]
        expected = {
            name: kept * expected[name] + (1 - kept) * value if value.is_floating_point() else value
            for name, value in new.items()
        }
        assert_close(averages[t], expected)


@pytest.mark.parametrize("name", ["sma", "ema", "swad"])
def test_the_average_takes_no_gradients_and_stays_in_eval_mode(name: str) -> None:
    network = make_network()
    average = build_average(name, network)
    average.train()
    average.update_(network, lambda: 1.0)
    assert network.training
    assert all(parameter.requires_grad for parameter in network.parameters())
    averaged = average.averaged_network()
    assert not any(parameter.requires_grad for parameter in averaged.parameters())
    assert not any(part.training for part in average.modules())
    x = torch.randn(5, 3)
    with torch.no_grad():
        network.eval()
        torch.testing.assert_close(average(x), network(x))  # one update: the average is the network
    assert {id(each) for each in averaged.parameters()}.isdisjoint({id(each) for each in network.parameters()})


@pytest.mark.parametrize("name", ["sma", "ema"])
def test_a_stored_average_continues_to_the_bit(name: str) -> None:
    options = {"start": 4} if name == "sma" else {"decay": 0.5}
    for cut in range(8):
        network = make_network()
        average = build_average(name, network, **options)
        train_steps(network, average, cut)
        content = io.BytesIO()
        torch.save(average.state_dict(), content)
        content.seek(0)
        restored = build_average(name, make_network(), **options)
        restored.load_state_dict(torch.load(content, weights_only=True))
        for _ in range(8 - cut):
            with torch.no_grad():
                network[0].weight.add_(0.1)
            average.update_(network)
            restored.update_(network)
            for key, value in average.state_dict().items():
                assert torch.equal(value, restored.state_dict()[key]), (cut, key)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sma", {"start": 0}, "start must be at least 1, got 0"),
        ("ema", {"decay": 1.0}, "decay must be at least 0 and below 1, got 1"),
        ("ema", {"decay": -0.1}, "decay must be at least 0"),
        ("swad", {"every": 0}, "every must be at least 1"),
        ("swad", {"patience": 0}, "patience must be at least 1"),
        ("swad", {"end_patience": 0}, "end_patience must be at least 1"),
        ("swad", {"tolerance": -0.1}, "tolerance must be at least 0"),
        ("swad", {"variant": "theirs"}, "variant must be 'paper' or 'released', got 'theirs'"),
    ],
)
def test_values_out_of_range_are_rejected(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_average(name, nn.Linear(1, 1), **options)
