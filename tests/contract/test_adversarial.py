"""What AT, UAT, MAT and LDAT guarantee beyond the contract of every method."""

import copy

import pytest
import torch
from contract_problem import BY_GRADIENT, FAMILY, PER_DOMAIN, build, fresh
from torch import Tensor, nn

from domainwise.algorithms import Algorithm
from domainwise.errors import DomainwiseError
from domainwise.networks import Network
from domainwise.testing import assert_same_state, plain_network, random_batches, random_network

SCHEDULES = [(*case, schedule) for case in PER_DOMAIN for schedule in ("two_pass", "simultaneous")] + [
    (*case, "two_pass") for case in BY_GRADIENT
]


def perturbation_state(algorithm: Algorithm) -> list[Tensor]:
    state = algorithm.perturbation.state_dict()
    return [tensor.clone() for name, tensor in state.items() if name not in ("_extra_state", "idle")]


@pytest.mark.parametrize("order", ["joint", "sequential"])
@pytest.mark.parametrize(("name", "hparams", "schedule"), SCHEDULES)
def test_the_perturbation_of_an_absent_domain_does_not_move(
    name: str, hparams: dict[str, str], schedule: str, order: str
) -> None:
    algorithm = fresh(name, num_domains=3, schedule=schedule, order=order, **hparams)
    before = perturbation_state(algorithm)
    algorithm.update(random_batches(4, 0, 3))
    for old, new in zip(before, perturbation_state(algorithm), strict=True):
        assert torch.equal(old[1], new[1])
        assert not torch.equal(old[0], new[0])
        assert not torch.equal(old[2], new[2])


@pytest.mark.parametrize("ascent", ["normalized", "gradient", "sign"])
@pytest.mark.parametrize(("name", "hparams", "schedule"), SCHEDULES)
def test_a_perturbation_without_gradient_does_not_move(
    name: str, hparams: dict[str, str], schedule: str, ascent: str
) -> None:
    if hparams.get("weights") == "subspace" and ascent == "sign":
        ascent = "normalized"  # the other is an error, which has its own test
    algorithm = fresh(name, ascent=ascent, schedule=schedule, **hparams)
    with torch.no_grad():
        algorithm.network.classifier.weight.zero_()
    before = perturbation_state(algorithm)
    algorithm.update(random_batches(4, 3))
    for old, new in zip(before, perturbation_state(algorithm), strict=True):
        assert torch.equal(old, new)


@pytest.mark.parametrize(
    ("hparams", "expected"),
    [
        ({}, "normalized"),
        ({"variant": "released"}, "normalized"),
        ({"variant": "paper"}, "gradient"),
        ({"norm": "linf"}, "sign"),
        ({"norm": "linf", "variant": "released"}, "sign"),
        ({"norm": "linf", "variant": "paper"}, "gradient"),
        # As in runs whose config has it.
        ({"norm": "linf", "ascent": "normalized"}, "normalized"),
        ({"norm": "l2", "ascent": None}, "normalized"),
    ],
)
@pytest.mark.parametrize("name", FAMILY)
def test_the_ascent_follows_the_norm_unless_it_is_given(name: str, hparams: dict[str, str], expected: str) -> None:
    algorithm = fresh(name, **hparams)
    assert algorithm.hparams.as_dict()["ascent"] == algorithm.perturbation.ascent == expected


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_steps_in_a_subspace_are_normalized_in_every_norm(norm: str) -> None:
    algorithm = fresh("mat", weights="subspace", norm=norm)
    assert algorithm.hparams.ascent == algorithm.perturbation.ascent == "normalized"


@pytest.mark.parametrize("name", FAMILY)
def test_perturbations_depend_on_the_seed(name: str) -> None:
    results = []
    for seed in (0, 1):
        torch.manual_seed(0)
        algorithm = build(name, plain_network(), seed=seed)
        results.append(algorithm.update(random_batches(5, 4))["loss"])
    assert results[0] != results[1]


@pytest.mark.parametrize("counts", [(), (4,), (4, 4, 4)])
@pytest.mark.parametrize("name", FAMILY)
def test_error_for_a_wrong_number_of_batches_with_sequential_order(name: str, counts: tuple[int, ...]) -> None:
    algorithm = fresh(name, order="sequential")
    before = copy.deepcopy(algorithm.network.state_dict())
    with pytest.raises(ValueError, match=rf"one \(x, y\) per domain: 2, got {len(counts)}"):
        algorithm.update(random_batches(*counts))
    assert_same_state(algorithm.network.state_dict(), before)


