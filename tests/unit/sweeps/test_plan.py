"""The runs that a sweep needs, and no others."""

import tomllib
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch

from domainwise.data import Dataset, Domain
from domainwise.errors import DomainwiseError
from domainwise.sweeps.plan import PlannedRun, plan
from domainwise.sweeps.spec import SweepSpec

NAMES = ("art", "cartoon", "photo", "sketch")


def four_domains(seed: int = 0) -> Dataset:
    images, labels = torch.zeros(10, 3, 8, 8, dtype=torch.uint8), torch.arange(10) % 2
    return Dataset("four", ("a", "b"), tuple(Domain(name, images, labels) for name in NAMES))


def validated(seed: int = 0) -> Dataset:
    images, labels = torch.zeros(10, 3, 8, 8, dtype=torch.uint8), torch.arange(10) % 2
    roles = {"one": "train", "two": "train", "three": "validation", "four": "test"}
    return Dataset("validated", ("a", "b"), tuple(Domain(n, images, labels, r) for n, r in roles.items()))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    # Builders of one's own, in the place of names: what a plan needs of a dataset is its domains.
    monkeypatch.setattr("domainwise.training.registry.DATASETS", {"four": four_domains, "validated": validated})


def planned(*selection: str, dataset: str = "four", **settings: Any) -> list[PlannedRun]:
    spec = SweepSpec((dataset,), settings.pop("algorithms", ("erm",)), selection or ("training_domain",), **settings)
    return plan(spec, Path("folder"))


def left_out(runs: list[PlannedRun]) -> list[tuple[str, ...]]:
    return [run.config.test_domains for run in runs]


@pytest.mark.parametrize("selection", ["training_domain", "test_domain"])
def test_each_domain_is_left_out_in_turn(selection: str) -> None:
    assert left_out(planned(selection)) == [(name,) for name in NAMES]


def test_leave_one_out_alone_needs_pairs_and_each_once() -> None:
    assert left_out(planned("leave_one_out")) == [*((name,) for name in NAMES), *combinations(NAMES, 2)]
    both = planned("training_domain", "leave_one_out")
    assert len(both) == len({run.name for run in both}) == 10


def test_only_the_pairs_of_the_domains_that_are_asked_for() -> None:
    runs = planned("leave_one_out", test_domains=("photo",))
    assert left_out(runs) == [("photo",), ("art", "photo"), ("cartoon", "photo"), ("photo", "sketch")]


def test_every_trial_draw_and_method() -> None:
    runs = planned(algorithms=("erm", "mat"), draws=3, trials=2)
    assert len(runs) == 4 * 2 * 3 * 2
    assert [run.config.trial_seed for run in runs] == [0] * 24 + [1] * 24
    assert {run.config.hparams_seed for run in runs} == {0, 1, 2}
    assert len({run.name for run in runs}) == len(runs)
    assert all(run.config.folder() == Path("folder") / run.name for run in runs)


def test_draws_differ_by_draw_and_trial_but_not_by_test_domain() -> None:
    drawn: dict[tuple[int, int], set[Any]] = {}
    for run in planned(draws=3, trials=2):
        key = (run.config.hparams_seed, run.config.trial_seed)
        drawn.setdefault(key, set()).add((run.config.hparams.get("lr"), run.config.batch_size, run.config.dropout))
    assert all(len(values) == 1 for values in drawn.values())
    assert drawn[0, 0] == drawn[0, 1] == {(None, None, 0.0)}
    assert len({next(iter(values)) for values in drawn.values()}) == 5


def test_what_is_fixed_is_not_drawn() -> None:
    runs = planned(algorithms=("erm", "mat"), draws=2, hparams={"lr": 0.5, "epsilon": 7.0}, settings={"batch_size": 4})
    assert {run.config.hparams["lr"] for run in runs} == {0.5}
    assert {run.config.batch_size for run in runs} == {4}
    assert all(("epsilon" in run.config.hparams) == (run.config.algorithm == "mat") for run in runs)


def test_named_training_domains_test_on_all_others_at_once() -> None:
    (run,) = planned(settings={"train_domains": ("photo",)})
    assert run.config.test_domains == ("art", "cartoon", "sketch")
    assert run.config.train_domains == ("photo",)


