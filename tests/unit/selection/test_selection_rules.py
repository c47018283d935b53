"""The selections, against the rules in plain Python on random sweeps and against cases worked out by hand."""

import random

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from domainwise.selection import SELECTIONS, build_frame
from selection_by_hand import Cell, Choice, Record, choose, random_sweep, record, run_name, tenth


def chosen_by(selection: str, records: list[Record]) -> pl.DataFrame:
    return SELECTIONS[selection](build_frame((run_name(each), each) for each in records))


def choices(chosen: pl.DataFrame) -> dict[Cell, Choice]:
    return {
        (row["dataset"], row["algorithm"], row["test_domain"], row["trial"]): Choice(
            row["draw"], row["step"], row["accuracy"]
        )
        for row in chosen.iter_rows(named=True)
    }


SWEEPS = {
    "seed": st.integers(0, 2**32),
    "domains": st.integers(2, 4),
    "draws": st.integers(1, 4),
    "trials": st.integers(1, 2),
}


@pytest.mark.parametrize("selection", [name for name in SELECTIONS if name != "ood_validation"])
@settings(max_examples=40, deadline=None)
@given(**SWEEPS)
def test_choices_on_random_sweeps(selection: str, seed: int, domains: int, draws: int, trials: int) -> None:
    records = random_sweep(seed, domains, draws, trials)
    chosen = chosen_by(selection, records)
    assert choices(chosen) == choose(records, selection)
    assert chosen.height == len(choices(chosen))


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32), draws=st.integers(1, 4), validations=st.integers(1, 3))
def test_choices_by_validation_domains(seed: int, draws: int, validations: int) -> None:
    dice = random.Random(seed)
    validation = [f"context{index}" for index in range(validations)]
    records = []
    for draw in range(draws):
        for step in (0, 100, 200):
            # Whole domains: nobody has a holdout.
            accuracy = {name: (tenth(dice), None) for name in ("train", *validation, "shift_1", "shift_2")}
            records.append(
                record(step, accuracy, ["shift_1", "shift_2"], draw=draw, roles="fixed", validation=validation)
            )
    dice.shuffle(records)
    chosen = chosen_by("ood_validation", records)
    assert choices(chosen) == choose(records, "ood_validation")
    assert chosen["test_domain"].to_list() == ["shift_1", "shift_2"]
    assert chosen["training"].null_count() == 2
    assert all(chosen_by(other, records).is_empty() for other in SELECTIONS if other != "ood_validation")


def single(step: int, main: float, holdouts: tuple[float, float], draw: int = 0, own: float = 0.5) -> Record:
    first, second = holdouts
    return record(step, {"a": (None, first), "b": (None, second), "c": (main, own)}, ["c"], draw=draw)


def test_training_domain_takes_the_highest_mean_at_any_step() -> None:
    records = [single(0, 0.1, (0.9, 0.1)), single(100, 0.2, (0.6, 0.6)), single(200, 0.3, (0.5, 0.6))]
    row = chosen_by("training_domain", records).row(0, named=True)
    assert (row["step"], row["accuracy"], row["draws"]) == (100, 0.2, 1)
    assert row["score"] == row["training"] == pytest.approx(0.6)
    assert row["run"] == "pacs-erm-c-0-0"


def test_of_equal_steps_the_earliest_and_of_equal_draws_the_largest() -> None:
    records = [
        single(step, accuracy, (0.5, 0.5), draw)
        for draw, step, accuracy in ((0, 0, 0.1), (0, 100, 0.2), (1, 100, 0.3), (1, 200, 0.4), (2, 0, 0.9))
    ]
    assert choices(chosen_by("training_domain", records)) == {("pacs", "erm", "c", 0): Choice(2, 0, 0.9)}
    without_the_largest = [each for each in records if each["hparams_seed"] < 2]
    for selection in ("training_domain", "test_domain"):
        row = chosen_by(selection, without_the_largest).row(0, named=True)
        assert row["draw"] == 1
        assert row["draws"] == 2
        assert row["step"] == (100 if selection == "training_domain" else 200)


