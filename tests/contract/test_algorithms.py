"""What every method promises, whichever it is."""

import copy
import io
import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from domainwise.algorithms import ALGORITHMS, Algorithm
from domainwise.errors import DomainwiseError
from domainwise.networks import NETWORKS

SHAPE = (3, 12, 12)
FAMILY = ["at", "uat", "mat", "ldat"]
KEPT = ["uat", "mat", "ldat"]
Batches = list[tuple[Tensor, Tensor]]


class DropoutNetwork(nn.Sequential):
    """A network that draws from torch's own generator while it trains, and keeps statistics."""

    input_shape = SHAPE

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 4, 3, stride=2, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.5),
            nn.Linear(4 * 36, 3),
        )


def plain_network() -> nn.Module:
    network = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(SHAPE), 16), nn.Tanh(), nn.Linear(16, 3))
    network.input_shape = SHAPE
    return network


def build(name: str, network: nn.Module, *, num_domains: int = 2, seed: int = 0, **hparams) -> Algorithm:
    generator = torch.Generator().manual_seed(seed)
    return ALGORITHMS[name](network, num_domains=num_domains, generator=generator, **{"lr": 1e-2, **hparams})


def fresh(name: str, make=plain_network, *, seed: int = 0, **hparams) -> Algorithm:
    torch.manual_seed(seed)
    return build(name, make(), seed=seed, **hparams)


def random_batches(*counts: int, seed: int = 1) -> Batches:
    random = torch.Generator().manual_seed(seed)
    return [(torch.rand(n, *SHAPE, generator=random), torch.randint(3, (n,), generator=random)) for n in counts]


def separable_batches(seed: int, *counts: int) -> Batches:
    """The class is the channel that is bright."""
    batches = []
    for x, y in random_batches(*counts, seed=seed):
        bright = F.one_hot(y, 3)[:, :, None, None]
        batches.append((0.4 * x + 0.5 * bright, y))
    return batches


def assert_same_state(first: object, second: object) -> None:
    """To the bit, through whatever nesting of dictionaries and lists."""
    assert type(first) is type(second)
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first:
            assert_same_state(first[key], second[key])
    elif isinstance(first, list | tuple):
        assert len(first) == len(second)
        for one, two in zip(first, second, strict=True):
            assert_same_state(one, two)
    elif isinstance(first, Tensor):
        torch.testing.assert_close(first, second, rtol=0, atol=0)
    else:
        assert first == second


@pytest.mark.parametrize("num_domains", [1, 2, 4])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_update_is_finite_moves_the_network_and_returns_plain_floats(name: str, num_domains: int) -> None:
    algorithm = fresh(name, num_domains=num_domains)
    before = [parameter.detach().clone() for parameter in algorithm.network.parameters()]
    returned = algorithm.update(random_batches(*[6] * num_domains))
    assert "loss" in returned
    for key, value in returned.items():
        assert type(key) is str
        assert type(value) is float
        assert math.isfinite(value)
    for old, new in zip(before, algorithm.network.parameters(), strict=True):
        assert new.isfinite().all()
        assert not torch.equal(old, new)


@pytest.mark.parametrize("counts", [(5, 2), (2, 5), (1, 8), (0, 6), (6, 0)])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_domains_may_differ_in_size_and_one_may_be_absent(name: str, counts: tuple[int, int]) -> None:
    algorithm = fresh(name)
    returned = algorithm.update(random_batches(*counts))
    assert math.isfinite(returned["loss"])
    assert all(tensor.isfinite().all() for tensor in algorithm.parameters())


@pytest.mark.parametrize("order", ["joint", "sequential"])
@pytest.mark.parametrize("schedule", ["two_pass", "simultaneous"])
@pytest.mark.parametrize("name", KEPT)
def test_the_perturbation_of_an_absent_domain_stays(name: str, schedule: str, order: str) -> None:
    algorithm = fresh(name, num_domains=3, schedule=schedule, order=order)
    before = [tensor.detach().clone() for tensor in algorithm.perturbation.parameters()]
    algorithm.update(random_batches(4, 0, 3))
    for old, new in zip(before, algorithm.perturbation.parameters(), strict=True):
        assert torch.equal(old[1], new[1])
        assert not torch.equal(old[0], new[0])
        assert not torch.equal(old[2], new[2])


