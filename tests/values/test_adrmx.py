"""ADRMX: every term of the loss, computed sample by sample and pair by pair."""

import copy
import math

import pytest
import torch
from tiny_problem import domains
from torch import Tensor, nn

from domainwise.algorithms import ADRMX
from domainwise.algorithms.adrmx import compute_contrastive_loss
from domainwise.networks import Network

LR, BETA1, SEED = 0.01, 0.3, 3
WEIGHTS = {"adversary_weight": 0.7, "domain_weight": 0.6, "contrastive_weight": 0.4, "remix_weight": 1.3}
SIZES = (5, 2, 4)


def fresh(**given) -> ADRMX:
    torch.manual_seed(0)
    featurizer = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.Tanh())
    network = Network(featurizer, nn.Linear(8, 3), input_shape=(3, 4, 4), num_features=8)
    generator = torch.Generator().manual_seed(SEED)
    settings = {"lr": LR, "beta1": BETA1, "width": 5, "depth": 3, **WEIGHTS, **given}
    algorithm = ADRMX(network, num_domains=3, generator=generator, **settings)
    # A start at which the difference of the features is not zero, and the few units of the heads are active.
    algorithm.domain_featurizer[1].weight.data += 0.3 * torch.randn(8, 48)
    for head in (algorithm.network.classifier, algorithm.invariant_classifier, algorithm.domain_classifier):
        for layer in head:
            if isinstance(layer, nn.Linear):
                layer.bias.data += 0.5
    return algorithm


def cross_entropy(logits: Tensor, label: int) -> Tensor:
    return logits.exp().sum().log() - logits[label]


def mean(values: list[Tensor]) -> Tensor:
    return sum(values) / len(values)


def contrastive_loss(features: list[Tensor], labels: list[int], domain: list[int]) -> Tensor:
    """Supervised contrastive loss in which pairs within a domain and pairs across domains both weigh one half."""
    units = [feature / feature.dot(feature).sqrt() for feature in features]
    losses = []
    for i, unit in enumerate(units):
        others = [j for j in range(len(units)) if j != i]
        terms = {j: (0.5 if domain[j] == domain[i] else 1 - 0.5) * (unit.dot(units[j]) / 0.07).exp() for j in others}
        positives = [j for j in others if labels[j] == labels[i]]
        if positives:
            total = sum(terms.values()) + 1e-5
            losses.append(-sum((terms[j] / total + 1e-5).log() for j in positives) / len(positives))
    return sum(losses) / (len(losses) + 1) if losses else features[0].new_zeros(())


def draw_pairs(variant: str, labels: list[int], domain: list[int], random: torch.Generator) -> list[tuple[int, int]]:
    pairs = []
    if variant == "paper":
        order = torch.randperm(len(labels), generator=random).tolist()
        for label in range(3):
            members = [index for index in order if labels[index] == label]
            elsewhere = [index for index in members if domain[index] != domain[members[0]]]
            if elsewhere:
                pairs.append((members[0], elsewhere[0]))
        return pairs
    for label in range(3):
        if labels.count(label) >= 2:
            permutation = torch.randperm(labels.count(label), generator=random)
            pairs.append((int(permutation[0]), int(permutation[1])))  # of the batch, not of the class
    return pairs


def textbook_losses(algorithm: ADRMX, batches, draw) -> tuple[Tensor, Tensor, Tensor]:
    """Return the cross-entropy, the discriminator's loss and the network's loss."""
    samples = [(x, int(y), index) for index, (xs, ys) in enumerate(batches) for x, y in zip(xs, ys, strict=True)]
    labels, domain = [y for _, y, _ in samples], [index for _, _, index in samples]
    full = [algorithm.network.featurizer(x[None])[0] for x, _, _ in samples]
    specific = [algorithm.domain_featurizer(x[None])[0] for x, _, _ in samples]
    invariant = [one - other for one, other in zip(full, specific, strict=True)]

    def loss_of(head: nn.Module, features: list[Tensor], targets: list[int]) -> Tensor:
        return mean([cross_entropy(head(each), target) for each, target in zip(features, targets, strict=True)])

    loss = loss_of(algorithm.network.classifier, full, labels)
    discriminator_loss = loss_of(algorithm.discriminator, invariant, domain)
    total = loss + loss_of(algorithm.invariant_classifier, invariant, labels)
    total = total + WEIGHTS["domain_weight"] * loss_of(algorithm.domain_classifier, specific, domain)
    for one, other in draw(labels, domain):
        remixed = cross_entropy(algorithm.network.classifier(invariant[one] + specific[other]), labels[one])
        total = total + WEIGHTS["remix_weight"] * remixed / 3
    for features in (full, invariant):
        total = total + WEIGHTS["contrastive_weight"] * contrastive_loss(features, labels, domain)
    return loss, discriminator_loss, total - WEIGHTS["adversary_weight"] * discriminator_loss


