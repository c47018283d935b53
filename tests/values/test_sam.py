"""SAM: the gradient at the worst weights nearby, written out, alone and on top of other methods."""

import copy
import math

import pytest
import torch
from sharpness_problem import LR, WEIGHT_DECAY, WrittenOutAdam, hidden_network, largest_difference, sharp_step
from tiny_problem import domains, linear_network
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms import ERM, MAT, MTL, SAM, UAT, Algorithm, Fishr, GroupDRO, Mixup
from domainwise.algorithms.sharpness import Sharpness

RADIUS, UPDATES, SIZES = 0.5, 4, (5, 2, 3)
COMMON = {"num_domains": 3, "lr": LR, "weight_decay": WEIGHT_DECAY}


def pooled_loss(network: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Cross-entropy over the samples of all domains, one domain at a time."""
    return sum(F.cross_entropy(network(x), y, reduction="sum") for x, y in batches) / sum(len(y) for _, y in batches)


def together(batches: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """All domains as one batch, for layers that look at the whole batch."""
    return [(torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches]))]


def assert_same_weights(network: nn.Module, expected: nn.Module) -> None:
    torch.testing.assert_close(list(network.parameters()), list(expected.parameters()), rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("radius", [0.05, RADIUS])
@pytest.mark.parametrize("is_setting", [False, True], ids=["sam", "erm with sam"])
def test_updates_follow_the_textbook(radius: float, is_setting: bool) -> None:
    network = hidden_network()
    expected = copy.deepcopy(network)
    if is_setting:
        algorithm: Algorithm = ERM(network, sharpness=Sharpness(radius), **COMMON)
    else:
        algorithm = SAM(network, radius=radius, **COMMON)
    adam = WrittenOutAdam(expected.parameters())
    for seed in range(UPDATES):
        batches = domains(SIZES, seed)
        returned = algorithm.update(batches)
        loss = sharp_step(expected, adam, lambda batches=batches: pooled_loss(expected, batches), radius)
        assert returned == {"loss": pytest.approx(loss, rel=1e-9)}
        assert_same_weights(network, expected)


def test_the_comparison_would_detect_a_gradient_at_the_original_weights() -> None:
    networks = [hidden_network() for _ in range(2)]
    algorithms = [ERM(networks[0], **COMMON), SAM(networks[1], radius=RADIUS, **COMMON)]
    for seed in range(UPDATES):
        for algorithm in algorithms:
            algorithm.update(domains(SIZES, seed))
    assert largest_difference(*networks) > LR / 10


def test_without_a_gradient_the_weights_stay_finite() -> None:
    network = hidden_network()
    for parameter in network.parameters():
        nn.init.zeros_(parameter)
    # Three classes, one image each: the gradient at zero weights is zero up to the classifier's.
    x, y = torch.ones(3, 3, 4, 4), torch.arange(3)
    algorithm = SAM(network, num_domains=1, radius=RADIUS, lr=LR)
    algorithm.update([(x, y)])
    assert all(torch.equal(parameter, torch.zeros_like(parameter)) for parameter in network.parameters())


def test_mat_trains_on_the_same_perturbed_batch_in_both_passes() -> None:
    count, epsilon, step_size, weight_step_size = 3, 0.5, 0.3, 0.7
    network = hidden_network()
    expected = copy.deepcopy(network)
    algorithm = MAT(
        network,
        input_shape=(3, 4, 4),
        generator=torch.Generator().manual_seed(2),
        sharpness=Sharpness(RADIUS),
        weights="domain",
        count=count,
        epsilon=epsilon,
        step_size=step_size,
        weight_step_size=weight_step_size,
        **COMMON,
    )
    adam = WrittenOutAdam(expected.parameters())
    deltas = list(algorithm.perturbation.deltas.detach().clone())
    logits = list(algorithm.perturbation.logits.detach().clone())

    def perturb(x: Tensor, deltas: Tensor, logits: Tensor) -> Tensor:
        weights = logits.exp() / logits.exp().sum()
        return (x + sum(weights[i] * deltas[i] for i in range(count))).clamp(0, 1)

    for seed in range(UPDATES):
        batches = domains(SIZES, seed)
        returned = algorithm.update(batches)
        perturbed = []
        for e, (x, y) in enumerate(batches):
            point = deltas[e].requires_grad_(), logits[e].requires_grad_()
            slopes = torch.autograd.grad(F.cross_entropy(expected(perturb(x, *point)), y), point)
            moved = []
            for i in range(count):
                delta = deltas[e][i].detach() + step_size * slopes[0][i] / slopes[0][i].norm()
                moved.append(delta * min(1, epsilon / delta.norm().item()))
            deltas[e], logits[e] = torch.stack(moved), logits[e].detach() + weight_step_size * slopes[1]
            perturbed.append((perturb(x, deltas[e], logits[e]), y))
        loss = sharp_step(expected, adam, lambda batches=perturbed: pooled_loss(expected, batches), RADIUS)
        assert returned == {"loss": pytest.approx(loss, rel=1e-9)}
        torch.testing.assert_close(algorithm.perturbation.deltas.detach(), torch.stack(deltas), rtol=1e-8, atol=1e-11)
        torch.testing.assert_close(algorithm.perturbation.logits.detach(), torch.stack(logits), rtol=1e-8, atol=1e-11)
        assert_same_weights(network, expected)


def test_groupdro_updates_its_weights_once_at_the_original_weights() -> None:
    step_size, network = 0.3, hidden_network()
    expected = copy.deepcopy(network)
    algorithm = GroupDRO(network, group_step_size=step_size, sharpness=Sharpness(RADIUS), **COMMON)
    adam, weights = WrittenOutAdam(expected.parameters()), [1.0, 1.0, 1.0]
    for seed in range(UPDATES):
        batches = domains(SIZES, seed)
        passes = []

        def grow_and_weigh(batches=batches, weights=weights, passes=passes) -> Tensor:
            """Return the loss with the weights that these losses lead to from those before the update."""
            losses = [F.cross_entropy(expected(x), y) for x, y in batches]
            grown = [weight * math.exp(step_size * loss.item()) for weight, loss in zip(weights, losses, strict=True)]
            passes.append([each / sum(grown) for each in grown])
            return sum(weight * loss for weight, loss in zip(passes[-1], losses, strict=True))

        returned = algorithm.update(batches)
        loss = sharp_step(expected, adam, grow_and_weigh, RADIUS)
        weights = passes[0]
        assert returned == {"loss": pytest.approx(loss, rel=1e-9)}
        assert algorithm.group_weights.tolist() == pytest.approx(weights, rel=1e-9)
        assert_same_weights(network, expected)


def test_mtl_moves_its_embeddings_once_at_the_original_weights() -> None:
    ema = 0.4
    torch.manual_seed(1)
    algorithm = MTL(hidden_network(), ema=ema, sharpness=Sharpness(RADIUS), **COMMON)
    network = algorithm.network
    expected = copy.deepcopy(network)
    adam, embeddings = WrittenOutAdam(expected.parameters()), list(torch.zeros(3, 6))
    for seed in range(UPDATES):
        batches = domains(SIZES, seed)
        passes = []

        def embed_and_classify(batches=batches, embeddings=embeddings, passes=passes) -> Tensor:
            features = [expected.featurizer(x) for x, _ in batches]
            means = [ema * part.mean(0) + (1 - ema) * old for part, old in zip(features, embeddings, strict=True)]
            passes.append([mean.detach() for mean in means])
            return sum(
                F.cross_entropy(expected.classifier(torch.cat([part, mean.expand_as(part)], 1)), y)
                for part, mean, (_, y) in zip(features, means, batches, strict=True)
            )

        algorithm.update(batches)
        sharp_step(expected, adam, embed_and_classify, RADIUS)
        embeddings = passes[0]
        torch.testing.assert_close(algorithm.embeddings, torch.stack(embeddings), rtol=1e-8, atol=1e-11)
        assert_same_weights(network, expected)


def test_fishr_adds_to_its_sums_once() -> None:
    settings = {"ema": 0.5, "anneal_steps": 0, "penalty_weight": 100.0, **COMMON}
    plain = Fishr(hidden_network(), **settings)
    sharp = Fishr(hidden_network(), sharpness=Sharpness(RADIUS), **settings)
    for algorithm in (plain, sharp):
        algorithm.update(domains(SIZES, 0))
    assert plain.variance_sums.abs().max() > 0
    # The weights are the same before the first update, and only the first pass counts.
    torch.testing.assert_close(sharp.variance_sums, plain.variance_sums, rtol=1e-12, atol=0)


def test_live_batch_norm_keeps_the_statistics_of_the_first_pass() -> None:
    network = hidden_network(with_batch_norm=True)
    expected = copy.deepcopy(network)
    algorithm = SAM(network, radius=RADIUS, **COMMON)
    adam = WrittenOutAdam(expected.parameters())
    norm = expected.featurizer[2]
    mean, variance = torch.zeros(6), torch.ones(6)
    for seed in range(UPDATES):
        batch = together(domains(SIZES, seed))
        hidden = expected.featurizer[1](batch[0][0].flatten(1)).detach()
        mean = 0.9 * mean + 0.1 * hidden.mean(0)
        variance = 0.9 * variance + 0.1 * hidden.var(0)
        algorithm.update(domains(SIZES, seed))
        sharp_step(expected, adam, lambda batch=batch: pooled_loss(expected, batch), RADIUS)
        assert_same_weights(network, expected)
        torch.testing.assert_close(network.featurizer[2].running_mean, mean, rtol=1e-8, atol=1e-11)
        torch.testing.assert_close(network.featurizer[2].running_var, variance, rtol=1e-8, atol=1e-11)
        assert network.featurizer[2].num_batches_tracked == seed + 1
    # The textbook ran both passes in train mode, and its own statistics are those of two passes.
    assert norm.num_batches_tracked == 2 * UPDATES


def test_both_passes_have_the_same_dropout() -> None:
    network = hidden_network(dropout=0.5)
    expected = copy.deepcopy(network)
    algorithm = SAM(network, radius=RADIUS, **COMMON)
    adam = WrittenOutAdam(expected.parameters())
    for seed in range(UPDATES):
        batch = together(domains(SIZES, seed))
        algorithm.dropout_seed = 7 + seed
        algorithm.seed_dropout_()
        algorithm.update(domains(SIZES, seed))

        def seeded_loss(batch=batch, seed=seed) -> Tensor:
            torch.manual_seed(7 + seed)
            return pooled_loss(expected, batch)

        sharp_step(expected, adam, seeded_loss, RADIUS)
        assert_same_weights(network, expected)


def test_steps_per_domain_each_have_their_own_dropout_in_both_passes() -> None:
    # With radius 0, UAT is ERM on one domain after the other; index e of the update has dropout seed + e.
    network = hidden_network(dropout=0.5)
    expected = copy.deepcopy(network)
    algorithm = UAT(
        network, input_shape=(3, 4, 4), sharpness=Sharpness(RADIUS), order="sequential", epsilon=0.0, **COMMON
    )
    adam = WrittenOutAdam(expected.parameters())
    for seed in range(2):
        algorithm.dropout_seed = 10 * seed
        algorithm.update(domains(SIZES, seed))
        for index, batch in enumerate(domains(SIZES, seed)):

            def seeded_loss(batch=batch, dropout_seed=10 * seed + index) -> Tensor:
                torch.manual_seed(dropout_seed)
                return pooled_loss(expected, [batch])

            sharp_step(expected, adam, seeded_loss, RADIUS)
        assert_same_weights(network, expected)


def test_both_passes_have_the_same_random_draws() -> None:
    def updated(sharpness: Sharpness | None) -> tuple[list[Tensor], Tensor]:
        generator = torch.Generator().manual_seed(3)
        algorithm = Mixup(hidden_network(), generator=generator, sharpness=sharpness, **COMMON)
        algorithm.update(domains((3, 3, 3), 0))
        return [parameter.detach() for parameter in algorithm.network.parameters()], generator.get_state()

    # A climb of no length: the second pass is the first one again, if it mixes the same images.
    (plain, state), (repeated, repeated_state) = updated(None), updated(Sharpness(0.0))
    torch.testing.assert_close(repeated, plain, rtol=0, atol=0)
    assert torch.equal(repeated_state, state)


def test_one_norm_over_all_weights() -> None:
    """The worst weights nearby are as far away as the radius, whatever the number of tensors."""
    visited: list[Tensor] = []

    class Watched(ERM):
        def compute_loss(self, batches):
            visited.append(torch.cat([each.detach().flatten() for each in self.network.parameters()]))
            return super().compute_loss(batches)

    algorithm = Watched(linear_network(), sharpness=Sharpness(RADIUS), **COMMON)
    algorithm.update(domains(SIZES, 0))
    assert (visited[1] - visited[0]).norm().item() == pytest.approx(RADIUS, rel=1e-9)
