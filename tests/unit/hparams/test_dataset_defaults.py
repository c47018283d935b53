"""Order of precedence: the user, the variant, the method on a dataset, the dataset, the field."""

from dataclasses import replace
from typing import Any

import pytest

from domainwise.algorithms import ALGORITHMS, AT, LDAT
from domainwise.data import silhouettes
from domainwise.hparams import MNIST_DATASETS, PHOTO_DATASETS
from domainwise.training.config import RunConfig
from domainwise.training.registry import resolve_config

DATASET = {"epsilon": 0.5, "step_size": 0.5, "rank": 5}
PHOTOS, DIGITS = {"lr": 5e-5, "batch_size": 32}, {"lr": 1e-3, "batch_size": 64}
# DomainBed's defaults for RDM: weight of the distance, steps before it, weight of the variance, batch size.
RDM = {
    "colored_mnist": (5.0, 1500, 0.004, 64),
    "rotated_mnist": (5.0, 1500, 0.004, 64),
    "pacs": (5.0, 1500, 0.004, 88),
    "vlcs": (5.0, 1500, 0.004, 88),
    "office_home": (5.0, 1500, 0.0, 88),
    "terra_incognita": (5.0, 1500, 0.0, 40),
    "domainnet": (0.5, 2400, 0.0, 40),
}


def resolve(algorithm: str, dataset: str, **settings: Any) -> dict[str, Any]:
    """Return the hyperparameters and the batch size of a run on a dataset of this name."""
    defaults = DIGITS if dataset in MNIST_DATASETS else PHOTOS
    data = replace(silhouettes(train_count=4, test_count=2), name=dataset, defaults=defaults)
    config, _ = resolve_config(RunConfig(algorithm=algorithm, **settings), data)
    return {**config.hparams, "batch_size": config.batch_size}


def test_a_dataset_replaces_defaults_but_not_what_the_variant_implies() -> None:
    standard = LDAT.Hparams.build(DATASET).as_dict()
    assert (standard["epsilon"], standard["step_size"], standard["rank"]) == (0.5, None, 10)
    paper = LDAT.Hparams.build(DATASET, variant="paper").as_dict()
    assert (paper["epsilon"], paper["step_size"], paper["rank"]) == (0.5, 0.5, 5)


def test_explicit_values_take_precedence() -> None:
    explicit = LDAT.Hparams.build(DATASET, step_size=0.2, rank=3).as_dict()
    assert (explicit["step_size"], explicit["rank"]) == (0.2, 3)


def test_the_rank_of_a_dataset_is_not_meant_for_at() -> None:
    for variant in ("standard", "paper", "released"):
        assert AT.Hparams.build(DATASET, variant=variant).as_dict()["rank"] is None


@pytest.mark.parametrize("dataset", [*MNIST_DATASETS, *PHOTO_DATASETS])
def test_defaults_that_depend_on_method_and_dataset_are_domainbeds(dataset: str) -> None:
    is_small = dataset in MNIST_DATASETS
    rdm, urm, adrmx = (resolve(algorithm, dataset) for algorithm in ("rdm", "urm", "adrmx"))
    names = "penalty_weight", "anneal_steps", "variance_weight", "batch_size"
    assert tuple(rdm[name] for name in names) == RDM[dataset]
    assert (rdm["lr"], rdm["annealed_lr"]) == (1e-3 if is_small else 5e-5, 1.5e-5)
    # Without a value of its own, the discriminator has the network's learning rate.
    assert (urm["lr"], urm["discriminator_lr"]) == (1e-3 if is_small else 5e-5, None)
    assert (adrmx["lr"], adrmx["batch_size"]) == ((3e-3, 64) if is_small else (3e-5, 32))


def test_the_user_overrides_what_a_method_has_on_a_dataset() -> None:
    given = resolve("rdm", "domainnet", batch_size=16, hparams={"penalty_weight": 2.0})
    assert (given["batch_size"], given["penalty_weight"], given["anneal_steps"]) == (16, 2.0, 2400)


@pytest.mark.parametrize("algorithm", [name for name, method in ALGORITHMS.items() if not method.Hparams.BY_DATASET])
def test_other_methods_have_the_defaults_of_the_dataset(algorithm: str) -> None:
    for dataset, defaults in (("pacs", PHOTOS), ("colored_mnist", DIGITS)):
        given = resolve(algorithm, dataset)
        assert {name: given[name] for name in defaults} == defaults
