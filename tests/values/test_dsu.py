"""DSU: styles with noise, channel by channel, with the same draws."""

import pytest
import torch
from styles_problem import check_updates, fresh, layered_network, measure_style
from torch import Tensor

from domainwise.algorithms import DSU
from domainwise.networks import build_backbone


def measure_spread(values: list[Tensor]) -> Tensor:
    mean = sum(values) / len(values)
    return (sum((value - mean) ** 2 for value in values) / len(values) + 1e-6).sqrt()


def restyle(features: Tensor, sizes: tuple[int, ...], generator: torch.Generator) -> Tensor:
    noise = torch.randn(2, *features.shape[:2], generator=generator)
    channels = []
    for channel in range(features.shape[1]):
        means, deviations = zip(*(measure_style(image[channel]) for image in features), strict=True)
        mean_spread, deviation_spread = measure_spread(means), measure_spread(deviations)
        changed = []
        for index, image in enumerate(features):
            content = (image[channel] - means[index]) / deviations[index]
            deviation = deviations[index] + noise[1, index, channel] * deviation_spread
            changed.append(content * deviation + means[index] + noise[0, index, channel] * mean_spread)
        channels.append(torch.stack(changed))
    return torch.stack(channels, dim=1)


@pytest.mark.parametrize("sizes", [(5, 2, 3), (5, 0, 3), (1, 1, 0), (1, 0, 0)])
def test_updates_follow_the_textbook(sizes: tuple[int, ...]) -> None:
    check_updates(fresh(DSU, layered_network()), sizes, restyle, count=3, probability=0.5)


def test_stages_are_counted_from_the_input() -> None:
    algorithm = fresh(DSU, layered_network(), stages=2, probability=1.0)
    check_updates(algorithm, (5, 2, 3), restyle, count=2, probability=1.0)


def test_means_vary_as_much_as_those_of_the_batch() -> None:
    algorithm = fresh(DSU, layered_network())
    random = torch.Generator().manual_seed(0)
    features = torch.rand(40, 3, 5, 5, generator=random) + torch.rand(40, 3, 1, 1, generator=random)
    changes = torch.stack([(algorithm.restyle(features, [40]) - features).mean((2, 3)) for _ in range(400)])
    torch.testing.assert_close(changes.flatten(0, 1).std(0), features.mean((2, 3)).std(0), rtol=0.05, atol=0)
    torch.testing.assert_close(changes.mean(0), torch.zeros(40, 3), rtol=0, atol=0.1)


def test_layers_of_a_resnet() -> None:
    network = build_backbone("resnet18", (3, 64, 64), 3, dropout=0.0, batch_norm="frozen").float()
    layers = DSU(network, num_domains=1).layers
    assert layers == [f"model.{layer}" for layer in ("maxpool", "layer1", "layer2", "layer3", "layer4")]