def with_radius(epsilon: float | str, holdout: float, draw: int, main: float = 0.5, step: int = 0) -> Record:
    """A record whose standard error is .05: the holdouts are .05 above and below their mean."""
    each = single(step, main, (holdout - 0.05, holdout + 0.05), draw)
    each["hparams"]["epsilon"] = epsilon
    return each


def test_one_standard_error_takes_the_largest_radius_that_is_close_to_the_best() -> None:
    records = [
        with_radius(0.1, 0.9, draw=0),
        with_radius(0.5, 0.88, draw=1),
        # Just within, at its best step, after one that is not; the third is just outside.
        with_radius(2.0, 0.3, draw=2, step=0),
        with_radius(2.0, 0.8501, draw=2, step=100, main=0.7),
        with_radius(2.0, 0.8, draw=2, step=200),
        with_radius(8.0, 0.8499, draw=3),
    ]
    row = chosen_by("one_standard_error", records).row(0, named=True)
    assert (row["draw"], row["step"], row["accuracy"], row["draws"]) == (2, 100, 0.7, 4)
    assert row["score"] == row["training"] == pytest.approx(0.8501)
    assert chosen_by("training_domain", records)["draw"].to_list() == [0]


def test_one_standard_error_of_equal_radii_takes_the_higher_holdout() -> None:
    radii_and_holdouts = ((0.1, 0.9), (0.5, 0.89), (0.5, 0.87), (0.5, 0.89))
    records = [with_radius(*each, draw=draw) for draw, each in enumerate(radii_and_holdouts)]
    assert chosen_by("one_standard_error", records)["draw"].to_list() == [3]


def test_one_standard_error_compares_radii_of_the_unit_of_the_best_only() -> None:
    records = [with_radius("1/255 rms", 0.88, 0), with_radius("2/255 rms", 0.9, 1), with_radius("4/255 rms", 0.86, 2)]
    assert chosen_by("one_standard_error", records)["draw"].to_list() == [2]
    assert chosen_by("one_standard_error", [*records, with_radius(0.5, 0.89, 3)])["draw"].to_list() == [2]
    assert chosen_by("one_standard_error", [*records, with_radius(0.5, 0.91, 3)])["draw"].to_list() == [3]


def test_without_a_radius_one_standard_error_is_training_domain() -> None:
    records = [single(0, 0.1, (0.4, 0.6), 0), single(0, 0.2, (0.5, 0.6), 1), single(0, 0.3, (0.5, 0.5), 2)]
    assert chosen_by("one_standard_error", records).equals(chosen_by("training_domain", records))


def test_attacked_holdout_takes_the_highest_accuracy_under_attack() -> None:
    records = [single(0, 0.1, (0.9, 0.9), 0), single(0, 0.2, (0.8, 0.8), 1), single(0, 0.3, (0.7, 0.7), 2)]
    assert chosen_by("attacked_holdout", records).is_empty()
    for each, values in zip(records, ((0.1, 0.2), (0.3, 0.2), (0.9, None)), strict=True):
        for name, value in zip("ab", values, strict=True):
            each["accuracy"][name] |= {} if value is None else {"attacked": value}
    # The third is not measured on both domains.
    row = chosen_by("attacked_holdout", records).row(0, named=True)
    assert (row["draw"], row["score"], row["accuracy"]) == (1, 0.25, 0.2)


def test_test_domain_looks_at_the_last_step_of_each_run_only() -> None:
    records = [
        single(0, 0.11, (0.5, 0.5), draw=0, own=0.99),
        single(200, 0.12, (0.5, 0.5), draw=0, own=0.4),
        single(0, 0.13, (0.5, 0.5), draw=1, own=0.98),
        single(100, 0.14, (0.5, 0.5), draw=1, own=0.6),
    ]
    row = chosen_by("test_domain", records).row(0, named=True)
    assert (row["draw"], row["step"], row["accuracy"], row["score"]) == (1, 100, 0.14, 0.6)