def step(optimizer: torch.optim.Adam, loss: Tensor) -> None:
    (group,) = optimizer.param_groups
    for parameter, gradient in zip(group["params"], torch.autograd.grad(loss, group["params"]), strict=True):
        parameter.grad = gradient
    optimizer.step()


@pytest.mark.parametrize("variant", ["paper", "domainbed"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize(("discriminator_steps", "turns"), [(1, "ndndndn"), (2, "dnddndd")])
def test_turns_follow_the_textbook(discriminator_steps: int, turns: str, weight_decay: float, variant: str) -> None:
    algorithm = fresh(variant=variant, discriminator_steps=discriminator_steps, weight_decay=weight_decay)
    expected = copy.deepcopy(algorithm)
    betas = (BETA1, 0.9)
    trained = [each for name, each in expected.named_parameters() if not name.startswith("discriminator.")]
    optimizer = torch.optim.Adam(trained, lr=LR, betas=betas, weight_decay=weight_decay)
    discriminator_optimizer = torch.optim.Adam(expected.discriminator.parameters(), lr=LR, betas=betas)
    random = torch.Generator().manual_seed(SEED)
    for seed, turn in enumerate(turns):
        before = copy.deepcopy(algorithm.state_dict())
        batches = domains(SIZES, seed)
        returned = algorithm.update(batches)

        def draw(labels: list[int], domain: list[int], turn: str = turn) -> list[tuple[int, int]]:
            return draw_pairs(variant, labels, domain, random) if turn == "n" else []

        loss, discriminator_loss, total = textbook_losses(expected, batches, draw)
        if turn == "d":
            step(discriminator_optimizer, discriminator_loss)
        else:
            step(optimizer, total)
        assert returned == {
            "loss": pytest.approx(loss.item(), rel=1e-9),
            "discriminator_loss": pytest.approx(discriminator_loss.item(), rel=1e-9),
        }
        torch.testing.assert_close(list(algorithm.parameters()), list(expected.parameters()), rtol=1e-8, atol=1e-10)
        for name, parameter in algorithm.named_parameters():
            assert torch.equal(parameter, before[name]) == (name.startswith("discriminator.") == (turn == "n")), name


def test_remixed_samples_are_of_one_class_and_two_domains() -> None:
    algorithm = fresh()
    labels, domain = [0, 0, 0, 0, 1, 1, 2, 1], [0, 0, 1, 2, 0, 0, 1, 0]
    pairs = [pair for _ in range(300) for pair in algorithm._draw_pairs(labels, domain)]
    # Class 1 is in one domain only, and class 2 has one sample.
    assert len(pairs) == 300
    assert set(pairs) == {(0, 2), (0, 3), (1, 2), (1, 3), (2, 0), (2, 1), (2, 3), (3, 0), (3, 1), (3, 2)}


def test_contrastive_loss_by_hand() -> None:
    """Orthogonal features: two of class 0, one of class 1, which has no other of its class."""
    features, y = torch.tensor([[2.0, 0.0, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 4.0]]), torch.tensor([0, 0, 1])
    # All similarities are 0, so each term is 1/2 and the share of the only positive 1/2 / (1 + 1e-5).
    each = -math.log(0.5 / (1 + 1e-5) + 1e-5)
    assert compute_contrastive_loss(features, y).item() == pytest.approx(2 * each / 3, rel=1e-12)


def test_heads_and_copies() -> None:
    torch.manual_seed(0)
    featurizer = nn.Sequential(nn.Flatten(), nn.Linear(48, 8))
    network = Network(featurizer, nn.Linear(8, 3), input_shape=(3, 4, 4), num_features=8)
    algorithm = ADRMX(network, num_domains=2)
    assert algorithm.network.featurizer is featurizer
    assert torch.equal(algorithm.domain_featurizer[1].weight, featurizer[1].weight)
    heads = (algorithm.network.classifier, algorithm.invariant_classifier, algorithm.domain_classifier)
    for head, outputs in zip(heads, (3, 3, 2), strict=True):
        sizes = [(layer.in_features, layer.out_features) for layer in head if isinstance(layer, nn.Linear)]
        assert sizes == [(8, 4), (4, 2), (2, outputs)]
        assert sum(isinstance(layer, nn.ReLU) for layer in head) == 2
    layers = [layer for layer in algorithm.discriminator if isinstance(layer, nn.Linear)]
    assert [layer.out_features for layer in layers] == [256] * 8 + [2]