@pytest.mark.parametrize("name", FAMILY)
def test_error_for_an_unknown_hyperparameter_suggests_the_nearest(name: str) -> None:
    with pytest.raises(DomainwiseError, match="did you mean 'epsilon'"):
        fresh(name, epsilom=0.1)


@pytest.mark.parametrize(
    ("name", "hparams"),
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
        ("ldat", {"solver": "svd"}),
        ("ldat", {"step_size": "radius"}),
        ("ldat", {"rank": None}),
        ("at", {"rank": 0}),
        ("uat", {"warmup": 1.5}),
        ("uat", {"warmup": -0.1}),
        ("mat", {"temperature": 0.0}),
        ("mat", {"memory": 1.01}),
        ("uat", {"epsilon": "eight/255"}),
        ("uat", {"epsilon": -0.1}),
    ],
)
def test_error_for_a_wrong_choice_or_type_names_the_hyperparameter(name: str, hparams: dict[str, object]) -> None:
    (hparam,) = hparams
    with pytest.raises(DomainwiseError, match=f"hyperparameter {hparam} must be"):
        fresh(name, **hparams)


@pytest.mark.parametrize(
    ("name", "hparams"),
    [("at", {}), ("mat", {}), *BY_GRADIENT, ("mat", {"weights": "sample"}), ("mat", {"variant": "released"})],
)
def test_error_for_simultaneous_training_of_what_is_not_kept(name: str, hparams: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"simultaneous.*two_pass"):
        fresh(name, schedule="simultaneous", **hparams)


@pytest.mark.parametrize("name", FAMILY)
def test_error_without_the_shape_of_an_image(name: str) -> None:
    with pytest.raises(ValueError, match=r"input_shape=\(channels, height, width\)"):
        build(name, nn.Sequential(nn.Flatten(), nn.Linear(432, 3)))


@pytest.mark.parametrize(
    ("name", "hparams"),
    [*((name, {}) for name in FAMILY), *PER_DOMAIN, *BY_GRADIENT, ("at", {"steps": 3}), ("at", {"rank": 2})],
)
def test_only_the_training_pass_changes_buffers(name: str, hparams: dict[str, int]) -> None:
    algorithm = fresh(name, random_network, lr=0.0, **hparams)
    expected = copy.deepcopy(algorithm.network)
    seen: list[Tensor] = []
    algorithm.network.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach().clone()))
    algorithm.update(random_batches(5, 4))
    assert len(seen) == hparams.get("steps", 1) + 1
    expected(seen[-1])
    for ours, theirs in zip(algorithm.network.buffers(), expected.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert algorithm.network.featurizer[1].num_batches_tracked == 1


@pytest.mark.parametrize(("name", "hparams"), PER_DOMAIN)
def test_simultaneous_training_runs_the_network_once(name: str, hparams: dict[str, str]) -> None:
    algorithm = fresh(name, schedule="simultaneous", **hparams)
    calls: list[int] = []
    algorithm.network.register_forward_pre_hook(lambda _, given: calls.append(len(given[0])))
    algorithm.update(random_batches(5, 4))
    assert calls == [9]


@pytest.mark.parametrize("name", FAMILY)
def test_the_inner_pass_is_in_training_mode(name: str) -> None:
    algorithm = fresh(name, random_network)
    modes: list[bool] = []
    algorithm.network.featurizer[4].register_forward_pre_hook(lambda module, _: modes.append(module.training))
    algorithm.update(random_batches(5, 4))
    assert modes == [True, True]


def convolutional_network() -> nn.Module:
    featurizer = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.Flatten())
    return Network(featurizer, nn.Linear(100, 3), input_shape=(3, 12, 12), num_features=100)


SHARED = [("at", {}), ("uat", {}), ("mat", {"weights": "assigned", "count": 2}), ("ldat", {"rank": 2})]
CHOICES = [
    (name, {**hparams, "prior": prior, "adversary": adversary})
    for name, hparams in SHARED
    for prior in ("pixels", "filter", "tone", "spectrum", "features")
    for adversary in ("gradient", "worst_of", "random")
    if name != "ldat" or prior in ("pixels", "spectrum")
]


@pytest.mark.parametrize(("name", "hparams"), CHOICES)
def test_radius_zero_of_every_prior_is_erm_to_the_bit(name: str, hparams: dict[str, object]) -> None:
    make = convolutional_network if hparams["prior"] == "features" else plain_network  # the latter has no maps
    erm = fresh("erm", make)
    algorithm = fresh(name, make, epsilon=0.0, **hparams)
    for step in range(3):
        batches = random_batches(5, 4, seed=step)
        # The mean of the samples' losses is that of the batch but for rounding.
        assert algorithm.update(batches)["loss"] == pytest.approx(erm.update(batches)["loss"], rel=1e-6)
    assert_same_state(algorithm.network.state_dict(), erm.network.state_dict())