def pair(tested: str, first: float, second: float, step: int = 0, draw: int = 0) -> Record:
    """A run on a, b, c that leaves out two, with its main accuracies on them."""
    mains = dict(zip(tested, (first, second), strict=True))
    return record(step, {name: (mains.get(name), 0.5) for name in "abc"}, list(tested), draw=draw)


def test_leave_one_out_uses_the_accuracy_on_the_other_domain_left_out() -> None:
    records = [
        single(0, 0.7, (0.9, 0.9), draw=0),
        single(0, 0.6, (0.1, 0.1), draw=1),
        # For c: draw 0 has .2 on a and .4 on b, draw 1 has .5 and .3; what they have on c itself must not count.
        pair("ac", 0.2, 1.0, draw=0),
        pair("bc", 0.4, 1.0, draw=0),
        pair("ca", 0.0, 0.5, draw=1),
        pair("cb", 0.0, 0.3, draw=1),
    ]
    chosen = chosen_by("leave_one_out", records)
    assert choices(chosen) == {("pacs", "erm", "c", 0): Choice(1, 0, 0.6)}
    assert chosen["score"].to_list() == [pytest.approx(0.4)]
    assert chosen["draws"].to_list() == [2]


def test_leave_one_out_counts_only_steps_that_all_runs_have() -> None:
    records = [
        *(single(step, accuracy, (0.5, 0.5)) for step, accuracy in ((0, 0.1), (100, 0.2), (200, 0.3))),
        *(pair("ac", 0.3, 0.0, step) for step in (0, 100, 200)),
        *(pair("bc", value, 0.0, step) for step, value in ((0, 0.4), (100, 0.5))),
        # A step at which the run itself has no record.
        *(pair(tested, 1.0, 1.0, 300) for tested in ("ac", "bc")),
    ]
    assert choices(chosen_by("leave_one_out", records)) == {("pacs", "erm", "c", 0): Choice(0, 100, 0.2)}
    assert chosen_by("leave_one_out", [each for each in records if each["test_domains"] != ["b", "c"]]).is_empty()


def test_leave_one_out_misses_a_pair_whose_accuracy_was_not_measured() -> None:
    records = [single(0, 0.7, (0.5, 0.5)), pair("ac", 0.2, 1.0), pair("bc", 0.4, 1.0)]
    assert chosen_by("leave_one_out", records).height == 1
    records[2]["accuracy"]["b"]["main"] = float("nan")
    assert chosen_by("leave_one_out", records).is_empty()


def test_leave_one_out_never_takes_a_run_with_fixed_or_named_roles_for_a_pair() -> None:
    """Such a run trained on the same domains as the one it would help to select."""
    alone = record(0, {"a": (None, 0.5), "b": (0.5, 0.5)}, ["b"], roles="named")
    both = record(0, {"a": (None, 0.5), "b": (0.5, 0.5), "c": (0.5, 0.5)}, ["b", "c"], roles="named")
    assert chosen_by("leave_one_out", [alone, both]).is_empty()
    assert chosen_by("training_domain", [both])["test_domain"].to_list() == ["b", "c"]


def test_ties_are_those_of_numpy() -> None:
    """.1 + .2 + .3 is not .3 + .2 + .1 when rounded at each step, so the smaller draw wins by the last bit."""
    assert (0.1 + 0.2 + 0.3) / 3 > (0.3 + 0.2 + 0.1) / 3
    names = "abc"
    holdouts = {0: (0.1, 0.2, 0.3), 1: (0.3, 0.2, 0.1)}
    by_training = [
        record(0, {**{name: (None, value) for name, value in zip(names, values, strict=True)}, "d": (0.5, 0.5)}, "d")
        | {"hparams_seed": draw}
        for draw, values in holdouts.items()
    ]
    assert chosen_by("training_domain", by_training)["draw"].to_list() == [0]
    by_pairs = list(by_training)
    for draw, values in holdouts.items():
        for name, value in zip(names, values, strict=True):
            accuracy = {other: (value if other == name else 0.5, 0.5) for other in "abcd"}
            by_pairs.append(record(0, accuracy, [name, "d"], draw=draw))
    assert chosen_by("leave_one_out", by_pairs)["draw"].to_list() == [0]


