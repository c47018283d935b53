"""SANDMask: the mean of three domains' gradients times a mask of their agreement, weight by weight."""

import copy
import math

import numpy as np
import pytest
import torch
from tiny_problem import domains
from torch import nn
from torch.nn import functional as F

from domainwise.algorithms import SANDMask
from domainwise.networks import Network

LR, WEIGHT_DECAY = 0.01, 0.1


def fresh(agreement: float, steepness: float, num_domains: int = 3) -> SANDMask:
    torch.manual_seed(0)
    featurizer = nn.Sequential(nn.Flatten(), nn.Linear(48, 4), nn.Tanh())
    network = Network(featurizer, nn.Linear(4, 3), input_shape=(3, 4, 4), num_features=4)
    settings = {"agreement": agreement, "steepness": steepness, "lr": LR, "weight_decay": WEIGHT_DECAY}
    return SANDMask(network, num_domains=num_domains, **settings)


def masked(gradients: list[np.ndarray], agreement: float, steepness: float) -> np.ndarray:
    """Combine the domains' gradients of one parameter tensor."""
    count = len(gradients)
    mask = np.zeros_like(gradients[0])
    for place in np.ndindex(mask.shape):
        values = [gradient[place] for gradient in gradients]
        mean = sum(values) / count
        variance = sum((value - mean) ** 2 for value in values) / (count - 1) if count > 1 else 1e-17
        signs = abs(sum(np.sign(value) for value in values)) / count
        if variance > 0:
            mask[place] = max(0.0, math.tanh(steepness * (signs - agreement) / variance))
        else:  # the row of black pixels has gradient zero in all domains
            mask[place] = 1e-17 if signs == agreement else float(signs > agreement)
    return mask * sum(gradients) / count / (1e-10 + mask.sum() / mask.size)


# With steepness 10 nearly all masks are 0 or 1; with .001 most are in between.
@pytest.mark.parametrize("steepness", [10.0, 1e-3])
@pytest.mark.parametrize("agreement", [0.5, 0.3, 0.0])
@pytest.mark.parametrize("sizes", [(5, 2, 3), (5, 2), (5, 0, 3), (0, 5)])
def test_updates_follow_the_textbook(agreement: float, steepness: float, sizes: tuple[int, ...]) -> None:
    algorithm = fresh(agreement, steepness, len(sizes))
    network = copy.deepcopy(algorithm.network)
    optimizer = torch.optim.Adam(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    for seed in range(4):
        returned = algorithm.update(domains(sizes, seed))
        losses = [F.cross_entropy(network(x), y) for x, y in domains(sizes, seed) if len(y)]
        for parameter in network.parameters():
            gradients = [torch.autograd.grad(loss, parameter, retain_graph=True)[0].numpy() for loss in losses]
            parameter.grad = torch.from_numpy(masked(gradients, agreement, steepness))
        optimizer.step()
        assert returned == {"loss": pytest.approx(sum(loss.item() for loss in losses) / len(losses), rel=1e-10)}
        for ours, expected in zip(algorithm.network.parameters(), network.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, expected.grad, rtol=1e-10, atol=1e-13)
            torch.testing.assert_close(ours, expected, rtol=1e-8, atol=1e-10)


def test_three_gradients_by_hand() -> None:
    """Columns: all agree, two agree, all are equal, all are zero."""
    gradients = torch.tensor([[0.1, 0.1, 0.2, 0.0], [0.2, 0.2, 0.2, 0.0], [0.3, -0.3, 0.2, 0.0]])
    algorithm = fresh(agreement=0.5, steepness=0.01)
    (combined,) = algorithm.combine_gradients([[row] for row in gradients])
    # The variance of the first column is .01, so its mask is tanh(.01 / .01 * (1 - .5)); that of the third is 1.
    masks = [math.tanh(0.5), 0.0, 1.0, 0.0]
    share = sum(masks) / 4
    assert combined.tolist() == pytest.approx([0.2 * masks[0] / share, 0, 0.2 / share, 0], rel=1e-8)


def test_nothing_exceeds_full_agreement() -> None:
    """The default in DomainBed, which therefore trains nothing."""
    algorithm = fresh(agreement=1.0, steepness=10.0)
    algorithm.update(domains((5, 2, 3), 0))
    assert all(not parameter.grad.any() for parameter in algorithm.network.parameters())


def test_undefined_mask_is_tiny() -> None:
    """Equal gradients have variance 0: with agreement 1 the mask is the tanh of infinity times 0."""
    algorithm = fresh(agreement=1.0, steepness=10.0)
    (combined,) = algorithm.combine_gradients([[torch.tensor([0.2, 0.1])], [torch.tensor([0.2, 0.3])]])
    assert combined.tolist() == pytest.approx([1e-17 * 0.2 / (1e-10 + 1e-17 / 2), 0], rel=1e-12)
