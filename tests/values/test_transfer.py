"""Transfer: two steps of the network and the projected ascent of the adversary, with Adam written out."""

import math

import pytest
import torch
from tiny_problem import domains
from torch import Tensor, nn

from domainwise.algorithms import Transfer
from domainwise.networks import Network

LR, WEIGHT_DECAY, GAP_WEIGHT, STEP_SIZE = 0.01, 0.1, 0.7, 0.5
Weights = dict[str, Tensor]


class TextbookAdam:
    """Adam for weights by name; those without a gradient keep their moments and their step count."""

    def __init__(self) -> None:
        self.state: dict[str, tuple[int, Tensor, Tensor]] = {}

    def step(self, weights: Weights, gradients: Weights) -> None:
        for name, gradient in gradients.items():
            gradient = gradient + WEIGHT_DECAY * weights[name].detach()
            count, first, second = self.state.get(name, (0, torch.zeros_like(gradient), torch.zeros_like(gradient)))
            count, first, second = count + 1, 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
            self.state[name] = count, first, second
            change = LR * (first / (1 - 0.9**count)) / ((second / (1 - 0.999**count)).sqrt() + 1e-8)
            weights[name] = (weights[name] - change).detach().requires_grad_()


def feature_network() -> Network:
    torch.manual_seed(0)
    featurizer = nn.Sequential(nn.Flatten(), nn.Linear(48, 4), nn.Tanh())
    return Network(featurizer, nn.Linear(4, 3), input_shape=(3, 4, 4), num_features=4)


def sample_losses(features: Weights, head: Weights, x: Tensor, y: Tensor) -> list[Tensor]:
    losses = []
    for image, label in zip(x.flatten(1), y.tolist(), strict=True):
        feature = (features["weight"] @ image + features["bias"]).tanh()
        logits = head["weight"] @ feature + head["bias"]
        losses.append(logits.exp().sum().log() - logits[label])
    return losses


def domain_gap(features: Weights, head: Weights, batches) -> Tensor:
    means = [sum(sample_losses(features, head, x, y)) / len(y) for x, y in batches if len(y)]
    return max(means) - min(means)


def gradients_of(loss: Tensor, weights: Weights) -> Weights:
    return dict(zip(weights, torch.autograd.grad(loss, list(weights.values()), retain_graph=True), strict=True))


def textbook_update(features: Weights, head: Weights, adversary: Weights, adams, batches, radius, steps) -> dict:
    """Change the weights of one update in place, and return what it measures."""
    losses = [loss for x, y in batches for loss in sample_losses(features, head, x, y)]
    loss = sum(losses) / len(losses)
    of_features, of_head = gradients_of(loss, features), gradients_of(loss, head)
    adams[0].step(features, of_features)
    adams[1].step(head, of_head)

    adams[0].step(features, gradients_of(GAP_WEIGHT * domain_gap(features, adversary, batches), features))

    adversary.update({name: weight.detach().clone().requires_grad_() for name, weight in head.items()})
    for _ in range(steps):
        gap = domain_gap(features, adversary, batches)
        for name, gradient in gradients_of(GAP_WEIGHT * gap, adversary).items():
            adversary[name] = (adversary[name] + STEP_SIZE * gradient).detach()
        distance = math.sqrt(sum(((adversary[name] - head[name]) ** 2).sum().item() for name in head))
        shrink = min(1.0, radius / distance) if distance else 1.0
        for name in head:
            adversary[name] = (head[name] + shrink * (adversary[name] - head[name])).detach().requires_grad_()
    return {"loss": loss.item(), "gap": gap.item()}


def named(layer: nn.Linear) -> Weights:
    return {name: weight.detach().clone().requires_grad_() for name, weight in layer.named_parameters()}


@pytest.mark.parametrize("sizes", [(5, 2), (5, 1, 3), (5, 0, 3), (4, 0)])
@pytest.mark.parametrize(("radius", "steps"), [(100.0, 3), (0.2, 1), (0.2, 4)])
def test_updates_follow_the_textbook(sizes: tuple[int, ...], radius: float, steps: int) -> None:
    network = feature_network()
    features, head, adversary = named(network.featurizer[1]), named(network.classifier), named(network.classifier)
    adams = TextbookAdam(), TextbookAdam()
    algorithm = Transfer(
        network,
        num_domains=len(sizes),
        lr=LR,
        weight_decay=WEIGHT_DECAY,
        gap_weight=GAP_WEIGHT,
        radius=radius,
        ascent_steps=steps,
        ascent_step_size=STEP_SIZE,
    )
    for seed in range(4):
        batches = domains(sizes, seed)
        returned = algorithm.update(batches)
        measured = textbook_update(features, head, adversary, adams, batches, radius, steps)
        assert returned == pytest.approx(measured, rel=1e-9, abs=1e-12)
        for layer, expected in (
            (network.featurizer[1], features),
            (network.classifier, head),
            (algorithm.adversary, adversary),
        ):
            for name, weight in layer.named_parameters():
                torch.testing.assert_close(weight.detach(), expected[name].detach(), rtol=1e-8, atol=1e-10)


def test_the_adversary_stays_within_the_radius() -> None:
    network = feature_network()
    algorithm = Transfer(network, num_domains=2, radius=0.05, ascent_step_size=10.0)
    algorithm.update(domains((5, 2), 0))
    pairs = zip(algorithm.adversary.parameters(), network.classifier.parameters(), strict=True)
    distance = math.sqrt(sum(((one - other) ** 2).sum().item() for one, other in pairs))
    assert distance == pytest.approx(0.05, rel=1e-12)


def test_one_feature_by_hand() -> None:
    """Two domains of class 0, with the feature 1 and the feature -1; the rows of the head are 0.5 and -0.5."""
    network = Network(nn.Flatten(), nn.Linear(1, 2, bias=False), input_shape=(1, 1, 1), num_features=1)
    network.classifier.weight.data = torch.tensor([[0.5], [-0.5]])
    algorithm = Transfer(network, num_domains=2, lr=0.0, ascent_steps=1, ascent_step_size=0.1, gap_weight=2.0)
    batches = [(torch.full((2, 1, 1, 1), value), torch.zeros(2, dtype=torch.long)) for value in (1.0, -1.0)]
    # With u the difference of the rows, the gap is log(1 + exp(u)) - log(1 + exp(-u)) = u: one step of 0.1 * 2 each.
    assert algorithm.update(batches)["gap"] == pytest.approx(1.0, rel=1e-12)
    torch.testing.assert_close(algorithm.adversary.weight.detach(), torch.tensor([[0.7], [-0.7]]))
