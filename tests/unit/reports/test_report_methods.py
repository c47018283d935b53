"""The order of methods, and runs of one method told apart by the settings that differ, and by no more."""

from pathlib import Path

import pytest

from domainwise.algorithms import ALGORITHMS
from domainwise.errors import DomainwiseError
from domainwise.reports.html.page_data import read_page_data
from domainwise.reports.methods import METHOD_ORDER, Variant, read_variants, sort_methods
from domainwise.selection.runs import DuplicateRuns
from run_folders import write_run


def names(folder: Path) -> set[str]:
    return set(read_variants([folder], split_variants=True)[0].frame["algorithm"])


def test_name_has_the_setting_that_differs(tmp_path: Path) -> None:
    write_run(tmp_path / "erm", "erm", "art", hparams={"lr": 0.1})
    for epsilon in (0.5, 2.0, 10):
        write_run(tmp_path / f"mat{epsilon}", "mat", "art", hparams={"lr": 0.1, "epsilon": epsilon, "count": 5})
    assert names(tmp_path) == {"erm", "mat, epsilon 0.5", "mat, epsilon 2", "mat, epsilon 10"}


def test_redundant_settings_are_not_in_the_name(tmp_path: Path) -> None:
    for epsilon in (0.5, 2.0):
        write_run(tmp_path / f"at{epsilon}", "at", "art", hparams={"epsilon": epsilon, "step_size": epsilon})
    assert names(tmp_path) == {"at, epsilon 0.5", "at, epsilon 2"}


def test_name_has_two_settings_if_one_is_not_enough(tmp_path: Path) -> None:
    for epsilon in (0.5, 2.0):
        for size in (32, 64):
            write_run(tmp_path / f"{epsilon}-{size}", "at", "art", hparams={"epsilon": epsilon}, batch_size=size)
    assert names(tmp_path) == {f"at, epsilon {e}, batch_size {s}" for e in ("0.5", "2") for s in (32, 64)}


def test_runs_without_duplicates_join_their_variant(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "mat", "art", hparams={"epsilon": 0.5})
    write_run(tmp_path / "b", "mat", "art", hparams={"epsilon": 2.0})
    write_run(tmp_path / "c", "mat", "sketch", hparams={"epsilon": 2.0})
    frame = read_variants([tmp_path], split_variants=True)[0].frame
    assert set(frame.filter(frame["test_domain"] == "sketch")["algorithm"]) == {"mat, epsilon 2"}


def test_other_datasets_and_draws_keep_their_names(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "mat", "art", hparams={"epsilon": 0.5})
    write_run(tmp_path / "b", "mat", "art", hparams={"epsilon": 2.0})
    write_run(tmp_path / "c", "mat", "art", hparams={"epsilon": 0.1}, dataset="other")
    write_run(tmp_path / "d", "mat", "art", hparams={"epsilon": 0.2}, dataset="other", draw=1)
    frame = read_variants([tmp_path], split_variants=True)[0].frame
    assert set(frame.filter(frame["dataset"] == "other")["algorithm"]) == {"mat"}


def test_page_runs_have_the_same_names(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "mat", "art", hparams={"epsilon": 0.5})
    write_run(tmp_path / "b", "mat", "art", hparams={"epsilon": 2.0})
    data = read_page_data([tmp_path], split_variants=True)
    assert {each.planned.algorithm for each in data.page_runs.values()} == set(data.variants)


def test_without_duplicates_nothing_changes(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "mat", "art", hparams={"epsilon": 0.5})
    write_run(tmp_path / "b", "mat", "sketch", hparams={"epsilon": 2.0})
    assert names(tmp_path) == {"mat"}
    assert read_variants([tmp_path], split_variants=True)[1] == {}


def test_duplicates_with_the_same_settings_raise_an_error(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "mat", "art", hparams={"epsilon": 0.5})
    write_run(tmp_path / "b", "mat", "art", hparams={"epsilon": 0.5})
    write_run(tmp_path / "c", "mat", "art", hparams={"epsilon": 2.0})
    with pytest.raises(DuplicateRuns, match="they have the same settings"):
        read_variants([tmp_path], split_variants=True)
    with pytest.raises(
        DomainwiseError,
        match=r"counted twice: leave one of them out, or tell them apart by their settings with --split-variants$",
    ):
        read_variants([tmp_path])


def test_only_duplicates_with_the_same_settings_raise_an_error(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "mat", "art", hparams={"epsilon": 0.5})
    write_run(tmp_path / "b", "mat", "art", hparams={"epsilon": 0.5})
    with pytest.raises(DuplicateRuns, match="they have the same settings"):
        read_variants([tmp_path], split_variants=True)


def test_variants_are_sorted_by_value_and_methods_by_the_papers_order() -> None:
    variants = {each.name: each for each in (Variant("mat", (("epsilon", value),)) for value in (10, 2.0, 0.5))}
    given = ["own", *variants, "ldat", "erm"]
    expected = ["erm", "mat, epsilon 0.5", "mat, epsilon 2", "mat, epsilon 10", "ldat", "own"]
    assert sort_methods(given, variants) == tuple(expected)


def test_nearly_equal_numbers_have_different_names() -> None:
    assert Variant("mat", (("epsilon", 0.1 + 0.2),)).name != Variant("mat", (("epsilon", 0.3),)).name
    assert Variant("mat", (("epsilon", 0.3), ("norm", "l2"))).name_without("epsilon") == "mat, norm l2"


def test_methods_are_in_the_papers_order() -> None:
    assert sort_methods(["zeta", "ldat", "mat", "irm", "alpha", "uat", "at", "erm", "erm"]) == (
        *("erm", "at", "irm", "uat", "mat", "ldat"),
        *("alpha", "zeta"),
    )


def test_every_method_has_a_place_in_the_order() -> None:
    assert sorted(METHOD_ORDER) == sorted(ALGORITHMS)
