"""A plan has the runs that the selection rules need, and no others."""

import json
from itertools import combinations, product
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from domainwise.data import Dataset, Domain
from domainwise.errors import DomainwiseError
from domainwise.sweeps.plan import MAX_RUNS, Plan, plan_sweep
from domainwise.sweeps.spec import SweepSpec

NAMES = ("art", "cartoon", "photo", "sketch")


def four_domains(seed: int = 0) -> Dataset:
    images, labels = torch.zeros(10, 3, 8, 8, dtype=torch.uint8), torch.arange(10) % 2
    return Dataset("four", ("a", "b"), tuple(Domain(name, images, labels) for name in NAMES))


def fixed_roles(seed: int = 0) -> Dataset:
    images, labels = torch.zeros(10, 3, 8, 8, dtype=torch.uint8), torch.arange(10) % 2
    roles = {"one": "train", "two": "train", "three": "validation", "four": "test"}
    domains = tuple(Domain(name, images, labels, role) for name, role in roles.items())  # type: ignore[arg-type]
    return Dataset("fixed", ("a", "b"), domains)


@pytest.fixture(autouse=True)
def datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("domainwise.training.registry.DATASETS", {"four": four_domains, "fixed": fixed_roles})


def make_plan(*selection: str, dataset: str = "four", placement: dict[str, Any] | None = None, **values: Any) -> Plan:
    spec = SweepSpec((dataset,), values.pop("algorithms", ("erm",)), selection or ("training_domain",), **values)
    return plan_sweep(spec, Path("folder"), placement=placement)


def collect_test_domains(plan: Plan) -> list[tuple[str, ...]]:
    assert all(run.test_domains == config.test_domains for run, config in plan.items())
    return [run.test_domains for run in plan]


@pytest.mark.parametrize("selection", ["training_domain", "test_domain"])
def test_each_domain_is_held_out_in_turn(selection: str) -> None:
    assert collect_test_domains(make_plan(selection)) == [(name,) for name in NAMES]


def test_only_leave_one_out_plans_pairs_and_each_once() -> None:
    assert collect_test_domains(make_plan("leave_one_out")) == [*((name,) for name in NAMES), *combinations(NAMES, 2)]
    both = make_plan("training_domain", "leave_one_out")
    assert len(both) == len({run.name for run in both}) == 10


def test_pairs_contain_a_requested_test_domain() -> None:
    plan = make_plan("leave_one_out", test_domains=("photo",))
    assert collect_test_domains(plan) == [("photo",), ("art", "photo"), ("cartoon", "photo"), ("photo", "sketch")]


def test_every_trial_draw_and_method_is_planned() -> None:
    plan = make_plan(algorithms=("erm", "mat"), draws=3, trials=2)
    assert len(plan) == 4 * 2 * 3 * 2
    assert [run.trial for run in plan] == [0] * 24 + [1] * 24
    assert {run.draw for run in plan} == {0, 1, 2}
    assert len({run.name for run in plan}) == len(plan)
    for run, config in plan.items():
        assert (run.trial, run.draw, run.algorithm) == (config.trial_seed, config.hparams_seed, config.algorithm)
        assert run.folder == config.folder() == Path("folder") / run.name


def test_draws_depend_on_draw_and_trial_but_not_on_the_test_domain() -> None:
    values: dict[tuple[int, int], set[Any]] = {}
    for config in make_plan(draws=3, trials=2).values():
        key = (config.hparams_seed, config.trial_seed)
        values.setdefault(key, set()).add((config.hparams.get("lr"), config.batch_size, config.dropout))
    assert all(len(each) == 1 for each in values.values())
    assert values[0, 0] == values[0, 1] == {(None, None, 0.0)}
    assert len({next(iter(each)) for each in values.values()}) == 5


