"""Methods reject invalid networks, domains and hyperparameters when they are built, with a helpful message."""

import math

import numpy as np
import pytest
import torch
from contract_problem import NEEDS_TWO, build, fresh
from torch import nn

from domainwise.algorithms import ALGORITHMS
from domainwise.errors import DomainwiseError
from domainwise.networks import Network
from domainwise.testing import SHAPE, plain_network, random_batches

NEEDS_FEATURES = [
    *("mmd", "coral", "dann", "mtl", "sagnet", "rsc", "gut", "iberm", "ibirm", "fishr", "cad", "condcad"),
    *("causirlcoral", "causirlmmd", "miro", "cdann", "transfer", "urm", "adrmx", "ermplusplus", "trm"),
    *("arm", "selfreg"),
]
WRONG = {
    "irm": {"penalty_weight": -1.0, "anneal_steps": -1},
    "vrex": {"penalty_weight": math.nan, "anneal_steps": -5},
    "groupdro": {"group_step_size": -0.1},
    "mixup": {"alpha": 0.0},
    "mldg": {"meta_test_weight": -1.0, "meta_test_domains": 0},
    "mmd": {"penalty_weight": -1.0},
    "coral": {"penalty_weight": math.inf},
    "dann": {
        "adversary_weight": -1.0,
        "discriminator_steps": 0,
        "gradient_penalty": -1.0,
        "beta1": -0.1,
        "width": 0,
        "depth": 1,
        "discriminator_dropout": 1.5,
        "discriminator_lr": -1.0,
        "discriminator_weight_decay": -1.0,
    },
    "mtl": {"ema": 1.5},
    "sagnet": {"adversarial_weight": -1.0},
    "rsc": {"feature_drop": 1.1, "sample_drop": -0.1},
    "andmask": {"agreement": 1.1},
    "gut": {
        "rounds": -1,
        "round_every": 0,
        "ascent_steps": 0,
        "ascent_step_size": -1.0,
        "distance_weight": -1.0,
        "pool": 0,
    },
    "fish": {"meta_step": 0.0},
    "sandmask": {"agreement": 1.1, "steepness": 0.0},
    "iga": {"penalty_weight": -1.0},
    "trm": {"implicit_weight": -1.0, "anneal_steps": -1, "group_step_size": -0.1},
    "selfreg": {"feature_weight": -1.0},
    "randconv": {"identity": 1.1, "consistency": -1.0},
    "mixstyle": {"probability": 1.1, "stages": 0, "alpha": 0.0},
    "dsu": {"probability": -0.1, "stages": 0},
    "ncdg": {"temperature": 0.0, "coverage_weight": -1.0, "similarity_weight": -1.0},
    "sd": {"penalty_weight": -1.0},
    "iberm": {"penalty_weight": -1.0, "anneal_steps": -1},
    "ibirm": {"penalty_weight": -1.0, "bottleneck_weight": math.nan, "bottleneck_anneal_steps": -1},
    "fishr": {"penalty_weight": -1.0, "anneal_steps": -1, "ema": 1.5},
    "eqrm": {"quantile": 1.0, "burn_in_steps": -1.0, "quantile_lr": -1.0},
    "rdm": {"penalty_weight": -1.0, "variance_weight": -1.0, "anneal_steps": -1, "annealed_lr": -1.0},
    "cad": {"penalty_weight": -1.0, "temperature": 0.0},
    "condcad": {"penalty_weight": math.nan, "temperature": -0.1},
    "causirlcoral": {"penalty_weight": -1.0},
    "causirlmmd": {"penalty_weight": math.inf},
    "miro": {"penalty_weight": -1.0, "variance_lr_factor": -1.0},
    "cdann": {"adversary_weight": -1.0},
    "sam": {"radius": -1.0},
    "sagm": {"radius": -1.0, "alignment": -1.0},
    "ermplusplus": {"head_steps": -2, "head_lr": -1.0},
    "transfer": {"gap_weight": -1.0, "radius": 0.0, "ascent_steps": 0, "ascent_step_size": -1.0},
    "urm": {"adversary_weight": -1.0, "hidden_layers": -1, "discriminator_lr": -1.0},
    "adrmx": {
        "adversary_weight": -1.0,
        "domain_weight": -1.0,
        "contrastive_weight": -1.0,
        "remix_weight": -1.0,
        "discriminator_steps": 0,
        "beta1": -0.1,
        "width": 0,
        "depth": 1,
    },
    **{
        name: {"epsilon": -0.1, "step_size": -1.0, "clean_weight": -1.0, "loss_cap": 0.0}
        for name in ("at", "uat", "mat", "ldat")
    },
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_one_domain_is_enough_or_rejected(name: str) -> None:
    if name in NEEDS_TWO:
        with pytest.raises(ValueError, match="compares domains and needs at least 2 training domains, got 1"):
            fresh(name, num_domains=1)
    else:
        assert math.isfinite(fresh(name, num_domains=1).update(random_batches(6))["loss"])
    assert (ALGORITHMS[name].min_domains == 2) == (name in NEEDS_TWO)


@pytest.mark.parametrize("name", NEEDS_FEATURES)
def test_error_for_a_network_without_features(name: str) -> None:
    network = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(SHAPE), 3))
    with pytest.raises(ValueError, match="works on features, but its network has no featurizer"):
        build(name, network, input_shape=SHAPE)


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - set(NEEDS_FEATURES)))
def test_all_other_methods_train_any_module(name: str) -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(SHAPE), 8), nn.ReLU(), nn.Linear(8, 3))
    algorithm = build(name, network, input_shape=SHAPE)
    assert math.isfinite(algorithm.update(random_batches(5, 4))["loss"])