def test_fixed_roles_are_one_run_and_may_have_a_validation_domain() -> None:
    assert left_out(planned("ood_validation", dataset="validated")) == [("four",)]


@pytest.mark.parametrize(
    ("dataset", "selection", "message"),
    [
        ("four", "ood_validation", "ood_validation needs a validation domain, which four does not have"),
        ("validated", "leave_one_out", "leave_one_out leaves out each domain in turn; those of validated have fixed"),
    ],
)
def test_a_selection_that_the_data_does_not_allow(dataset: str, selection: str, message: str) -> None:
    with pytest.raises(DomainwiseError, match=message):
        planned(selection, dataset=dataset)


def test_a_domain_that_is_not_there() -> None:
    with pytest.raises(DomainwiseError, match="unknown domain of four 'phota'; did you mean 'photo'"):
        planned(test_domains=("phota",))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"draws": 0}, "draws must be at least 1"),
        ({"trials": -1}, "trials must be at least 1"),
        ({"algorithms": ()}, "at least one of algorithms"),
        ({"algorithms": ("erm", "erm")}, "names one twice"),
        ({"algorithms": ("emr",)}, "unknown algorithm 'emr'; did you mean 'erm'"),
        ({"settings": {"stepz": 3}}, "did you mean 'steps'"),
        ({"space": "papier"}, "did you mean 'paper'"),
    ],
)
def test_specs_that_make_no_sense(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DomainwiseError, match=message):
        planned(**settings)


def test_unknown_selections() -> None:
    with pytest.raises(DomainwiseError, match="did you mean 'training_domain'"):
        planned("training_domains")


def spec(**changed: Any) -> SweepSpec:
    given: dict[str, Any] = {"datasets": ("four",), "algorithms": ("erm", "mat"), "draws": 2, "trials": 2}
    return SweepSpec(**{**given, **changed})


def test_a_spec_reads_back_as_it_was_written(tmp_path: Path) -> None:
    given = spec(
        settings={"steps": 300, "augment": False, "weights": 'a "b" \\ c\td', "dataset_options": {"shifts": (0, 8.5)}},
        hparams={"epsilon": 1e-7, "loss_cap": 2.0},
    )
    read = tomllib.loads(given.as_toml())
    assert read["settings"] == {
        **given.settings,
        "dataset_options": {"shifts": [0, 8.5]},
    }
    assert read["hparams"] == dict(given.hparams)
    assert (read["draws"], read["algorithms"]) == (2, ["erm", "mat"])


@pytest.mark.parametrize(
    "wider", [{}, {"draws": 5}, {"trials": 3}, {"algorithms": ("ldat", "mat", "erm")}, {"datasets": ("four", "x")}]
)
def test_a_wider_sweep_goes_on_in_the_same_folder(tmp_path: Path, wider: dict[str, Any]) -> None:
    file = tmp_path / "sweep.toml"
    spec().claim(file)
    spec(**wider).claim(file)
    assert tomllib.loads(file.read_text()) == tomllib.loads(spec(**wider).as_toml())


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"draws": 1}, "begun with draws 2, not 1"),
        ({"algorithms": ("erm",)}, "begun with algorithms erm mat, not erm"),
        ({"settings": {"steps": 3}}, "begun with settings"),
        ({"space": "paper"}, "begun with space domainbed, not paper"),
        ({"hparams": {"epsilon": 1.0}}, "begun with hparams"),
    ],
)
def test_another_sweep_is_refused_and_the_folder_left_alone(
    tmp_path: Path, other: dict[str, Any], message: str
) -> None:
    file = tmp_path / "sweep.toml"
    spec().claim(file)
    before = file.read_bytes()
    with pytest.raises(DomainwiseError, match=message):
        spec(**other).claim(file)
    assert file.read_bytes() == before


def test_a_damaged_spec_says_so(tmp_path: Path) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text("datasets = [")
    with pytest.raises(DomainwiseError, match=r"sweep\.toml cannot be read"):
        spec().claim(file)