def test_fixed_values_are_not_drawn() -> None:
    plan = make_plan(
        algorithms=("erm", "mat"), draws=2, hparams={"lr": 0.5, "epsilon": 7.0}, settings={"batch_size": 4}
    )
    assert {config.hparams["lr"] for config in plan.values()} == {0.5}
    assert {config.batch_size for config in plan.values()} == {4}
    assert all(("epsilon" in config.hparams) == (config.algorithm == "mat") for config in plan.values())


def draws_of(plan: Plan, algorithm: str, *names: str) -> list[tuple[Any, ...]]:
    """The draw and the values of each run of a method, on one test domain."""
    configs = [config for config in plan.values() if config.algorithm == algorithm and config.test_domains == ("art",)]
    return [(config.hparams_seed, *(config.hparams.get(name) for name in names)) for config in configs]


def test_the_draws_of_a_grid_are_its_points_in_order() -> None:
    plan = make_plan(
        algorithms=("erm", "uat", "mat"),
        trials=2,
        grid={"epsilon": (0.1, 2.0, 0.5), "count": (3, 5)},
        hparams={"lr": 0.5},
    )
    # ERM has neither, UAT has the radius, MAT has both.
    assert draws_of(plan, "erm", "epsilon") == [(0, None)] * 2
    assert draws_of(plan, "uat", "epsilon") == [(0, 0.1), (1, 2.0), (2, 0.5)] * 2
    points = [(0, 0.1, 3), (1, 0.1, 5), (2, 2.0, 3), (3, 2.0, 5), (4, 0.5, 3), (5, 0.5, 5)]
    assert draws_of(plan, "mat", "epsilon", "count") == points * 2
    assert {config.hparams["lr"] for config in plan.values()} == {0.5}
    assert len(plan) == len({run.name for run in plan}) == 4 * 2 * (1 + 3 + 6)
    assert {name.partition("-draw")[2] for name in (run.name for run in plan)} == {
        f"{draw}-trial{trial}" for draw in range(6) for trial in range(2)
    }


def test_what_is_not_in_the_grid_is_that_of_the_first_draw(tmp_path: Path) -> None:
    space = tmp_path / "space.toml"
    space.write_text("[[rule]]\nlr = { power = [10, -4, -3], default = 0.25 }\nepsilon = 7.0\n")
    configs = make_plan(algorithms=("uat",), space=str(space), grid={"epsilon": (0.1, 0.5)}).values()
    assert {(config.hparams["lr"], config.hparams["epsilon"]) for config in configs} == {(0.25, 0.1), (0.25, 0.5)}


def test_a_grid_with_leave_one_out_plans_pairs_for_each_point() -> None:
    plan = make_plan("leave_one_out", algorithms=("erm", "uat"), grid={"epsilon": (0.1, 0.5)})
    assert len(plan) == (4 + 6) * (1 + 2)


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({"epsilom": (0.1,)}, "unknown hyperparameter 'epsilom'; did you mean 'epsilon'"),
        ({"count": (1, 2)}, "unknown hyperparameter 'count'"),
        ({"epsilon": (0.1, -1.0)}, "hyperparameter epsilon must be a number of at least 0, .* got -1.0"),
    ],
)
def test_invalid_grids(grid: dict[str, Any], message: str) -> None:
    with pytest.raises(DomainwiseError, match=message):
        make_plan(algorithms=("erm", "uat"), grid=grid)


def test_given_training_domains_test_on_all_others_at_once() -> None:
    (config,) = make_plan(settings={"train_domains": ("photo",)}).values()
    assert config.test_domains == ("art", "cartoon", "sketch")
    assert config.train_domains == ("photo",)


def test_fixed_roles_are_one_run_and_may_have_a_validation_domain() -> None:
    assert collect_test_domains(make_plan("ood_validation", dataset="fixed")) == [("four",)]


def test_placement_reaches_every_config() -> None:
    plan = make_plan(placement={"device": "cpu", "threads": 3})
    assert {(config.device, config.threads) for config in plan.values()} == {("cpu", 3)}
    with pytest.raises(DomainwiseError, match="unknown placement setting 'devise'; did you mean 'device'"):
        make_plan(placement={"devise": "cpu"})


