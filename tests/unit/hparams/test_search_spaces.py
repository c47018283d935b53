"""Search spaces: DomainBed's exact values, the paper's ranges, and rules from a user's file."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from domainwise.algorithms import ALGORITHMS
from domainwise.data.image_datasets import PUBLISHED
from domainwise.data.mnist import MNIST_SEARCH
from domainwise.errors import DomainwiseError
from domainwise.hparams import (
    MNIST_DATASETS,
    PHOTO_DATASETS,
    SPACES,
    Choice,
    Power,
    SearchTask,
    Uniform,
    draw_hparams,
    read_space,
)
from domainwise.seeds import seed_hash
from domainwise.storage.discovery import _DOMAINBED_DATASETS

Draw = Callable[[np.random.RandomState], Any]

# By our names: DomainBed's name and how it draws the value for photographs.
COMMON: Mapping[str, tuple[str, Draw]] = {
    "lr": ("lr", lambda r: 10 ** r.uniform(-5, -3.5)),
    "weight_decay": ("weight_decay", lambda r: 10 ** r.uniform(-6, -2)),
    "batch_size": ("batch_size", lambda r: int(2 ** r.uniform(3, 5.5))),
    "dropout": ("resnet_dropout", lambda r: r.choice([0.0, 0.1, 0.5])),
}
OWN: Mapping[str, Mapping[str, tuple[str, Draw]]] = {
    "erm": {},
    "irm": {
        "penalty_weight": ("irm_lambda", lambda r: 10 ** r.uniform(-1, 5)),
        "anneal_steps": ("irm_penalty_anneal_iters", lambda r: int(10 ** r.uniform(0, 4))),
    },
    "vrex": {
        "penalty_weight": ("vrex_lambda", lambda r: 10 ** r.uniform(-1, 5)),
        "anneal_steps": ("vrex_penalty_anneal_iters", lambda r: int(10 ** r.uniform(0, 4))),
    },
    "groupdro": {"group_step_size": ("groupdro_eta", lambda r: 10 ** r.uniform(-3, -1))},
    "mixup": {"alpha": ("mixup_alpha", lambda r: 10 ** r.uniform(-1, 1))},
    "mldg": {
        "meta_test_weight": ("mldg_beta", lambda r: 10 ** r.uniform(-1, 1)),
        "meta_test_domains": ("n_meta_test", lambda r: r.choice([1, 2])),
    },
    "mmd": {"penalty_weight": ("mmd_gamma", lambda r: 10 ** r.uniform(-1, 1))},
    "coral": {"penalty_weight": ("mmd_gamma", lambda r: 10 ** r.uniform(-1, 1))},
    "dann": {
        "lr": ("lr_g", lambda r: 10 ** r.uniform(-5, -3.5)),
        "weight_decay": ("weight_decay_g", lambda r: 10 ** r.uniform(-6, -2)),
        "adversary_weight": ("lambda", lambda r: 10 ** r.uniform(-2, 2)),
        "discriminator_steps": ("d_steps_per_g_step", lambda r: int(2 ** r.uniform(0, 3))),
        "gradient_penalty": ("grad_penalty", lambda r: 10 ** r.uniform(-2, 1)),
        "beta1": ("beta1", lambda r: r.choice([0.0, 0.5])),
        "width": ("mlp_width", lambda r: int(2 ** r.uniform(6, 10))),
        "depth": ("mlp_depth", lambda r: int(r.choice([3, 4, 5]))),
        "discriminator_dropout": ("mlp_dropout", lambda r: r.choice([0.0, 0.1, 0.5])),
        "discriminator_lr": ("lr_d", lambda r: 10 ** r.uniform(-5, -3.5)),
        "discriminator_weight_decay": ("weight_decay_d", lambda r: 10 ** r.uniform(-6, -2)),
    },
    "mtl": {"ema": ("mtl_ema", lambda r: r.choice([0.5, 0.9, 0.99, 1.0]))},
    "sagnet": {"adversarial_weight": ("sag_w_adv", lambda r: 10 ** r.uniform(-2, 1))},
    "rsc": {
        "feature_drop": ("rsc_f_drop_factor", lambda r: r.uniform(0, 0.5)),
        "sample_drop": ("rsc_b_drop_factor", lambda r: r.uniform(0, 0.5)),
    },
    "andmask": {"agreement": ("tau", lambda r: r.uniform(0.5, 1.0))},
    "sd": {"penalty_weight": ("sd_reg", lambda r: 10 ** r.uniform(-5, -1))},
    "iberm": {
        "penalty_weight": ("ib_lambda", lambda r: 10 ** r.uniform(-1, 5)),
        "anneal_steps": ("ib_penalty_anneal_iters", lambda r: int(10 ** r.uniform(0, 4))),
    },
    "ibirm": {
        "penalty_weight": ("irm_lambda", lambda r: 10 ** r.uniform(-1, 5)),
        "anneal_steps": ("irm_penalty_anneal_iters", lambda r: int(10 ** r.uniform(0, 4))),
        "bottleneck_weight": ("ib_lambda", lambda r: 10 ** r.uniform(-1, 5)),
        "bottleneck_anneal_steps": ("ib_penalty_anneal_iters", lambda r: int(10 ** r.uniform(0, 4))),
    },
    "fishr": {
        "penalty_weight": ("lambda", lambda r: 10 ** r.uniform(1, 4)),
        "anneal_steps": ("penalty_anneal_iters", lambda r: int(r.uniform(0, 5000))),
        "ema": ("ema", lambda r: r.uniform(0.90, 0.99)),
    },
    "eqrm": {
        "quantile": ("eqrm_quantile", lambda r: r.uniform(0.5, 0.99)),
        "burn_in_steps": ("eqrm_burnin_iters", lambda r: 10 ** r.uniform(2.5, 3.5)),
        "quantile_lr": ("eqrm_lr", lambda r: 10 ** r.uniform(-7, -5)),
    },
    "rdm": {
        "penalty_weight": ("rdm_lambda", lambda r: r.uniform(0.1, 10)),
        "anneal_steps": ("rdm_penalty_anneal_iters", lambda r: int(r.uniform(800, 2700))),
        "variance_weight": ("variance_weight", lambda r: r.uniform(0.001, 0.007)),
        "annealed_lr": ("rdm_lr", lambda r: r.uniform(8e-6, 2e-5)),
    },
    "cad": {
        "penalty_weight": ("lmbda", lambda r: r.choice([1e-4, 1e-3, 1e-2, 1e-1, 1, 1e1, 1e2])),
        "temperature": ("temperature", lambda r: r.choice([0.05, 0.1])),
    },
    "condcad": {
        "penalty_weight": ("lmbda", lambda r: r.choice([1e-4, 1e-3, 1e-2, 1e-1, 1, 1e1, 1e2])),
        "temperature": ("temperature", lambda r: r.choice([0.05, 0.1])),
    },
    "causirlcoral": {"penalty_weight": ("mmd_gamma", lambda r: 10 ** r.uniform(-1, 1))},
    "causirlmmd": {"penalty_weight": ("mmd_gamma", lambda r: 10 ** r.uniform(-1, 1))},
    # DomainBed also draws two values that its Transfer does not use, and the optimizer, always one that trains nothing.
    "transfer": {
        "gap_weight": ("t_lambda", lambda r: 10 ** r.uniform(-2, 1)),
        "radius": ("delta", lambda r: r.uniform(0.1, 3.0)),
        "ascent_steps": ("d_steps_per_g", lambda r: int(r.choice([1, 2, 5]))),
        "ascent_step_size": ("lr_d", lambda r: 10 ** r.uniform(-4.5, -2.5)),
    },
    "urm": {
        "adversary_weight": ("urm_adv_lambda", lambda r: r.uniform(0, 0.2)),
        "activation": ("urm_generator_output", lambda r: r.choice(["tanh", "relu"])),
        "hidden_layers": ("urm_discriminator_hidden_layers", lambda r: int(r.choice([1, 2, 3]))),
        "discriminator_lr": ("urm_discriminator_lr", lambda r: 10 ** r.uniform(-6, -4.5)),
    },
    "ermplusplus": {"head_lr": ("linear_lr", lambda r: 10 ** r.uniform(-5, -3.5))},
    # DomainBed's ADRMX draws a weight decay and does not use it.
    "adrmx": {
        "lr": ("lr", lambda r: r.choice([2e-5, 3e-5, 4e-5, 5e-5])),
        "weight_decay": ("weight_decay", lambda r: 0.0),
        "depth": ("mlp_depth", lambda r: int(r.choice([8, 9, 10]))),
    },
    "fish": {"meta_step": ("meta_lr", lambda r: r.choice([0.05, 0.1, 0.5]))},
    "sandmask": {
        "agreement": ("tau", lambda r: r.uniform(0.0, 1.0)),
        "steepness": ("k", lambda r: 10 ** r.uniform(-3, 5)),
    },
    "iga": {"penalty_weight": ("penalty", lambda r: 10 ** r.uniform(1, 5))},
    "trm": {
        "implicit_weight": ("cos_lambda", lambda r: 10 ** r.uniform(-5, 0)),
        "anneal_steps": ("iters", lambda r: int(10 ** r.uniform(0, 4))),
        "group_step_size": ("groupdro_eta", lambda r: 10 ** r.uniform(-3, -1)),
    },
    "selfreg": {},
    "arm": {},
}
OWN = {**OWN, "cdann": OWN["dann"]}


def depend_on_dataset(algorithm: str, dataset: str) -> dict[str, tuple[str, Draw]]:
    """What DomainBed draws otherwise for this dataset, its branches one by one."""
    theirs: dict[str, tuple[str, Draw]] = {}
    if dataset in MNIST_DATASETS:
        suffix = "_g" if algorithm in ("dann", "cdann") else ""
        theirs["lr"] = f"lr{suffix}", lambda r: 10 ** r.uniform(-4.5, -2.5)
        theirs["weight_decay"] = f"weight_decay{suffix}", lambda r: 0.0
        theirs["batch_size"] = "batch_size", lambda r: int(2 ** r.uniform(3, 9))
        if suffix:
            theirs["discriminator_lr"] = "lr_d", lambda r: 10 ** r.uniform(-4.5, -2.5)
        if algorithm == "urm":
            theirs["discriminator_lr"] = "urm_discriminator_lr", lambda r: 10 ** r.uniform(-5.5, -3.5)
        if algorithm == "adrmx":
            theirs["lr"] = "lr", lambda r: r.choice([5e-4, 1e-3, 2e-3, 3e-3])
    elif dataset == "domainnet":
        theirs["batch_size"] = "batch_size", lambda r: int(2 ** r.uniform(3, 5))
    if algorithm == "arm" and dataset not in MNIST_DATASETS:
        theirs["batch_size"] = "batch_size", lambda r: 8
    if algorithm != "rdm" or dataset in MNIST_DATASETS:
        return theirs
    if dataset == "domainnet":
        theirs["penalty_weight"] = "rdm_lambda", lambda r: r.uniform(0.1, 1)
        theirs["anneal_steps"] = "rdm_penalty_anneal_iters", lambda r: int(r.uniform(1500, 3000))
    elif dataset in ("pacs", "terra_incognita"):
        theirs["penalty_weight"] = "rdm_lambda", lambda r: r.uniform(1, 10)
    if dataset in ("terra_incognita", "office_home", "domainnet"):
        theirs["variance_weight"] = "variance_weight", lambda r: 0.0
    low, high = (30, 60) if dataset in ("domainnet", "terra_incognita") else (70, 100)
    theirs["batch_size"] = "batch_size", lambda r: int(r.uniform(low, high))
    return theirs


def task(algorithm: str, dataset: str = "pacs") -> SearchTask:
    published = PUBLISHED[dataset].settings.get("search", {}) if dataset in PUBLISHED else {}
    ranges = MNIST_SEARCH if dataset in MNIST_DATASETS else published
    return SearchTask(algorithm, ALGORITHMS[algorithm].Hparams, dataset, ranges)


def draw(space: str, task: SearchTask, hparams_seed: int, trial_seed: int = 0) -> dict[str, Any]:
    return draw_hparams(read_space(space)(task), hparams_seed, trial_seed)


@pytest.mark.parametrize("algorithm", OWN)
@pytest.mark.parametrize("dataset", [*MNIST_DATASETS, *PHOTO_DATASETS])
def test_the_domainbed_space_draws_what_domainbed_draws(algorithm: str, dataset: str) -> None:
    ranges = {**COMMON, **OWN[algorithm], **depend_on_dataset(algorithm, dataset)}
    for hparams_seed, trial_seed in ((1, 0), (7, 2)):
        seed = seed_hash(hparams_seed, trial_seed)
        theirs = {name: value(np.random.RandomState(seed_hash(seed, key))) for name, (key, value) in ranges.items()}
        assert draw("domainbed", task(algorithm, dataset), hparams_seed, trial_seed) == theirs


def test_all_baselines_of_domainbed_are_compared() -> None:
    other = {"at", "uat", "mat", "ldat", "gut", "ncdg", "miro", "sam", "sagm", "randconv", "mixstyle", "dsu"}
    assert set(OWN) == set(ALGORITHMS) - other


def test_all_datasets_of_domainbed_are_compared() -> None:
    converted = {name for name, _ in _DOMAINBED_DATASETS.values()}
    assert sorted((*MNIST_DATASETS, *PHOTO_DATASETS)) == sorted(converted)


def test_ranges_of_a_method_on_a_dataset_apply_to_that_dataset_and_method_only() -> None:
    assert 70 <= draw("domainbed", task("rdm", "vlcs"), 3)["batch_size"] < 100
    assert draw("domainbed", task("rdm", "photos"), 3)["batch_size"] == draw("domainbed", task("erm"), 3)["batch_size"]
    as_on_pacs = draw("domainbed:pacs", task("rdm", "photos"), 3)
    assert as_on_pacs == draw("domainbed", task("rdm"), 3) != draw("domainbed", task("rdm", "photos"), 3)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_settings_for_datasets_are_searched_and_unique(algorithm: str) -> None:
    hparams = ALGORITHMS[algorithm].Hparams
    searched = {name for name, field in hparams.fields().items() if field.metadata["search"]} | {"batch_size"}
    keys = [(setting.name, dataset) for setting in hparams.BY_DATASET for dataset in setting.datasets]
    assert {name for name, _ in keys} <= searched
    assert len(keys) == len(set(keys))
    assert {dataset for _, dataset in keys} <= {*MNIST_DATASETS, *PHOTO_DATASETS}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_method_accepts_its_draws(algorithm: str) -> None:
    for seed, dataset in enumerate(("pacs", "office_home", "domainnet", "colored_mnist") * 5):
        values = draw("domainbed", task(algorithm, dataset), seed)
        own = {name: value for name, value in values.items() if name not in ("batch_size", "dropout")}
        ALGORITHMS[algorithm].Hparams.build(**own)


def test_draw_0_is_the_defaults_and_draws_differ_between_trials() -> None:
    assert draw("domainbed", task("irm"), 0) == {}
    assert draw("domainbed", task("irm"), 1, trial_seed=0) != draw("domainbed", task("irm"), 1, trial_seed=1)


def test_draw_0_of_the_papers_space_is_its_fixed_set() -> None:
    common = {"lr": 5e-5, "batch_size": 64, "weight_decay": 0.001, "dropout": 0.1}
    assert draw("paper", task("erm"), 0) == common
    assert draw("paper", task("mat", "vlcs"), 0) == {
        **common,
        "epsilon": 0.1,
        "step_size": 0.1,
        "weight_step_size": 0.001,
        "weights": "domain",
        "warmup": 0.0,
    }
    assert draw("paper", task("ldat", "nico"), 0) == {
        **common,
        "epsilon": 0.1,
        "step_size": 0.01,
        "solver": "factors",
        "warmup": 0.0,
    }
    assert draw("paper", task("at", "pacs"), 0) == {**common, "epsilon": 0.1, "step_size": 0.1, "warmup": 0.0}


@pytest.mark.parametrize("algorithm", ["erm", "at", "uat", "mat", "ldat"])
@pytest.mark.parametrize("dataset", ["pacs", "office_home", "vlcs", "nico", "colored_mnist"])
def test_draw_0_is_inside_the_papers_ranges(algorithm: str, dataset: str) -> None:
    own = task(algorithm, dataset)
    dataset_defaults = {"lr": 1e-3, "batch_size": 64} if dataset in MNIST_DATASETS else {"lr": 5e-5, "batch_size": 32}
    fields = {name: field.default for name, field in own.hparams.fields().items()}
    values = {"dropout": 0.0, **fields, **dataset_defaults, **draw("paper", own, 0)}
    for name, dimension in read_space("paper")(own).items():
        match dimension.distribution:
            case Power(base, low, high):
                assert base**low <= values[name] <= base**high, name
            case Uniform(low, high):
                assert low <= values[name] <= high, name
            case Choice(options):
                assert values[name] in options, name


def test_the_papers_ranges() -> None:
    space = read_space("paper")

    def values(algorithm: str, dataset: str, name: str) -> list[Any]:
        dimensions = space(task(algorithm, dataset))
        return [draw_hparams({name: dimensions[name]}, seed, 0)[name] for seed in range(1, 200)]

    assert set(values("mat", "pacs", "count")) == {5, 10, 15, 20}
    assert set(values("mat", "pacs", "weight_decay")) == {0.001}
    assert set(values("at", "pacs", "dropout")) == {0.0, 0.1, 0.5}
    assert set(values("ldat", "office_home", "step_size")) == {0.1, 0.01}
    assert set(values("ldat", "nico", "rank")) == set(range(10, 20))
    decays = values("erm", "nico", "weight_decay")
    assert 1e-4 <= min(decays) < 1.2e-4
    assert 0.8e-3 < max(decays) <= 1e-3
    radii = values("mat", "colored_mnist", "epsilon")
    assert 0.1 <= min(radii) < 0.2
    assert 50 < max(radii) <= 100
    assert set(values("mat", "colored_mnist", "count")) == set(range(5, 20))


def test_a_space_as_for_another_dataset() -> None:
    as_on_nico = [draw("paper:nico", task("ldat", "photos"), seed) for seed in range(5)]
    assert as_on_nico == [draw("paper", task("ldat", "nico"), seed) for seed in range(5)]
    with pytest.raises(DomainwiseError, match="search space paper has no rule for ldat on photos"):
        draw("paper", task("ldat", "photos"), 1)


def test_error_for_a_method_without_a_rule() -> None:
    with pytest.raises(DomainwiseError, match="search space paper has no rule for irm on pacs"):
        draw("paper", task("irm"), 1)


def rules(folder: Path, text: str) -> str:
    file = folder / "space.toml"
    file.write_text(text)
    return str(file)


def test_later_rules_override_earlier_ones(tmp_path: Path) -> None:
    space = rules(
        tmp_path,
        """
        [[rule]]
        lr = 0.1
        epsilon = { uniform = [1, 2] }
        [[rule]]
        algorithms = ["ldat"]
        epsilon = { choice = [7, 8], default = 7 }
        """,
    )
    mat, ldat = draw(space, task("mat"), 1), draw(space, task("ldat"), 1)
    assert mat["lr"] == ldat["lr"] == 0.1
    assert 1 <= mat["epsilon"] <= 2
    assert ldat["epsilon"] in (7, 8)
    assert draw(space, task("mat"), 0) == {"lr": 0.1}
    assert draw(space, task("ldat"), 0) == {"lr": 0.1, "epsilon": 7}
    expected = np.random.RandomState(seed_hash(seed_hash(1, 0), "epsilon")).uniform(1, 2)
    assert mat["epsilon"] == expected


def test_the_base_supplies_what_no_rule_sets(tmp_path: Path) -> None:
    space = rules(tmp_path, 'base = "domainbed"\n[[rule]]\ndatasets = ["pacs"]\nlr = 0.1')
    assert draw(space, task("irm"), 4) == {**draw("domainbed", task("irm"), 4), "lr": 0.1}
    assert draw(space, task("irm", "vlcs"), 4) == draw("domainbed", task("irm", "vlcs"), 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no rules"),
        ("rule = 3", "has no rules"),
        ("[[rule]]\nlr = {power = [10, 1]}", "lr in rule 1 of .* has an invalid distribution power"),
        (
            "[[rule]]\nlr = {power = [10, 300, 400]}",
            "lr in rule 1 .*U\\(300, 400\\) is beyond the largest number",
        ),
        ("[[rule]]\nlr = {power = [10, 100, 200]}", "lr in rule 1 .* must end at most at 1e\\+30, got 1e\\+100"),
        ("[[rule]]\nlr = {power = [-10, 0.1, 0.5]}", "lr in rule 1 .* base of a power must be above 0, got -10"),
        ("[[rule]]\nlr = {uniform = [0, inf]}", "lr in rule 1 .* must end at most at 1e\\+30, got inf"),
        ("[[rule]]\nlr = {uniform = [nan, 1]}", "lr in rule 1 .* must end at most at 1e\\+30, got nan"),
        ("[[rule]]\nlr = {normal = [0, 1]}", "lr in rule 1 .* must have exactly one of uniform, power, choice"),
        ("[[rule]]\nlr = {choice = []}", "expected a non-empty list of options"),
        ("[[rule]]\nlrr = 1", "unknown hyperparameter of erm .*'lrr'; did you mean 'lr'"),
        ('[[rule]]\ndatasets = "pacs"', "datasets in rule 1 .* must be a list"),
        ("[[rules]]\nlr = 1", "did you mean 'rule'"),
        ('base = "paper"\n[[rule]]\nlr = 1', "must be 'domainbed'"),
        ("lr = ", "could not be read"),
    ],
)
def test_errors_for_invalid_files(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DomainwiseError, match=message):
        draw(rules(tmp_path, text), task("erm"), 1)


def test_errors_for_unknown_spaces_and_missing_files() -> None:
    assert SPACES == ("domainbed", "diwa", "paper")
    with pytest.raises(DomainwiseError, match="did you mean 'domainbed'"):
        read_space("domainbad")
    with pytest.raises(DomainwiseError, match=r"no-such\.toml could not be read: No such file"):
        read_space("no-such.toml")


def test_diwa_draws_mild_values_and_leaves_a_methods_own_alone() -> None:
    draws = [draw("diwa", task("coral"), number) for number in range(1, 30)]
    assert {each["lr"] for each in draws} == {1e-5, 3e-5, 5e-5}
    assert {each["weight_decay"] for each in draws} == {1e-4, 1e-6}
    assert {each["dropout"] for each in draws} == {0.0, 0.1, 0.5}
    assert {each["batch_size"] for each in draws} == {32}
    theirs = [draw("domainbed", task("coral"), number)["penalty_weight"] for number in range(1, 30)]
    assert [each["penalty_weight"] for each in draws] == theirs


def test_a_choice_of_one_option_is_that_option() -> None:
    assert Choice((0.0,)).draw(np.random.RandomState(5)) == 0.0