def test_trials_methods_and_datasets_choose_for_themselves() -> None:
    records = [
        single(step, accuracy, (score, score)) | changes
        for changes, step, accuracy, score in (
            ({"trial_seed": 0}, 0, 0.1, 0.9),
            ({"trial_seed": 0}, 100, 0.2, 0.8),
            ({"trial_seed": 1}, 0, 0.3, 0.1),
            ({"trial_seed": 1}, 100, 0.4, 0.2),
            ({"algorithm": "mat"}, 0, 0.5, 0.7),
            ({"dataset": "vlcs"}, 0, 0.6, 0.7),
        )
    ]
    assert choices(chosen_by("training_domain", records)) == {
        ("pacs", "erm", "c", 0): Choice(0, 0, 0.1),
        ("pacs", "erm", "c", 1): Choice(0, 100, 0.4),
        ("pacs", "mat", "c", 0): Choice(0, 0, 0.5),
        ("vlcs", "erm", "c", 0): Choice(0, 0, 0.6),
    }


def test_a_run_with_two_domains_left_out_is_no_result() -> None:
    records = [pair("ab", 1.0, 1.0), pair("ac", 1.0, 1.0)]
    assert all(chosen_by(selection, records).is_empty() for selection in SELECTIONS)


def test_what_is_not_a_number_is_never_the_highest() -> None:
    nan = float("nan")
    records = [single(0, 0.1, (nan, 0.9), own=0.2), single(100, 0.2, (0.3, 0.3), own=0.2)]
    assert chosen_by("training_domain", records)["step"].to_list() == [100]
    records = [single(0, 0.1, (0.5, 0.5), draw=0, own=0.3), single(0, 0.2, (0.5, 0.5), draw=1, own=nan)]
    assert chosen_by("test_domain", records)["draw"].to_list() == [0]
    assert chosen_by("training_domain", [single(0, nan, (0.9, 0.9)), single(9, 0.2, (0.1, 0.1))])["step"][0] == 9


def test_a_mean_of_some_training_domains_does_not_compete_with_one_of_all() -> None:
    records = [single(0, 0.1, (0.9, 0.9)), single(100, 0.2, (0.3, 0.3))]
    del records[0]["accuracy"]["a"]["holdout"]
    assert chosen_by("training_domain", records)["step"].to_list() == [100]


def test_a_frame_has_all_that_selection_looks_at() -> None:
    given_record = record(
        7,
        {"a": (None, 0.25), "b": (None, 0.75), "v": (0.5, 0.1), "c": (0.375, 0.125)},
        ["c"],
        draw=3,
        trial=2,
        validation="v",
    )
    assert build_frame([("here", given_record)]).rows() == [
        (
            "here",
            "pacs",
            "erm",
            2,
            3,
            7,
            ["c"],
            "c",
            3,
            4,
            True,
            None,
            None,
            False,
            0.5,
            0.25,
            None,
            None,
            0.5,
            0.375,
            0.125,
        ),
    ]
    given_record["hparams"]["epsilon"] = "51/255 rms"
    given_record["accuracy"]["a"]["attacked"], given_record["accuracy"]["b"]["attacked"] = 0.125, 0.5
    row = build_frame([("here", given_record)]).row(0, named=True)
    assert (row["epsilon"], row["epsilon_unit"], row["attacked"]) == (0.2, "rms", 0.3125)


def test_named_training_domains_make_another_task() -> None:
    named = record(0, {"a": (None, 0.5), "b": (None, 0.5), "c": (0.5, 0.5)}, ["c"], roles="named")
    assert build_frame([("here", named)])["dataset"].to_list() == ["pacs from a, b"]


def test_no_records_choose_nothing() -> None:
    for selection in SELECTIONS:
        assert chosen_by(selection, []).is_empty()
