"""GUT: rounds of adversarial copies that join the training data, against plain loops over images and their copies."""

import copy

import pytest
import torch
from tiny_problem import two_domains
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms import GUT
from domainwise.algorithms.gut import Pool
from domainwise.networks import Network

LR, WEIGHT_DECAY, SIZES, SEED = 0.01, 0.1, (6, 3), 3
POOL, ASCENT_STEPS, ASCENT_STEP_SIZE, DISTANCE_WEIGHT = 10, 3, 0.8, 0.5


def fresh() -> GUT:
    """With dropout, which the ascent must switch off: otherwise an image would have a distance to itself."""
    torch.manual_seed(0)
    featurizer = nn.Sequential(nn.Flatten(), nn.Linear(48, 6), nn.Tanh(), nn.Dropout(0.3))
    return GUT(
        Network(featurizer, nn.Linear(6, 3), input_shape=(3, 4, 4), num_features=6),
        num_domains=2,
        domain_sizes=SIZES,
        generator=torch.Generator().manual_seed(SEED),
        lr=LR,
        weight_decay=WEIGHT_DECAY,
        rounds=2,
        round_every=2,
        pool=POOL,
        ascent_steps=ASCENT_STEPS,
        ascent_step_size=ASCENT_STEP_SIZE,
        distance_weight=DISTANCE_WEIGHT,
    )


def adversarial_copy(network: Network, start: Tensor, label: int) -> Tensor:
    """Return the copy of one image, rounded to bytes."""
    linear = network.featurizer[1]
    anchor = (linear.weight @ start.flatten() + linear.bias).tanh().detach()
    x = start.clone()
    for _ in range(ASCENT_STEPS):
        x.requires_grad_()
        feature = (linear.weight @ x.flatten() + linear.bias).tanh()
        logits = network.classifier(feature)
        gain = logits.exp().sum().log() - logits[label]
        cost = 0.5 * (feature - anchor).dot(feature - anchor)
        (gradient,) = torch.autograd.grad(gain - DISTANCE_WEIGHT * cost, x)
        x = (x + ASCENT_STEP_SIZE * gradient).detach().clamp(0, 1)
    return (x * 255).round()


def test_updates_follow_the_textbook() -> None:
    algorithm = fresh()
    network = copy.deepcopy(algorithm.network)
    optimizer = torch.optim.Adam(network.parameters(), lr=LR, weight_decay=WEIGHT_DECAY)
    draws = torch.Generator().manual_seed(SEED)
    pools: list[list[tuple[Tensor, int]]] = [[], []]
    wanted, replaced = 0, 0
    # Seven samples per update: a round of ten takes two updates, and there is no third round.
    for t, size in enumerate([0, 7, 10, 17, 20, 20, 20], start=1):
        torch.manual_seed(t)  # for dropout
        returned = algorithm.update(two_domains(t))

        samples = [(x, y, e) for e, batch in enumerate(two_domains(t)) for x, y in zip(*batch, strict=True)]
        if pools[0] or pools[1]:
            coin, which = torch.rand(2, 7, generator=draws, dtype=torch.float64)
            for i, (_, _, e) in enumerate(samples):
                if coin[i] < len(pools[e]) / (len(pools[e]) + SIZES[e]):
                    image, label = pools[e][int(which[i] * len(pools[e]))]
                    samples[i] = (image / 255, label, e)
                    replaced += 1
        x, y = torch.stack([x for x, _, _ in samples]), torch.stack([y for _, y, _ in samples])
        torch.manual_seed(t)
        loss = F.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if t in (2, 4):
            wanted = POOL
        if wanted:
            for i in torch.randperm(7, generator=draws)[:wanted].tolist():
                image, label, e = samples[i]
                pools[e].append((adversarial_copy(network, image, label), label))
                wanted -= 1

        assert returned == {"loss": pytest.approx(loss.item(), rel=1e-10), "pool": size}
        for ours, expected in zip(algorithm.network.parameters(), network.parameters(), strict=True):
            torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-11)
        if size:
            copies = [copied for of_domain in pools for copied in of_domain]
            assert algorithm.pool.images.dtype == torch.uint8
            assert torch.equal(algorithm.pool.images.double(), torch.stack([image for image, _ in copies]))
            assert algorithm.pool.labels.tolist() == [label for _, label in copies]
            assert algorithm.pool.domains.tolist() == [0] * len(pools[0]) + [1] * len(pools[1])
    assert replaced > 10
    assert all(module.training for module in algorithm.network.modules())


def test_the_replacement_rate_matches_the_pool_size() -> None:
    """10 copies and 30 images: a quarter is replaced; 15 and 5: three quarters; all copies equally often."""
    pool = Pool([30, 5])
    # Added out of order; each has its own gray value, which is also its label.
    domain = torch.tensor([1, 0] * 10 + [1] * 5)
    number = torch.arange(25)
    pool.add((number / 255).reshape(25, 1, 1, 1), number, domain)
    draws = 20_000
    of_draw = torch.tensor([0, 1]).repeat(draws)
    x, y = torch.full((2 * draws, 1, 1, 1), 0.5), torch.full((2 * draws,), -1)
    mixed, labels = pool.replace_images(x, y, of_draw, torch.Generator().manual_seed(0))
    for e, share, size in ((0, 10 / 40, 10), (1, 15 / 20, 15)):
        drawn = labels[of_draw == e]
        counts = drawn[drawn >= 0].bincount(minlength=25)
        assert counts.sum().item() / draws == pytest.approx(share, abs=0.015)
        assert counts[domain != e].sum() == 0
        torch.testing.assert_close(counts[domain == e] / draws, torch.full((size,), share / size), rtol=0, atol=0.007)
    expected = torch.where(labels >= 0, labels / 255, 0.5)
    torch.testing.assert_close(mixed.flatten(), expected)
    assert (x == 0.5).all()
    assert (y == -1).all()


def test_resume_from_a_state_saved_within_a_round() -> None:
    uninterrupted, resumed = fresh(), fresh()
    for t in (1, 2):
        uninterrupted.update(two_domains(t))
    assert len(uninterrupted.pool) == 7  # of ten
    state = copy.deepcopy(uninterrupted.state_dict())
    resumed.load_state_dict(state)
    for t in (3, 4, 5, 6):
        torch.manual_seed(t)
        returned = uninterrupted.update(two_domains(t))
        torch.manual_seed(t)
        assert resumed.update(two_domains(t)) == returned
    assert len(resumed.pool) == 20
    assert torch.equal(resumed.pool.images, uninterrupted.pool.images)
    for ours, expected in zip(resumed.network.parameters(), uninterrupted.network.parameters(), strict=True):
        assert torch.equal(ours, expected)
