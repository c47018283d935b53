"""NCDG: coverage and its pixel gradients, neuron by neuron, and the resulting update."""

import copy

import pytest
import torch
from tiny_problem import two_domains
from torch import Tensor, nn

from domainwise.algorithms import NCDG
from domainwise.networks import Network

LR, WEIGHT_DECAY, THRESHOLD, TEMPERATURE = 0.01, 0.1, 0.2, 0.3


def another_view(x: Tensor) -> Tensor:
    return 0.1 + 0.7 * x.flip(3).roll(1, dims=2)


def network_with_two_relus() -> Network:
    torch.manual_seed(0)
    featurizer = nn.Sequential(nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(20, 6), nn.ReLU())
    return Network(featurizer, nn.Linear(6, 3), input_shape=(3, 4, 4), num_features=6)


def scores_and_coverage(network: Network, image: Tensor) -> tuple[Tensor, Tensor]:
    convolution, linear = network.featurizer[0], network.featurizer[3]
    maps = convolution(image[None])[0].clamp(min=0)
    features = (linear.weight @ maps.flatten() + linear.bias).clamp(min=0)
    counts = []
    for neurons in ([sum(row.flatten()) / 4 for row in maps], list(features)):
        low, high = min(neurons), max(neurons)
        for neuron in neurons:
            scaled = (neuron - low) / (high - low + 1e-8)
            counts.append(1 / (1 + torch.exp((THRESHOLD - scaled) / TEMPERATURE)))
    return network.classifier(features), sum(counts) / (5 + 6)


def textbook_terms(network: Network, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return cross-entropy and coverage, averaged over both views of all samples, and the mean cosine."""
    losses, coverages, cosines = [], [], []
    for image, view, label in zip(x, another_view(x), y, strict=True):
        gradients = []
        for pixels in (image.clone().requires_grad_(), view.clone().requires_grad_()):
            scores, coverage = scores_and_coverage(network, pixels)
            losses.append(scores.exp().sum().log() - scores[label])
            coverages.append(coverage)
            gradients.append(torch.autograd.grad(coverage, pixels, create_graph=True)[0].flatten())
        a, b = gradients
        cosines.append(a.dot(b) / (a.dot(a) * b.dot(b)).sqrt())
    return tuple(sum(values) / len(values) for values in (losses, coverages, cosines))


@pytest.mark.parametrize(("coverage_weight", "similarity_weight"), [(0.3, 0.4), (0.3, 0.0), (0.0, 0.4)])
def test_updates_follow_the_textbook(coverage_weight: float, similarity_weight: float) -> None:
    algorithm = NCDG(
        network_with_two_relus(),
        num_domains=2,
        augment=another_view,
        lr=LR,
        weight_decay=WEIGHT_DECAY,
        threshold=THRESHOLD,
        temperature=TEMPERATURE,
        coverage_weight=coverage_weight,
        similarity_weight=similarity_weight,
    )
    network = copy.deepcopy(algorithm.network)
    optimizer = torch.optim.Adam(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    for seed in range(3):
        returned = algorithm.update(two_domains(seed))

        x, y = (torch.cat(parts) for parts in zip(*two_domains(seed), strict=True))
        loss, coverage, similarity = textbook_terms(network, x, y)
        optimizer.zero_grad()
        (loss - coverage_weight * coverage + similarity_weight * (1 - similarity)).backward()
        optimizer.step()

        assert returned == {
            "loss": pytest.approx(loss.item(), rel=1e-10),
            "coverage": pytest.approx(coverage.item(), rel=1e-10),
            "similarity": pytest.approx(similarity.item(), rel=1e-10),
        }
        for ours, expected in zip(algorithm.network.parameters(), network.parameters(), strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-8, atol=1e-10)


def test_error_for_a_network_without_relu() -> None:
    network = Network(nn.Sequential(nn.Flatten(), nn.Tanh()), nn.Linear(48, 3), input_shape=(3, 4, 4), num_features=48)
    with pytest.raises(ValueError, match=r"network has no torch\.nn\.ReLU layers"):
        NCDG(network, num_domains=2)


def test_relu6_counts_as_relu_does() -> None:
    measured = []
    for kind in (nn.ReLU, nn.ReLU6):
        torch.manual_seed(0)
        featurizer = nn.Sequential(nn.Flatten(), nn.Linear(48, 6), kind())
        network = Network(featurizer, nn.Linear(6, 3), input_shape=(3, 4, 4), num_features=6)
        algorithm = NCDG(network, num_domains=1, generator=torch.Generator().manual_seed(0))
        measured.append(algorithm.update([(torch.rand(4, 3, 4, 4), torch.tensor([0, 1, 2, 0]))]))
    # None of these activations reaches 6.
    assert measured[0] == measured[1]
    assert measured[0]["coverage"] > 0
