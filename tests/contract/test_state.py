"""Same seed, same result; resuming from a saved state changes nothing; prediction has no side effects."""

import copy

import pytest
import torch
from contract_problem import BY_GRADIENT, FROM_THE_START, PER_DOMAIN, fresh
from torch.optim import Optimizer

from domainwise.algorithms import ALGORITHMS
from domainwise.algorithms.sharpness import Sharpness
from domainwise.testing import (
    assert_same_state,
    check_predict,
    check_reproducible,
    check_resume,
    plain_network,
    random_batches,
    random_network,
)

# Settings that exercise a method's own state within a few updates.
EVENTFUL = {
    "irm": {"anneal_steps": 3},
    "vrex": {"anneal_steps": 3},
    "dann": {"discriminator_steps": 2, "gradient_penalty": 0.5, "discriminator_dropout": 0.5},
    "cdann": {"discriminator_steps": 2, "gradient_penalty": 0.5, "discriminator_dropout": 0.5},
    "transfer": {"radius": 0.01, "ascent_steps": 2, "ascent_step_size": 0.1},
    "gut": {"round_every": 2, "pool": 12},
    "groupdro": {"group_step_size": 0.5},
    "mtl": {"ema": 0.5},
    "mldg": {"meta_test_domains": 1},
    "ermplusplus": {"head_steps": 2},
    "fish": {"order": "random"},
    "iberm": {"anneal_steps": 3},
    "ibirm": {"anneal_steps": 2, "bottleneck_anneal_steps": 4},
    "fishr": {"anneal_steps": 3},
    "eqrm": {"burn_in_steps": 3.0},
    "rdm": {"anneal_steps": 3},
    "cad": {"project": True},
    "trm": {"anneal_steps": 2, "implicit_weight": 0.1},
    "randconv": {"consistency": 10.0},
    "mixstyle": {"mix": "crossdomain"},
}
# A warm-up that ends with the third update, or third domain.
WARM = {"num_steps": 6, "warmup": 0.5}
SHARP = [
    *((name, {"sharpness": Sharpness(0.1)}) for name in ("erm", "groupdro", "mixup", "fishr", "at", "mat", "ldat")),
    *((name, {"sharpness": Sharpness(0.1)}) for name in ("randconv", "mixstyle", "dsu")),
    ("uat", {"sharpness": Sharpness(0.1, 0.001), "order": "sequential"}),
]
PRIORS = [
    ("at", {"prior": "filter", "kernel_size": 3, "adversary": "worst_of", "clean_share": 0.5}),
    ("at", {"prior": "tone", **WARM}),
    ("at", {"prior": "features", "adversary": "random"}),
    ("uat", {"prior": "filter", "attack_share": 0.5}),
    ("uat", {"prior": "tone", "schedule": "simultaneous", "clean_share": 0.4}),
    ("uat", {"prior": "spectrum", "adversary": "random", **WARM}),
    ("uat", {"prior": "features", "clean_weight": 1.0}),
    ("mat", {"prior": "filter", "count": 2, "weights": "assigned", "adversary": "worst_of"}),
    ("mat", {"prior": "features", "count": 2, "weights": "soft"}),
    ("ldat", {"prior": "spectrum", "rank": 2, "attack_share": 0.5}),
    ("ldat", {"adversary": "worst_of", "rank": 2, "order": "sequential"}),
]
CASES = [
    *((name, EVENTFUL.get(name, {})) for name in ALGORITHMS),
    ("mat", {"weights": "sample"}),
    *((name, {**hparams, **WARM}) for name, hparams in (*PER_DOMAIN, *BY_GRADIENT)),
    ("at", {"rank": 2, **WARM}),
    ("uat", {"order": "sequential", **WARM}),
    ("ldat", {"schedule": "simultaneous", **WARM}),
    *SHARP,
    *PRIORS,
]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_predict_returns_logits_without_gradients(name: str) -> None:
    algorithm = fresh(name)
    x = random_batches(7)[0][0]
    logits = algorithm.predict(x)
    assert logits.shape == (7, 3)
    assert not logits.requires_grad
    if name == "arm":
        algorithm.eval()  # its context network has batch norm
    with torch.no_grad():
        torch.testing.assert_close(logits, algorithm.network(x))


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_predict_uses_eval_mode_and_has_no_side_effects(name: str, is_training: bool) -> None:
    check_predict(ALGORITHMS[name], is_training=is_training, **FROM_THE_START.get(name, {}))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_frozen_layer_keeps_its_mode(name: str) -> None:
    algorithm = fresh(name, random_network, **EVENTFUL.get(name, {}))
    _, batch_norm, _, _, dropout = algorithm.network.featurizer
    batch_norm.eval()
    for step in range(3):
        algorithm.update(random_batches(5, 4, seed=step))
    algorithm.predict(random_batches(5)[0][0])
    assert algorithm.network.training
    assert dropout.training
    assert not batch_norm.training


