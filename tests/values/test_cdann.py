"""CDANN: a discriminator that knows the class, against losses and gradients computed sample by sample."""

import copy
import math

import pytest
import torch
from tiny_problem import domains
from torch import Tensor, nn

from domainwise.algorithms import CDANN
from domainwise.networks import Network

LR, WEIGHT_DECAY, DISCRIMINATOR_WEIGHT_DECAY, ADVERSARY_WEIGHT, BETA1 = 0.01, 0.1, 0.2, 0.7, 0.3
SIZES = (5, 2, 3)


def fresh(**given) -> CDANN:
    torch.manual_seed(0)
    featurizer = nn.Sequential(nn.Flatten(), nn.Linear(48, 4), nn.Tanh())
    network = Network(featurizer, nn.Linear(4, 3), input_shape=(3, 4, 4), num_features=4)
    return CDANN(
        network,
        num_domains=3,
        lr=LR,
        weight_decay=WEIGHT_DECAY,
        beta1=BETA1,
        width=5,
        adversary_weight=ADVERSARY_WEIGHT,
        discriminator_weight_decay=DISCRIMINATOR_WEIGHT_DECAY,
        **given,
    )


def make_batches(seed: int) -> list[tuple[Tensor, Tensor]]:
    """Every third batch has no sample of the last class."""
    batches = domains(SIZES, seed)
    return [(x, y.clamp(max=1)) for x, y in batches] if seed % 3 == 0 else batches


def cross_entropy(logits: Tensor, label: int) -> Tensor:
    return logits.exp().sum().log() - logits[label]


def domain_scores(discriminator: nn.Module, feature: Tensor) -> Tensor:
    *hidden, last = [layer for layer in discriminator if isinstance(layer, nn.Linear)]
    for layer in hidden:
        feature = (layer.weight @ feature + layer.bias).clamp(min=0)
    return last.weight @ feature + last.bias


def textbook_losses(algorithm: CDANN, batches, gradient_penalty: float) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy, and the class-balanced domain loss with the gradient penalty."""
    network = algorithm.network
    labels = [int(label) for _, y in batches for label in y]
    losses, discriminator_loss = [], 0.0
    for domain, (xs, ys) in enumerate(batches):
        for x, y in zip(xs, ys.tolist(), strict=True):
            feature = network.featurizer(x[None])[0]
            losses.append(cross_entropy(network.classifier(feature), y))
            given = feature + algorithm.class_embeddings.weight[y]
            of_domain = cross_entropy(domain_scores(algorithm.discriminator, given), domain)
            (slope,) = torch.autograd.grad(of_domain, given, create_graph=True)
            discriminator_loss += of_domain / labels.count(y) / (max(labels) + 1)
            discriminator_loss += gradient_penalty * slope.dot(slope) / len(labels)
    return sum(losses) / len(losses), discriminator_loss


def step(optimizer: torch.optim.Adam, loss: Tensor) -> None:
    (group,) = optimizer.param_groups
    for parameter, gradient in zip(group["params"], torch.autograd.grad(loss, group["params"]), strict=True):
        parameter.grad = gradient
    optimizer.step()


@pytest.mark.parametrize("gradient_penalty", [0.0, 0.6])
@pytest.mark.parametrize("discriminator_lr", [None, 0.03])
@pytest.mark.parametrize(("discriminator_steps", "turns"), [(1, "ndndnd"), (2, "dnddnd")])
def test_turns_follow_the_textbook(discriminator_steps, turns, discriminator_lr, gradient_penalty) -> None:
    algorithm = fresh(
        discriminator_steps=discriminator_steps, discriminator_lr=discriminator_lr, gradient_penalty=gradient_penalty
    )
    expected = copy.deepcopy(algorithm)
    betas = (BETA1, 0.9)
    optimizer = torch.optim.Adam(expected.network.parameters(), lr=LR, betas=betas, weight_decay=WEIGHT_DECAY)
    discriminator_optimizer = torch.optim.Adam(
        [*expected.discriminator.parameters(), *expected.class_embeddings.parameters()],
        lr=discriminator_lr or LR,
        betas=betas,
        weight_decay=DISCRIMINATOR_WEIGHT_DECAY,
    )
    for seed, turn in enumerate(turns):
        before = copy.deepcopy(algorithm.state_dict())
        returned = algorithm.update(make_batches(seed))
        loss, discriminator_loss = textbook_losses(expected, make_batches(seed), gradient_penalty)
        if turn == "d":
            step(discriminator_optimizer, discriminator_loss)
        else:
            step(optimizer, loss - ADVERSARY_WEIGHT * discriminator_loss)

        assert returned == {
            "loss": pytest.approx(loss.item(), rel=1e-10),
            "discriminator_loss": pytest.approx(discriminator_loss.item(), rel=1e-10),
        }
        torch.testing.assert_close(list(algorithm.parameters()), list(expected.parameters()), rtol=1e-9, atol=1e-11)
        for name, parameter in algorithm.named_parameters():
            assert torch.equal(parameter, before[name]) == (name.startswith("network.") == (turn == "d")), name


def test_two_classes_by_hand() -> None:
    """Three samples of class 0 in domain 0, one of class 1 in domain 1; the scores are the class embeddings."""
    network = Network(nn.Flatten(), nn.Linear(2, 2), input_shape=(2, 1, 1), num_features=2)
    algorithm = CDANN(network, num_domains=2, depth=2, width=2)
    for layer in (algorithm.discriminator[0], algorithm.discriminator[-1]):
        nn.init.eye_(layer.weight)
        nn.init.zeros_(layer.bias)
    algorithm.class_embeddings.weight.data = torch.tensor([[math.log(3), 0.0], [0.0, math.log(4)]])
    batches = [(torch.zeros(n, 2, 1, 1), torch.full((n,), label)) for label, n in enumerate((3, 1))]
    # The discriminator gives 3/4 and 4/5 to the right domains, and each class counts half.
    expected = (math.log(4 / 3) + math.log(5 / 4)) / 2
    assert algorithm.update(batches)["discriminator_loss"] == pytest.approx(expected, rel=1e-12)
