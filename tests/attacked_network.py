"""A small network of five classes, trained until its accuracy is high, and images to attack it with."""

from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SHAPE = (3, 8, 8)
NUM_CLASSES = 5


@cache
def train_network() -> tuple[nn.Module, Tensor, Tensor]:
    """Return the network in eval mode, and 100 images with their labels: noisy versions of one pattern per class."""
    generator = torch.Generator().manual_seed(0)
    patterns = 0.5 + 0.07 * torch.randn(NUM_CLASSES, *SHAPE, generator=generator)
    labels = torch.randint(NUM_CLASSES, (400,), generator=generator)
    images = (patterns[labels] + 0.2 * torch.randn(400, *SHAPE, generator=generator)).clamp(0, 1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 5)
        )
    optimizer = torch.optim.Adam(network.parameters(), lr=0.003)
    for _ in range(40):
        optimizer.zero_grad()
        F.cross_entropy(network(images[:300]), labels[:300]).backward()
        optimizer.step()
    return network.eval(), images[300:], labels[300:]


def count_correct(network: nn.Module, x: Tensor, y: Tensor) -> int:
    with torch.no_grad():
        return int((network(x).argmax(1) == y).sum())
