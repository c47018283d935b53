"""RandConv: kernels applied pixel by pixel, and divergences of predictions sample by sample, with the same draws."""

import copy
import math

import pytest
import torch
from tiny_problem import domains, linear_network
from torch import Tensor

from domainwise.algorithms import RandConv

LR, WEIGHT_DECAY, SEED = 0.01, 0.1, 3


def fresh(network, **hparams) -> RandConv:
    generator = torch.Generator().manual_seed(SEED)
    return RandConv(network, num_domains=3, generator=generator, lr=LR, weight_decay=WEIGHT_DECAY, **hparams)


def filter_image(image: Tensor, kernel: Tensor) -> Tensor:
    """Return the image (3, 4, 4) through the kernel (3, 3, k, k); what is outside the image counts as its mean."""
    mean, size = image.mean((1, 2)), kernel.shape[2]
    around = torch.zeros(3, 3 + size, 3 + size)
    around[:, size // 2 : size // 2 + 4, size // 2 : size // 2 + 4] = image - mean[:, None, None]
    filtered = torch.empty(3, 4, 4)
    for row in range(4):
        for column in range(4):
            patch = around[:, row : row + size, column : column + size]
            for out in range(3):
                filtered[out, row, column] = mean[out] + (kernel[out] * patch).sum()
    return filtered


def draw_view(x: Tensor, generator: torch.Generator, identity: float, mixing: bool) -> tuple[Tensor, int]:
    """Return the images through one filter, and its size: 0 if they stay as they are."""
    if torch.rand((), generator=generator) < identity:
        return x, 0
    noise = torch.randn(3, 3 * 7 * 7 + 1, generator=generator)
    which, share = torch.rand(2, generator=generator).tolist()
    size = (1, 3, 5, 7)[int(4 * which)]
    inside = slice(3 - size // 2, 4 + size // 2)
    kernel = noise[:, :-1].reshape(3, 3, 7, 7)[:, :, inside, inside] / math.sqrt(size * size * 3)
    share = share if mixing else 1.0
    return torch.stack([share * filter_image(each, kernel) + (1 - share) * each for each in x]).clamp(0, 1), size


def measure_divergence(views: list[Tensor]) -> Tensor:
    """Return the mean over views and samples of KL(prediction of the view || mean prediction)."""
    total = 0
    for logits in zip(*views, strict=True):  # those of one sample
        predictions = [each.exp() / each.exp().sum() for each in logits]
        mean = sum(predictions) / 3
        total += sum((p * (p / mean).log()).sum() for p in predictions) / 3
    return total / len(views[0])


@pytest.mark.parametrize(
    ("sizes", "hparams"),
    [
        ((5, 2, 3), {}),
        ((5, 0, 3), {"mixing": False, "identity": 0.0}),
        ((2, 1, 1), {"identity": 0.3, "consistency": 0.7}),
    ],
)
def test_updates_follow_the_textbook(sizes: tuple[int, ...], hparams: dict[str, float]) -> None:
    network = linear_network()
    algorithm = fresh(network, **hparams)
    expected = copy.deepcopy(network)
    optimizer = torch.optim.Adam(expected.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    generator = torch.Generator().manual_seed(SEED)
    consistency, seen = hparams.get("consistency", 0.0), set()
    for seed in range(20):
        returned = algorithm.update(domains(sizes, seed))
        x, y = (torch.cat(parts) for parts in zip(*domains(sizes, seed), strict=True))
        views = []
        for _ in range(3 if consistency else 1):
            view, size = draw_view(x, generator, hparams.get("identity", 0.5), hparams.get("mixing", True))
            views.append(expected(view))
            seen.add(size)
        loss = sum(each.exp().sum().log() - each[label] for each, label in zip(views[0], y, strict=True)) / len(y)
        penalty = measure_divergence(views) if consistency else 0.0
        optimizer.zero_grad()
        (loss + consistency * penalty).backward()
        optimizer.step()
        terms = {"loss": loss.item()} | ({"consistency": penalty.item()} if consistency else {})
        assert returned == pytest.approx(terms, rel=1e-8)
        torch.testing.assert_close(list(network.parameters()), list(expected.parameters()), rtol=1e-7, atol=1e-10)
    assert {1, 3, 5, 7} <= seen
    assert (0 in seen) == (hparams.get("identity") != 0.0)


def test_half_of_the_updates_see_the_images_themselves() -> None:
    network = linear_network()
    algorithm, unchanged = fresh(network), []
    batches = domains((2, 1, 1), 0)
    x = torch.cat([each for each, _ in batches])
    network.register_forward_pre_hook(lambda _, inputs: unchanged.append(torch.equal(inputs[0], x)))
    for _ in range(200):
        algorithm.update(batches)
    assert 75 < sum(unchanged) < 125
