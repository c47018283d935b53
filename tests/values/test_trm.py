"""TRM: a linear predictor per domain, trained by SGD, with Hessian-vector products by two backward passes."""

import copy

import pytest
import torch
from tiny_problem import domains
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms import TRM
from domainwise.networks import Network

IMPLICIT_WEIGHT, STEP_SIZE, LR, WEIGHT_DECAY, UPDATES = 0.3, 0.4, 0.01, 0.1, 3


def feature_network(scale: float = 1.0) -> Network:
    torch.manual_seed(0)
    featurizer = nn.Sequential(nn.Flatten(), nn.Linear(48, 4), nn.ReLU())
    featurizer[1].weight.data *= scale
    return Network(featurizer, nn.Linear(4, 3), input_shape=(3, 4, 4), num_features=4)


def inverse_hessian_product(vector: Tensor, predictor: nn.Linear, features: Tensor, y: Tensor, variant: str) -> Tensor:
    """Return v_0 + v_1 + ... + v_10 with v_j = v_(j-1) - H v_(j-1); in DomainBed v_1 + v_1 + v_2 + ..."""
    terms = [vector]
    for _ in range(10):
        loss = F.cross_entropy(predictor(features.detach()), y)
        (gradient,) = torch.autograd.grad(loss, predictor.weight, create_graph=True)
        (product,) = torch.autograd.grad((gradient * terms[-1]).sum(), predictor.weight)
        terms.append(terms[-1] - product)
        counted = [terms[1], *terms[1:]] if variant == "domainbed" else terms
        if sum(counted).abs().max() > 10:
            break
    return sum(counted)


def textbook_transfer_risk(network: Network, predictors, weights: Tensor, batches, variant: str) -> Tensor:
    """Return the transfer risk, fit the predictors and update the domain weights, all in place."""
    count = len(batches)
    features = [network.featurizer(x) if len(y) else None for x, y in batches]
    present = [index for index in range(count) if features[index] is not None]
    weights /= weights.sum(1, keepdim=True)
    for index in present:
        optimizer = torch.optim.SGD(predictors[index].parameters(), lr=0.1)
        for _ in range(30):
            optimizer.zero_grad()
            F.cross_entropy(predictors[index](features[index].detach()), batches[index][1]).backward()
            optimizer.step()
    total = torch.zeros(())
    for q in present:
        others = [index for index in present if index != q]
        losses = {p: F.cross_entropy(predictors[q](features[p]), batches[p][1]) for p in [q, *others]}
        shares = {p: weights[q, p].item() / sum(weights[q, o].item() for o in others) for p in others}
        transferred = sum(shares[p] * losses[p] for p in others)
        (elsewhere,) = torch.autograd.grad(transferred, predictors[q].weight, retain_graph=True)
        (own,) = torch.autograd.grad(losses[q], predictors[q].weight, create_graph=True)
        direction = inverse_hessian_product(elsewhere, predictors[q], features[q], batches[q][1], variant)
        total = total + transferred - IMPLICIT_WEIGHT * (direction.detach() * own).sum()
        for p in others:
            exponent = losses[p].item() * (shares[p] if variant == "domainbed" else 1)
            weights[q, p] *= torch.tensor(STEP_SIZE * exponent).exp()
    return total / len(present)


@pytest.mark.parametrize("scale", [1.0, 8.0])  # with the larger one, some series diverge
@pytest.mark.parametrize("variant", ["standard", "domainbed"])
@pytest.mark.parametrize("anneal_steps", [0, 2])
@pytest.mark.parametrize("sizes", [(5, 2), (5, 2, 3), (5, 0, 3, 1)])
def test_updates_follow_the_textbook(sizes: tuple[int, ...], anneal_steps: int, variant: str, scale: float) -> None:
    network = feature_network(scale)
    algorithm = TRM(
        network,
        num_domains=len(sizes),
        variant=variant,
        implicit_weight=IMPLICIT_WEIGHT,
        anneal_steps=anneal_steps,
        group_step_size=STEP_SIZE,
        lr=LR,
        weight_decay=WEIGHT_DECAY,
    )
    expected = copy.deepcopy(network)
    optimizer = torch.optim.Adam(expected.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    predictors = [nn.Linear(4, 3) for _ in sizes]
    for index, predictor in enumerate(predictors):
        predictor.weight.data.copy_(algorithm.predictor_weights[index])
        predictor.bias.data.copy_(algorithm.predictor_biases[index])
    weights = torch.ones(len(sizes), len(sizes)) - torch.eye(len(sizes))
    for done in range(UPDATES):
        batches = domains(sizes, done)
        returned = algorithm.update(batches)
        loss = F.cross_entropy(expected(torch.cat([x for x, _ in batches])), torch.cat([y for _, y in batches]))
        risk = torch.zeros(())
        if done >= anneal_steps:
            risk = textbook_transfer_risk(expected, predictors, weights, batches, variant)
        optimizer.zero_grad()
        (loss + risk).backward()
        optimizer.step()
        assert returned == pytest.approx({"loss": loss.item(), "transfer_risk": risk.item()}, rel=1e-8)
        torch.testing.assert_close(list(network.parameters()), list(expected.parameters()), rtol=1e-7, atol=1e-10)
        torch.testing.assert_close(algorithm.domain_weights, weights, rtol=1e-9, atol=1e-12)
        for index, predictor in enumerate(predictors):
            torch.testing.assert_close(algorithm.predictor_weights[index], predictor.weight.data, rtol=1e-8, atol=1e-11)
            torch.testing.assert_close(algorithm.predictor_biases[index], predictor.bias.data, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize(("variant", "total"), [("standard", 1 - 7 + 49), ("domainbed", -7 - 7)])
def test_a_diverging_series_stops_beyond_ten(variant: str, total: float) -> None:
    """One image with feature 4 and probabilities of 1/2 has H = 4^2 / 2 = 8 along (1, -1), so terms grow by -7."""
    network = Network(nn.Flatten(), nn.Linear(1, 2), input_shape=(1, 1, 1), num_features=1)
    algorithm = TRM(network, num_domains=2, variant=variant)
    target, features = torch.tensor([[1.0], [-1.0]]), torch.tensor([[4.0]])
    direction = algorithm._apply_inverse_hessian(target, features, torch.zeros(2, 1), torch.zeros(2))
    assert direction.flatten().tolist() == pytest.approx([total, -total], rel=1e-12)


def test_one_domain_alone_is_erm() -> None:
    network = feature_network()
    expected = copy.deepcopy(network)
    optimizer = torch.optim.Adam(expected.parameters(), lr=LR)
    algorithm = TRM(network, num_domains=2, anneal_steps=0, lr=LR)
    for seed in range(3):
        returned = algorithm.update(domains((5, 0), seed))
        x, y = domains((5, 0), seed)[0]
        optimizer.zero_grad()
        F.cross_entropy(expected(x), y).backward()
        optimizer.step()
        assert returned["transfer_risk"] == 0
    torch.testing.assert_close(list(network.parameters()), list(expected.parameters()))
