"""Runs that would fill the same place are named apart by what differs, and by no more."""

from pathlib import Path

import pytest

from domainwise.errors import DomainwiseError
from domainwise.reports.html.page_data import Variant, in_order, read_material
from domainwise.selection.runs import DuplicateRuns
from run_folders import write_run


def names(folder: Path) -> set[str]:
    return set(read_material([folder], variants="split").runs.frame["algorithm"])


def test_the_setting_that_differs_is_in_the_name(tmp_path: Path) -> None:
    write_run(tmp_path / "erm", "erm", "art", hparams={"lr": 0.1})
    for epsilon in (0.5, 2.0, 10):
        write_run(tmp_path / f"mat{epsilon}", "mat", "art", hparams={"lr": 0.1, "epsilon": epsilon, "count": 5})
    assert names(tmp_path) == {"erm", "mat, epsilon 0.5", "mat, epsilon 2", "mat, epsilon 10"}


def test_a_setting_that_goes_along_with_another_is_not(tmp_path: Path) -> None:
    for epsilon in (0.5, 2.0):
        write_run(tmp_path / f"at{epsilon}", "at", "art", hparams={"epsilon": epsilon, "step_size": epsilon})
    assert names(tmp_path) == {"at, epsilon 0.5", "at, epsilon 2"}


def test_two_settings_where_one_is_not_enough(tmp_path: Path) -> None:
    for epsilon in (0.5, 2.0):
        for size in (32, 64):
            write_run(tmp_path / f"{epsilon}-{size}", "at", "art", hparams={"epsilon": epsilon}, batch_size=size)
    assert names(tmp_path) == {f"at, epsilon {e}, batch_size {s}" for e in ("0.5", "2") for s in (32, 64)}


def test_runs_that_do_not_clash_join_their_variant(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "mat", "art", hparams={"epsilon": 0.5})
    write_run(tmp_path / "b", "mat", "art", hparams={"epsilon": 2.0})
    write_run(tmp_path / "c", "mat", "sketch", hparams={"epsilon": 2.0})
    frame = read_material([tmp_path], variants="split").runs.frame
    assert set(frame.filter(frame["test_domain"] == "sketch")["algorithm"]) == {"mat, epsilon 2"}


def test_other_datasets_and_draws_keep_their_names(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "mat", "art", hparams={"epsilon": 0.5})
    write_run(tmp_path / "b", "mat", "art", hparams={"epsilon": 2.0})
    write_run(tmp_path / "c", "mat", "art", hparams={"epsilon": 0.1}, dataset="other")
    write_run(tmp_path / "d", "mat", "art", hparams={"epsilon": 0.2}, dataset="other", draw=1)
    frame = read_material([tmp_path], variants="split").runs.frame
    assert set(frame.filter(frame["dataset"] == "other")["algorithm"]) == {"mat"}


def test_facts_have_the_same_names(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "mat", "art", hparams={"epsilon": 0.5})
    write_run(tmp_path / "b", "mat", "art", hparams={"epsilon": 2.0})
    material = read_material([tmp_path], variants="split")
    assert {each.planned.algorithm for each in material.facts.values()} == set(material.variants)


def test_without_clashes_nothing_changes(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "mat", "art", hparams={"epsilon": 0.5})
    write_run(tmp_path / "b", "mat", "sketch", hparams={"epsilon": 2.0})
    assert names(tmp_path) == {"mat"}
    assert read_material([tmp_path], variants="split").variants == {}


def test_the_same_settings_twice_stay_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "mat", "art", hparams={"epsilon": 0.5})
    write_run(tmp_path / "b", "mat", "art", hparams={"epsilon": 0.5})
    write_run(tmp_path / "c", "mat", "art", hparams={"epsilon": 2.0})
    with pytest.raises(DuplicateRuns, match="they have the same settings"):
        read_material([tmp_path], variants="split")
    with pytest.raises(DomainwiseError, match=r"would be counted twice: leave one of them out$"):
        read_material([tmp_path])


def test_all_the_same_is_refused_too(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "mat", "art", hparams={"epsilon": 0.5})
    write_run(tmp_path / "b", "mat", "art", hparams={"epsilon": 0.5})
    with pytest.raises(DuplicateRuns, match="they have the same settings"):
        read_material([tmp_path], variants="split")


def test_values_stand_in_their_order_and_methods_in_the_papers() -> None:
    variants = {each.name: each for each in (Variant("mat", (("epsilon", value),)) for value in (10, 2.0, 0.5))}
    given = ["own", *variants, "ldat", "erm"]
    expected = ["erm", "mat, epsilon 0.5", "mat, epsilon 2", "mat, epsilon 10", "ldat", "own"]
    assert in_order(given, variants) == expected


def test_numbers_that_differ_little_have_names_that_differ() -> None:
    assert Variant("mat", (("epsilon", 0.1 + 0.2),)).name != Variant("mat", (("epsilon", 0.3),)).name
    assert Variant("mat", (("epsilon", 0.3), ("norm", "l2"))).without("epsilon") == "mat, norm l2"
