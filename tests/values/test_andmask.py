"""ANDMask: the mean of three domains' gradients where their signs agree, counted weight by weight."""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms import ANDMask
from domainwise.networks import Network

LR, WEIGHT_DECAY = 0.01, 0.1


def three_domains(seed: int) -> list[tuple[Tensor, Tensor]]:
    random = torch.Generator().manual_seed(seed)
    return [
        (torch.rand(count, 3, 4, 4, generator=random), torch.randint(3, (count,), generator=random))
        for count in (5, 2, 3)
    ]


def fresh(agreement: float) -> ANDMask:
    torch.manual_seed(0)
    featurizer = nn.Sequential(nn.Flatten(), nn.Linear(48, 4), nn.Tanh())
    network = Network(featurizer, nn.Linear(4, 3), input_shape=(3, 4, 4), num_features=4)
    return ANDMask(network, num_domains=3, lr=LR, weight_decay=WEIGHT_DECAY, agreement=agreement)


def agreed(gradients: list[np.ndarray], agreement: float) -> np.ndarray:
    """Combine the domains' gradients of one parameter tensor."""
    kept = np.zeros_like(gradients[0])
    for place in np.ndindex(kept.shape):
        signs = [np.sign(gradient[place]) for gradient in gradients]
        kept[place] = abs(sum(signs) / 3) >= agreement
    return sum(gradients) / 3 * kept / (1e-10 + kept.sum() / kept.size)


# Two signs against one make a mean of 1/3: enough for .3, not for 1 or .5.
@pytest.mark.parametrize("agreement", [1.0, 0.5, 0.3])
def test_updates_follow_the_textbook(agreement: float) -> None:
    algorithm = fresh(agreement)
    network = copy.deepcopy(algorithm.network)
    optimizer = torch.optim.Adam(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    for seed in range(4):
        returned = algorithm.update(three_domains(seed))

        losses = [F.cross_entropy(network(x), y) for x, y in three_domains(seed)]
        for parameter in network.parameters():
            gradients = [torch.autograd.grad(loss, parameter, retain_graph=True)[0].numpy() for loss in losses]
            parameter.grad = torch.from_numpy(agreed(gradients, agreement))
        optimizer.step()

        assert returned == {"loss": pytest.approx(sum(loss.item() for loss in losses) / 3, rel=1e-10)}
        for ours, expected in zip(algorithm.network.parameters(), network.parameters(), strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-11)
            # Tight enough to detect the 1e-10 added to the share.
            torch.testing.assert_close(ours.grad, expected.grad, rtol=1e-12, atol=1e-15)


def test_tensor_without_agreement_does_not_move() -> None:
    """From zero weights each domain pulls the bias towards its own class, away from the other two."""
    network = Network(nn.Flatten(), nn.Linear(48, 3), input_shape=(3, 4, 4), num_features=48)
    nn.init.zeros_(network.classifier.weight)
    nn.init.zeros_(network.classifier.bias)
    algorithm = ANDMask(network, num_domains=3, lr=LR, agreement=0.5)
    algorithm.update([(torch.rand(2, 3, 4, 4), torch.tensor([label, label])) for label in range(3)])
    assert network.classifier.bias.tolist() == [0, 0, 0]