@pytest.mark.parametrize("name", ["mtl", "sagnet", "fishr", "trm"])
def test_error_for_a_classifier_that_is_not_linear(name: str) -> None:
    network = Network(nn.Flatten(), nn.Sequential(nn.Linear(432, 3)), input_shape=SHAPE, num_features=432)
    with pytest.raises(ValueError, match="needs a network whose own is linear, got Sequential"):
        build(name, network)


def test_ncdg_needs_relu_layers() -> None:
    network = Network(nn.Flatten(), nn.Linear(432, 3), input_shape=SHAPE, num_features=432)
    with pytest.raises(ValueError, match=r"its network has no torch\.nn\.ReLU layers"):
        build("ncdg", network)


def test_miro_needs_layers_with_weights() -> None:
    network = Network(nn.Flatten(), nn.Linear(432, 3), input_shape=SHAPE, num_features=432)
    with pytest.raises(ValueError, match="none of its layers has weights"):
        build("miro", network)


def test_miro_needs_the_shape_of_an_image() -> None:
    network = plain_network()
    network.input_shape = None
    with pytest.raises(ValueError, match="MIRO needs the shape of an image; pass input_shape"):
        build("miro", network)


@pytest.mark.parametrize("shape", [None, (432,)])
@pytest.mark.parametrize("name", ["mixstyle", "dsu"])
def test_styles_need_images(name: str, shape: tuple[int, ...] | None) -> None:
    network = plain_network()
    network.input_shape = shape
    with pytest.raises(ValueError, match=r"needs images; pass input_shape=\(channels, height, width\), got "):
        build(name, network)


def test_randconv_needs_images() -> None:
    with pytest.raises(ValueError, match=r"needs images of shape \(channels, height, width\), got \(432,\)"):
        build("randconv", plain_network(), input_shape=(432,))


def test_mixing_with_other_domains_needs_two() -> None:
    with pytest.raises(ValueError, match="mix='crossdomain' needs at least 2 training domains, got 1"):
        fresh("mixstyle", num_domains=1, mix="crossdomain")


@pytest.mark.parametrize("sizes", [None, [10], [10, 10, 10]])
def test_gut_needs_the_domain_sizes(sizes: list[int] | None) -> None:
    with pytest.raises(ValueError, match="number of images in each of the 2 training domains; pass domain_sizes"):
        ALGORITHMS["gut"](plain_network(), num_domains=2, domain_sizes=sizes)


@pytest.mark.parametrize("counts", [(), (4,), (4, 4, 4)])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_error_for_a_wrong_number_of_batches(name: str, counts: tuple[int, ...]) -> None:
    algorithm = fresh(name)
    with pytest.raises(ValueError, match=rf"one \(x, y\) per domain: 2, got {len(counts)}"):
        algorithm.update(random_batches(*counts))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_error_for_an_empty_batch(name: str) -> None:
    algorithm = fresh(name)
    with pytest.raises(ValueError, match="at least one sample"):
        algorithm.update(random_batches(0, 0))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_error_for_an_unknown_hyperparameter_suggests_the_nearest(name: str) -> None:
    with pytest.raises(DomainwiseError, match="unknown hyperparameter 'weight_deacy'; did you mean 'weight_decay'"):
        fresh(name, weight_deacy=0.1)


@pytest.mark.parametrize("wrong", ["fast", None, True, [1e-3]])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_error_for_a_wrong_type_names_the_hyperparameter(name: str, wrong: object) -> None:
    with pytest.raises(DomainwiseError, match="hyperparameter lr must be a number, got"):
        fresh(name, lr=wrong)


@pytest.mark.parametrize(
    ("name", "hparam", "value"),
    [(name, key, value) for name, hparams in WRONG.items() for key, value in hparams.items()],
)
def test_error_for_a_value_out_of_range_names_the_hyperparameter(name: str, hparam: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{hparam} must be"):
        fresh(name, **{hparam: value})


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_search_range_lies_within_the_bounds(name: str) -> None:
    """A search must never draw a value that the method rejects."""
    hparams = ALGORITHMS[name].Hparams
    fields = hparams.fields().items()
    ranges = {key: field.metadata["search"] for key, field in fields if field.metadata["search"] is not None}
    assert {"lr", "weight_decay"} <= set(ranges)
    for seed in range(200):
        random = np.random.RandomState(seed)
        hparams.build(**{key: distribution.draw(random) for key, distribution in ranges.items()})