@pytest.mark.parametrize(
    ("dataset", "selection", "message"),
    [
        ("four", "ood_validation", "ood_validation requires a validation domain, and four has none"),
        ("fixed", "leave_one_out", "leave_one_out holds out each domain in turn, but fixed has fixed roles"),
    ],
)
def test_selections_that_the_dataset_does_not_support(dataset: str, selection: str, message: str) -> None:
    with pytest.raises(DomainwiseError, match=message):
        make_plan(selection, dataset=dataset)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"test_domains": ("phota",)}, "unknown test domain 'phota'; did you mean 'photo'"),
        ({"algorithms": ("emr",)}, "unknown algorithm 'emr'; did you mean 'erm'"),
        ({"space": "papier"}, "did you mean 'paper'"),
    ],
)
def test_unknown_names(values: dict[str, Any], message: str) -> None:
    with pytest.raises(DomainwiseError, match=message):
        make_plan(**values)


def test_link_has_its_own_name_unless_earlier_runs_have_its_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOMAINWISE_CACHE", str(tmp_path / "cache"))
    for domain, kind in product(("day", "night"), ("cat", "dog")):
        folder = tmp_path / "v3" / domain / kind
        folder.mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(folder / "1.png")
    (tmp_path / "pets").symlink_to("v3")
    spec = SweepSpec((str(tmp_path / "pets"),), ("erm",), settings={"dataset_options": {"image_size": 8}})
    runs = list(plan_sweep(spec, tmp_path / "new"))
    assert [(run.name, run.dataset) for run in runs] == [
        (f"pets-erm-{domain}-draw0-trial0", "pets") for domain in ("day", "night")
    ]
    # As a sweep of an earlier version left it.
    earlier = tmp_path / "old" / "v3-erm-day-draw0-trial0"
    earlier.mkdir(parents=True)
    (earlier / "config.json").write_text(json.dumps({"config": {"dataset": "v3"}, "data": {}}))
    plan = plan_sweep(spec, tmp_path / "old")
    assert [(run.name, run.dataset) for run in plan] == [
        (f"v3-erm-{domain}-draw0-trial0", "v3") for domain in ("day", "night")
    ]
    assert {config.dataset_name for config in plan.values()} == {"v3"}


def test_an_unknown_test_domain_next_to_a_known_one_is_an_error() -> None:
    known = next(iter(make_plan())).test_domains[0]
    with pytest.raises(DomainwiseError, match="unknown test domain 'nowhere'"):
        make_plan(test_domains=(known, "nowhere"))


def test_trials_before_the_first_are_left_out() -> None:
    spec = SweepSpec(("four",), ("erm", "mat"), draws=2, trials=3)
    later = plan_sweep(spec, Path("folder"), first_trial=1)
    everything = plan_sweep(spec, Path("folder"))
    assert later == {run: config for run, config in everything.items() if run.trial >= 1}
    assert list(later) == list(everything)[len(everything) // 3 :]


@pytest.mark.parametrize(
    ("values", "count"),
    [
        ({"draws": 10**9}, "1,000,000,000"),
        ({"trials": 10**9}, "1,000,000,000"),
        ({"draws": MAX_RUNS // 4 + 1}, "100,004"),  # four test domains
        ({"algorithms": ("mat",), "grid": dict.fromkeys(("epsilon", "lr"), tuple(range(1, 1001)))}, "1,000,000"),
    ],
)
def test_a_plan_that_is_too_large_is_refused_before_it_is_made(values: dict[str, Any], count: str) -> None:
    with pytest.raises(DomainwiseError, match=f"the sweep would have {count} runs, and at most 100,000 are possible"):
        make_plan(**values)


def test_a_plan_that_is_too_large_is_refused_before_data_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("domainwise.training.registry.DATASETS", {"four": lambda seed: pytest.fail("data was read")})
    with pytest.raises(DomainwiseError, match="at most 100,000 are possible"):
        make_plan(draws=MAX_RUNS + 1)
