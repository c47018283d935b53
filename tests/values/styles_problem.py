"""A network with three feature maps, whose forward pass can be written out with changed maps."""

import copy
from collections.abc import Callable

import pytest
import torch
from tiny_problem import domains
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms import Algorithm
from domainwise.networks import Network

LR, WEIGHT_DECAY, SEED = 0.01, 0.1, 3
# Maps a map (b, C, H, W), the number of samples per domain, and a generator to another map.
Restyle = Callable[[Tensor, tuple[int, ...], torch.Generator], Tensor]


def layered_network() -> Network:
    torch.manual_seed(0)
    featurizer = nn.Sequential(
        *(nn.Conv2d(3, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 5, 3, padding=1), nn.Tanh()),
        *(nn.Conv2d(5, 2, 2), nn.Tanh(), nn.Flatten()),
    )
    return Network(featurizer, nn.Linear(18, 3), input_shape=(3, 4, 4), num_features=18)


def fresh(method: type[Algorithm], network: nn.Module, **hparams) -> Algorithm:
    return method(
        network,
        num_domains=3,
        input_shape=(3, 4, 4),
        generator=torch.Generator().manual_seed(SEED),
        lr=LR,
        weight_decay=WEIGHT_DECAY,
        **hparams,
    )


def check_updates(
    algorithm: Algorithm, sizes: tuple[int, ...], restyle: Restyle, *, count: int, probability: float
) -> None:
    """Compare updates with those of a copy of the network, of which the first `count` maps change."""
    network = copy.deepcopy(algorithm.network)
    optimizer = torch.optim.Adam(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    generator = torch.Generator().manual_seed(SEED)
    numbers = set()
    for seed in range(8):
        returned = algorithm.update(domains(sizes, seed))
        x, y = (torch.cat(parts) for parts in zip(*domains(sizes, seed), strict=True))
        changing = [bool(torch.rand((), generator=generator) < probability) for _ in range(count)]
        numbers.add(sum(changing))
        first, _, second, _, third, _, _ = network.featurizer
        for layer, changes in zip((first, second, third), [*changing, False, False], strict=False):
            x = layer(x).tanh()
            x = restyle(x, sizes, generator) if changes else x
        loss = F.cross_entropy(network.classifier(x.flatten(1)), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert returned == {"loss": pytest.approx(loss.item(), rel=1e-8)}
        ours, theirs = list(algorithm.network.parameters()), list(network.parameters())
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)
    assert len(numbers) > 1 or probability == 1
    assert not any(module._forward_hooks for module in algorithm.network.modules())


def measure_style(plane: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation of a channel of an image, (H, W)."""
    mean = plane.sum() / plane.numel()
    return mean, (((plane - mean) ** 2).sum() / plane.numel() + 1e-6).sqrt()