@pytest.mark.parametrize(("name", "hparams"), CASES)
def test_results_are_reproducible_to_the_bit(name: str, hparams: dict[str, object]) -> None:
    check_reproducible(ALGORITHMS[name], **{**FROM_THE_START.get(name, {}), **hparams})


@pytest.mark.parametrize(
    "name",
    [
        *("at", "uat", "mat", "ldat", "mixup", "mldg", "sagnet", "ncdg", "gut"),
        *("causirlcoral", "causirlmmd", "urm", "adrmx", "fish", "selfreg"),
        *("randconv", "mixstyle", "dsu"),
    ],
)
def test_random_draws_come_from_the_given_generator(name: str) -> None:
    hparams = EVENTFUL.get(name, {})
    results, torch_states = [], []
    for seed in (0, 0, 1):
        torch.manual_seed(0)
        algorithm = fresh(name, plain_network, **hparams)
        algorithm.generator.manual_seed(seed)
        torch.manual_seed(1)
        results.append([algorithm.update(random_batches(5, 4, seed=step))["loss"] for step in range(6)])
        torch_states.append(torch.get_rng_state())
    assert results[0] == results[1]
    if name not in ("uat", "mat", "ldat"):  # these draw when they are built
        assert results[0] != results[2]
    # This network draws nothing, so torch's global generator must not have moved.
    torch.manual_seed(1)
    assert all(torch.equal(state, torch.get_rng_state()) for state in torch_states)


@pytest.mark.parametrize("saved_after", [2, 4])  # before and after the events
@pytest.mark.parametrize(("name", "hparams"), CASES)
def test_resuming_from_a_saved_state_changes_nothing(name: str, hparams: dict[str, object], saved_after: int) -> None:
    check_resume(ALGORITHMS[name], saved_after, **{**FROM_THE_START.get(name, {}), **hparams})


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_saved_state_contains_every_optimizer(name: str) -> None:
    hparams = {"head_steps": 0} if name == "ermplusplus" else {}  # so that both of its optimizers have stepped
    algorithm = fresh(name, **hparams)
    for step in range(3):
        algorithm.update(random_batches(5, 4, seed=step))
    restored = fresh(name, seed=99, **hparams)
    restored.load_state_dict(copy.deepcopy(algorithm.state_dict()))
    optimizers = {key: value for key, value in vars(algorithm).items() if isinstance(value, Optimizer)}
    reached = 0
    for key, optimizer in optimizers.items():
        saved, loaded = optimizer.state_dict()["state"], getattr(restored, key).state_dict()["state"]
        assert saved
        assert_same_state(loaded, saved)
        reached += len(saved)
    # Together they have Adam's moments for every parameter except those that Adam does not move: the perturbation's,
    # those of MIRO's frozen copy of the initial network, and those of Transfer's adversary.
    unmoved = ("perturbation.", "initial_featurizer.", "adversary.")
    own = sum(1 for key, _ in algorithm.named_parameters() if not key.startswith(unmoved))
    if name == "ermplusplus":
        own += 2  # its classifier has an optimizer of its own as well
    assert reached == own