@pytest.mark.parametrize("order", ["joint", "sequential"])
@pytest.mark.parametrize("schedule", ["two_pass", "simultaneous"])
def test_a_share_of_each_domain_stays_clean(schedule: str, order: str) -> None:
    algorithm = fresh("uat", plain_network, clean_share=0.4, schedule=schedule, order=order, epsilon=0.5)
    seen: list[Tensor] = []
    algorithm.network.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach().clone()))
    batches = random_batches(5, 4)
    algorithm.update(batches)
    trained = torch.cat(seen if schedule == "simultaneous" else seen[1::2])
    for x, _ in batches:
        is_clean = [any(torch.equal(image, each) for each in trained) for image in x]
        assert is_clean == [False] * 3 + [True] * (len(x) - 3)
    assert len(trained) == 9


def test_a_domains_perturbation_ascends_its_own_mean_whatever_share_is_clean() -> None:
    steps = []
    for clean_share in (0.0, 0.5):
        algorithm = fresh("uat", clean_share=clean_share, schedule="simultaneous", ascent="gradient", epsilon=9.0)
        before = algorithm.perturbation.delta().detach().clone()
        x, y = random_batches(4)[0]
        algorithm.update([(x[:2].repeat(2, 1, 1, 1), y[:2].repeat(2))] * 2)
        steps.append(algorithm.perturbation.delta().detach() - before)
    torch.testing.assert_close(steps[0], steps[1])


@pytest.mark.parametrize("name", ["uat", "ldat"])
def test_a_part_of_the_batch_chooses_the_perturbation_of_all(name: str) -> None:
    algorithm = fresh(name, attack_share=0.5, epsilon=0.5)
    expected = copy.deepcopy(algorithm)
    seen: list[Tensor] = []
    algorithm.network.register_forward_pre_hook(lambda _, given: seen.append(given[0].detach().clone()))
    batches = random_batches(5, 4)
    algorithm.update(batches)
    assert [len(x) for x in seen] == [5, 9]
    x = torch.cat([batches[0][0][:3], batches[1][0][:2]])
    y = torch.cat([batches[0][1][:3], batches[1][1][:2]])
    domain = torch.tensor([0] * 3 + [1] * 2)
    expected.perturbation.attack(
        x, domain, lambda x: nn.functional.cross_entropy(expected.network(x), y, reduction="none")
    )
    everyone = torch.cat([batch for batch, _ in batches])
    torch.testing.assert_close(seen[1], expected.perturbation(everyone, torch.tensor([0] * 5 + [1] * 4)))


@pytest.mark.parametrize(
    ("name", "hparams", "message"),
    [
        ("at", {"attack_share": 0.5}, "attack_share needs a perturbation that all images of a domain share"),
        ("mat", {"attack_share": 0.5}, "attack_share needs a perturbation that all images of a domain share"),
        ("uat", {"attack_share": 0.5, "schedule": "simultaneous"}, "no attack of its own"),
        ("uat", {"adversary": "random", "schedule": "simultaneous"}, "follows gradients"),
        ("uat", {"prior": "filter", "kernel_size": 4}, "size must be odd"),
        ("uat", {"prior": "tone", "space": "normalized"}, "is for prior='pixels'"),
        ("ldat", {"prior": "filter"}, "a rank needs a prior that changes an image"),
        ("uat", {"prior": "tone", "epsilon": "1/255 rms"}, "epsilon must be a number without unit"),
        ("ldat", {"solver": "factors", "adversary": "random"}, "use solver='projected'"),
    ],
)
def test_choices_that_do_not_go_together(name: str, hparams: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fresh(name, **hparams)


@pytest.mark.parametrize(
    ("hparams", "radius"),
    [
        ({}, 0.1),
        ({"prior": "filter"}, 0.5),
        ({"prior": "filter", "adversary": "worst_of"}, 1.5),
        ({"prior": "tone", "adversary": "random"}, 0.5),
        ({"prior": "tone", "epsilon": 0.2}, 0.2),
        ({"adversary": "random"}, 0.1),
    ],
)
def test_the_default_radius_depends_on_the_prior(hparams: dict[str, object], radius: float) -> None:
    assert fresh("uat", **hparams).hparams.epsilon == radius