@pytest.mark.parametrize("schedule", ["two_pass", "simultaneous"])
@pytest.mark.parametrize("ascent", ["normalized", "gradient", "sign"])
@pytest.mark.parametrize("name", KEPT)
def test_a_perturbation_without_gradient_stays(name: str, ascent: str, schedule: str) -> None:
    algorithm = fresh(name, ascent=ascent, schedule=schedule)
    with torch.no_grad():
        algorithm.network[3].weight.zero_()
    before = [tensor.detach().clone() for tensor in algorithm.perturbation.parameters()]
    algorithm.update(random_batches(4, 3))
    for old, new in zip(before, algorithm.perturbation.parameters(), strict=True):
        assert torch.equal(old, new)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_predict_gives_logits_without_gradients(name: str) -> None:
    algorithm = fresh(name)
    x = random_batches(7)[0][0]
    logits = algorithm.predict(x)
    assert logits.shape == (7, 3)
    assert not logits.requires_grad
    with torch.no_grad():
        torch.testing.assert_close(logits, algorithm.network(x))


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_predict_is_in_eval_mode_and_draws_nothing(name: str, is_training: bool) -> None:
    algorithm = fresh(name, DropoutNetwork)
    algorithm.update(random_batches(6, 6))
    algorithm.train(is_training)
    x = random_batches(5)[0][0]
    expected = copy.deepcopy(algorithm.network).eval()(x).detach()
    buffers = [buffer.clone() for buffer in algorithm.network.buffers()]
    torch_state, own_state = torch.get_rng_state(), algorithm.generator.get_state()
    first, second = algorithm.predict(x), algorithm.predict(x)
    torch.testing.assert_close(first, expected, rtol=0, atol=0)
    torch.testing.assert_close(second, expected, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert torch.equal(algorithm.generator.get_state(), own_state)
    assert all(module.training is is_training for module in algorithm.modules())
    assert all(torch.equal(old, new) for old, new in zip(buffers, algorithm.network.buffers(), strict=True))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_predict_leaves_a_frozen_layer_frozen(name: str) -> None:
    algorithm = fresh(name, DropoutNetwork)
    batch_norm = algorithm.network[1].eval()
    algorithm.predict(random_batches(5)[0][0])
    assert algorithm.network.training
    assert algorithm.network[4].training
    assert not batch_norm.training


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_same_seed_gives_the_same_result_to_the_bit(name: str) -> None:
    states = []
    for _ in range(2):
        algorithm = fresh(name, DropoutNetwork, seed=5)
        returned = [algorithm.update(random_batches(5, 4, seed=step)) for step in range(3)]
        states.append((returned, algorithm.state_dict()))
    assert_same_state(states[0], states[1])


@pytest.mark.parametrize("name", FAMILY)
def test_another_seed_gives_another_perturbation(name: str) -> None:
    results = []
    for seed in (0, 1):
        torch.manual_seed(0)
        algorithm = build(name, plain_network(), seed=seed)
        results.append(algorithm.update(random_batches(5, 4))["loss"])
    assert results[0] != results[1]


@pytest.mark.parametrize(("name", "hparams"), [*((name, {}) for name in ALGORITHMS), ("mat", {"weights": "sample"})])
def test_saved_loaded_and_gone_on_with_nothing_changes(name: str, hparams: dict[str, str]) -> None:
    algorithm = fresh(name, DropoutNetwork, **hparams)
    for step in range(2):
        algorithm.update(random_batches(5, 4, seed=step))
    file = io.BytesIO()
    torch.save(algorithm.state_dict(), file)
    torch_state = torch.get_rng_state()
    expected = [algorithm.update(random_batches(5, 4, seed=step)) for step in range(2, 5)]

    file.seek(0)
    restored = fresh(name, DropoutNetwork, seed=99, **hparams)
    restored.load_state_dict(torch.load(file, weights_only=True))
    torch.set_rng_state(torch_state)
    assert [restored.update(random_batches(5, 4, seed=step)) for step in range(2, 5)] == expected
    assert_same_state(restored.state_dict(), algorithm.state_dict())
    if name != "erm":
        assert torch.equal(restored.generator.get_state(), algorithm.generator.get_state())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_saved_state_holds_the_optimizer(name: str) -> None:
    algorithm = fresh(name)
    for step in range(3):
        algorithm.update(random_batches(5, 4, seed=step))
    restored = fresh(name, seed=99)
    restored.load_state_dict(copy.deepcopy(algorithm.state_dict()))
    for ours, theirs in zip(restored.network.parameters(), algorithm.network.parameters(), strict=True):
        assert torch.equal(restored.optimizer.state[ours]["exp_avg"], algorithm.optimizer.state[theirs]["exp_avg"])
        assert restored.optimizer.state[ours]["step"] == 3


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_loss_falls_on_an_easy_problem(name: str) -> None:
    algorithm = fresh(name)
    losses = [algorithm.update(separable_batches(step, 16, 12))["loss"] for step in range(60)]
    assert sum(losses[-5:]) / 5 < 0.3 * sum(losses[:5]) / 5
    x, y = separable_batches(1000, 200)[0]
    assert (algorithm.predict(x).argmax(1) == y).float().mean() > 0.95


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_any_method_trains_any_network(name: str, network: str) -> None:
    torch.manual_seed(0)
    algorithm = build(name, NETWORKS[network](SHAPE, 3, 0.1), lr=1e-3)
    before = [parameter.detach().clone() for parameter in algorithm.network.parameters()]
    assert math.isfinite(algorithm.update(random_batches(3, 2))["loss"])
    for old, new in zip(before, algorithm.network.parameters(), strict=True):
        assert new.isfinite().all()
        assert not torch.equal(old, new)
    assert algorithm.predict(random_batches(2)[0][0]).shape == (2, 3)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_network_in_double_precision_is_trained_too(name: str) -> None:
    algorithm = fresh(name, lambda: plain_network().double())
    batches = [(x.double(), y) for x, y in random_batches(5, 4)]
    assert math.isfinite(algorithm.update(batches)["loss"])


@pytest.mark.parametrize("counts", [(), (4,), (4, 4, 4)])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_wrong_number_of_batches_is_said_clearly(name: str, counts: tuple[int, ...]) -> None:
    algorithm = fresh(name)
    with pytest.raises(ValueError, match=rf"one \(x, y\) a domain: 2, not {len(counts)}"):
        algorithm.update(random_batches(*counts))


@pytest.mark.parametrize("counts", [(), (4,), (4, 4, 4)])
@pytest.mark.parametrize("name", FAMILY)
def test_a_wrong_number_of_batches_is_said_clearly_in_sequence_too(name: str, counts: tuple[int, ...]) -> None:
    algorithm = fresh(name, order="sequential")
    before = copy.deepcopy(algorithm.network.state_dict())
    with pytest.raises(ValueError, match=rf"one \(x, y\) a domain: 2, not {len(counts)}"):
        algorithm.update(random_batches(*counts))
    assert_same_state(algorithm.network.state_dict(), before)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_unknown_hyperparameter_gets_the_nearest_spelling(name: str) -> None:
    with pytest.raises(DomainwiseError, match="unknown hyperparameter 'weight_deacy'; did you mean 'weight_decay'"):
        fresh(name, weight_deacy=0.1)


@pytest.mark.parametrize("name", FAMILY)
def test_an_unknown_hyperparameter_of_the_family_gets_the_nearest_spelling(name: str) -> None:
    with pytest.raises(DomainwiseError, match="did you mean 'epsilon'"):
        fresh(name, epsilom=0.1)


@pytest.mark.parametrize("wrong", ["fast", None, True, [1e-3]])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_hyperparameter_of_the_wrong_type_is_named(name: str, wrong: object) -> None:
    with pytest.raises(DomainwiseError, match="hyperparameter lr must be a number, not"):
        fresh(name, lr=wrong)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("at", {"steps": 1.5}),
        ("mat", {"count": "ten"}),
        ("ldat", {"rank": 2.0}),
        ("uat", {"norm": "l1"}),
        ("uat", {"variant": "relased"}),
        ("mat", {"weights": "samples"}),
        ("at", {"start": "sphere"}),
        ("ldat", {"order": "random"}),
        ("ldat", {"schedule": "one_pass"}),
    ],
)
def test_a_wrong_choice_or_number_is_named(name: str, given: dict[str, object]) -> None:
    (hparam,) = given
    with pytest.raises(DomainwiseError, match=f"hyperparameter {hparam} must be"):
        fresh(name, **given)


