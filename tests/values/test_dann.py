"""DANN: alternating updates of discriminator and network, against gradients computed sample by sample."""

import copy

import pytest
import torch
from tiny_problem import two_domains
from torch import Tensor, nn

from domainwise.algorithms import DANN
from domainwise.networks import Network

LR, WEIGHT_DECAY, DISCRIMINATOR_WEIGHT_DECAY, ADVERSARY_WEIGHT, BETA1 = 0.01, 0.1, 0.2, 0.7, 0.3
EXACT = {"rtol": 1e-9, "atol": 1e-11}


def fresh(**given) -> DANN:
    torch.manual_seed(0)
    featurizer = nn.Sequential(nn.Flatten(), nn.Linear(48, 4), nn.Tanh())
    network = Network(featurizer, nn.Linear(4, 3), input_shape=(3, 4, 4), num_features=4)
    return DANN(
        network,
        num_domains=2,
        lr=LR,
        weight_decay=WEIGHT_DECAY,
        beta1=BETA1,
        width=5,
        adversary_weight=ADVERSARY_WEIGHT,
        discriminator_weight_decay=DISCRIMINATOR_WEIGHT_DECAY,
        **given,
    )


def cross_entropy(logits: Tensor, label: int) -> Tensor:
    return logits.exp().sum().log() - logits[label]


def domain_scores(discriminator: nn.Module, feature: Tensor) -> Tensor:
    *hidden, last = [layer for layer in discriminator if isinstance(layer, nn.Linear)]
    for layer in hidden:
        feature = (layer.weight @ feature + layer.bias).clamp(min=0)
    return last.weight @ feature + last.bias


def textbook_losses(network, discriminator, batches, gradient_penalty: float) -> tuple[Tensor, Tensor]:
    """Return the cross-entropy and the penalized discriminator loss, both means over all seven samples."""
    losses, discriminator_losses = [], []
    for domain, (xs, ys) in enumerate(batches):
        for x, y in zip(xs, ys, strict=True):
            feature = network.featurizer(x[None])[0]
            losses.append(cross_entropy(network.classifier(feature), y))
            of_domain = cross_entropy(domain_scores(discriminator, feature), domain)
            (slope,) = torch.autograd.grad(of_domain, feature, create_graph=True)
            discriminator_losses.append(of_domain + gradient_penalty * slope.dot(slope))
    return sum(losses) / 7, sum(discriminator_losses) / 7


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
    network, discriminator = copy.deepcopy(algorithm.network), copy.deepcopy(algorithm.discriminator)
    betas = (BETA1, 0.9)
    optimizer = torch.optim.Adam(network.parameters(), lr=LR, betas=betas, weight_decay=WEIGHT_DECAY)
    discriminator_optimizer = torch.optim.Adam(
        discriminator.parameters(), lr=discriminator_lr or LR, betas=betas, weight_decay=DISCRIMINATOR_WEIGHT_DECAY
    )
    for seed, turn in enumerate(turns):
        before = copy.deepcopy(algorithm.state_dict())
        returned = algorithm.update(two_domains(seed))
        loss, discriminator_loss = textbook_losses(network, discriminator, two_domains(seed), gradient_penalty)
        if turn == "d":
            step(discriminator_optimizer, discriminator_loss)
        else:
            step(optimizer, loss - ADVERSARY_WEIGHT * discriminator_loss)

        assert returned == {
            "loss": pytest.approx(loss.item(), rel=1e-10),
            "discriminator_loss": pytest.approx(discriminator_loss.item(), rel=1e-10),
        }
        expected = [*network.parameters(), *discriminator.parameters()]
        for ours, theirs in zip(algorithm.parameters(), expected, strict=True):
            torch.testing.assert_close(ours, theirs, **EXACT)
        still = "network." if turn == "d" else "discriminator."
        for name, parameter in algorithm.named_parameters():
            assert torch.equal(parameter, before[name]) == name.startswith(still), name


def test_discriminator_layers() -> None:
    layers = list(fresh(depth=4, discriminator_dropout=0.1).discriminator)
    linear, inside = nn.Linear, [nn.Dropout, nn.ReLU, nn.Linear]
    assert [type(layer) for layer in layers] == [linear, *inside, *inside, *inside]
    sizes = [(layer.in_features, layer.out_features) for layer in layers if isinstance(layer, nn.Linear)]
    assert sizes == [(4, 5), (5, 5), (5, 5), (5, 2)]
    assert {layer.p for layer in layers if isinstance(layer, nn.Dropout)} == {0.1}