@pytest.mark.parametrize(
    "given", [{"epsilon": -0.1}, {"epsilon": math.nan}, {"step_size": -1.0}, {"clean_weight": -1.0}, {"loss_cap": 0.0}]
)
@pytest.mark.parametrize("name", FAMILY)
def test_a_number_out_of_range_is_named(name: str, given: dict[str, float]) -> None:
    (hparam,) = given
    with pytest.raises(ValueError, match=f"{hparam} must be"):
        fresh(name, **given)


@pytest.mark.parametrize(
    ("name", "given"), [("at", {}), ("mat", {"weights": "sample"}), ("mat", {"variant": "released"})]
)
def test_what_is_made_anew_cannot_be_trained_in_one_pass(name: str, given: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"simultaneous.*two_pass"):
        fresh(name, schedule="simultaneous", **given)


@pytest.mark.parametrize("name", FAMILY)
def test_the_family_must_know_the_shape_of_an_image(name: str) -> None:
    with pytest.raises(ValueError, match=r"input_shape=\(channels, height, width\)"):
        build(name, nn.Sequential(nn.Flatten(), nn.Linear(432, 3)))


@pytest.mark.parametrize(("name", "hparams"), [*((name, {}) for name in FAMILY), ("at", {"steps": 3})])
def test_only_the_training_pass_reaches_the_buffers(name: str, hparams: dict[str, int]) -> None:
    algorithm = fresh(name, DropoutNetwork, lr=0.0, **hparams)
    expected = copy.deepcopy(algorithm.network)
    seen: list[Tensor] = []
    algorithm.network.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach().clone()))
    algorithm.update(random_batches(5, 4))
    assert len(seen) == hparams.get("steps", 1) + 1
    expected(seen[-1])
    for ours, theirs in zip(algorithm.network.buffers(), expected.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert algorithm.network[1].num_batches_tracked == 1


@pytest.mark.parametrize("name", KEPT)
def test_one_pass_runs_the_network_once(name: str) -> None:
    algorithm = fresh(name, schedule="simultaneous")
    calls: list[int] = []
    algorithm.network.register_forward_pre_hook(lambda _, given: calls.append(len(given[0])))
    algorithm.update(random_batches(5, 4))
    assert calls == [9]


@pytest.mark.parametrize("name", FAMILY)
def test_the_inner_pass_is_in_training_mode(name: str) -> None:
    algorithm = fresh(name, DropoutNetwork)
    modes: list[bool] = []
    algorithm.network[4].register_forward_pre_hook(lambda module, _: modes.append(module.training))
    algorithm.update(random_batches(5, 4))
    assert modes == [True, True]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_update_leaves_the_batch_as_it_was(name: str) -> None:
    algorithm = fresh(name)
    batches, expected = random_batches(5, 4), random_batches(5, 4)
    algorithm.update(batches)
    assert_same_state(batches, expected)
    assert not any(x.requires_grad for x, _ in batches)
