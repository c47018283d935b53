"""Tables compared with numbers computed by hand, and every reason for an empty cell."""

from dataclasses import replace

import pytest
from report_runs import DOMAINS, on_each, plan, run, runs_of

from domainwise.errors import DomainwiseError
from domainwise.reports import build_report
from domainwise.reports.cells import Cell, Column, Row, Table, format_parts, mark_best
from domainwise.selection.runs import Runs


def table_of(runs: Runs, title: str = "toy", selection: str = "training_domain", **settings: object) -> Table:
    report = build_report(runs, [selection], **settings)  # type: ignore[arg-type]
    (table,) = [one for one in report.tables if one.title == title]
    return table


def cell_of(table: Table, algorithm: str, column: str) -> Cell:
    (row,) = [row for row in table.rows if row.algorithm == algorithm]
    (index,) = [index for index, one in enumerate(table.columns) if one.name == column]
    return row.cells[index]


def text(table: Table) -> str:
    return "\n".join(table.footnotes)


# Trials of .6, .7 and .8 have the mean 70 and the standard deviation 10 (ddof 1), over the root of three 5.7735.
THREE_TRIALS = [
    *(run("mat", "art", value, trial=trial) for trial, value in enumerate((0.6, 0.7, 0.8))),
    *(run("mat", "cartoon", value, trial=trial) for trial, value in enumerate((0.5, 0.5, 0.8))),
    *(run("mat", "sketch", 0.333, trial=trial) for trial in range(3)),
]


def test_cell_is_the_mean_over_trials_with_its_standard_error() -> None:
    cell = cell_of(table_of(runs_of(THREE_TRIALS)), "mat", "art")
    assert cell.mean == pytest.approx(70.0)
    assert cell.error == pytest.approx(5.773503)
    assert cell.trials == 3
    assert format_parts(cell, Column("art", "domain")) == ("70.0", "± 5.8")


def test_average_is_of_unrounded_cells() -> None:
    # Rounded cells, 70.0, 60.0 and 33.3, would come to 54.43 as well; .33349 would not.
    records = [*THREE_TRIALS[:6], *(run("mat", "sketch", 0.33349, trial=trial) for trial in range(3))]
    cell = cell_of(table_of(runs_of(records)), "mat", "Avg")
    assert cell.mean == pytest.approx((70 + 60 + 33.349) / 3, abs=1e-9)
    assert cell.error is None


def test_averages_table_has_the_error_over_trial_means() -> None:
    # The trials' means over domains are (.6+.5+.333)/3, (.7+.5+.333)/3 and (.8+.8+.333)/3: they
    # differ from their mean by -.0667, -.0333 and .1, a variance of .0077778.
    cell = cell_of(table_of(runs_of(THREE_TRIALS), "Averages"), "mat", "toy")
    assert cell.mean == pytest.approx(54.433333)
    assert cell.error == pytest.approx(5.091751, abs=1e-6)


def test_averages_over_datasets() -> None:
    records = [
        *on_each("erm", (0.5, 0.6, 0.7)),
        *on_each("mat", (0.7, 0.8, 0.9)),
        *on_each("erm", (0.9, 0.7), dataset="other", domains=("a", "b")),
    ]
    table = table_of(runs_of(records), "Averages")
    assert [column.name for column in table.columns] == ["other", "toy", "Avg"]
    assert cell_of(table, "erm", "Avg").mean == pytest.approx(70.0)
    assert cell_of(table, "mat", "other") == Cell(None, reason="no runs")
    assert cell_of(table, "mat", "Avg") == Cell(None, reason="missing: other")
    assert "mat on other: no runs." in table.footnotes


def test_average_over_fewer_domains_has_a_note_and_is_not_the_best() -> None:
    records = [*on_each("erm", (0.5, 0.6, 0.7)), *on_each("at", (0.5, 0.6, 0.6)), run("mat", "art", 0.99)]
    table = table_of(runs_of(records), "Averages")
    assert cell_of(table, "mat", "toy").mean == pytest.approx(99.0)
    assert "mat on toy: not all 3 test domains in trial 0." in table.footnotes
    assert [row.algorithm for row in table.rows if row.cells[0].is_best] == ["erm"]


def test_cells_with_fewer_trials_have_a_reason() -> None:
    records = [*THREE_TRIALS, *on_each("erm", (0.5, 0.6, 0.7))]
    table = table_of(runs_of(records))
    assert "erm: only 1 of 3 trials (no runs)." in table.footnotes
    assert cell_of(table, "erm", "art") == Cell(50.0, None, 1, "only 1 of 3 trials (no runs)")
    assert "erm on toy: only 1 of 3 trials." in table_of(runs_of(records), "Averages").footnotes


def test_the_footnote_names_the_error_that_the_cells_have() -> None:
    table = table_of(runs_of(THREE_TRIALS))
    assert cell_of(table, "mat", "art").error == pytest.approx(10 / 3**0.5)
    note = "± is the standard error over trials: their standard deviation (ddof 1) over the root of their number."
    assert note in table.footnotes


def test_reason_is_about_the_missing_trial_only() -> None:
    planned = [plan("mat", "art", "failed", "boom", trial=1), plan("mat", "art", "unfinished", trial=0, draw=1)]
    cell = cell_of(table_of(runs_of([run("mat", "art", 0.5)], planned)), "mat", "art")
    assert cell.reason == "only 1 of 2 trials (run failed: boom)"


def test_single_trial_has_no_error() -> None:
    table = table_of(runs_of(on_each("erm", (0.5, 0.6, 0.7))))
    assert [one.error for one in table.rows[0].cells] == [None] * 4
    assert "No ±: every cell is from a single trial." in table.footnotes


def test_best_of_each_column_includes_equal_looking_numbers() -> None:
    columns = (Column("a", "domain"), Column("gap", "gap"), Column("b", "domain"))
    rows = [
        Row("erm", (Cell(70.01), Cell(5.0), Cell(None))),
        Row("at", (Cell(69.99), Cell(9.0), Cell(1.0))),
        Row("mat", (Cell(69.94), Cell(1.0), Cell(None))),
    ]
    best = [[one.is_best for one in row.cells] for row in mark_best(columns, rows)]
    # A large gap is not better, and a single number is not the best of anything.
    assert best == [[True, False, False], [True, False, False], [False, False, False]]


def test_domains_are_in_the_datasets_order() -> None:
    records = [run("erm", name, 0.5, domains=("z", "a", "m")) for name in ("m", "a", "z")]
    table = table_of(runs_of(records, [plan("erm", "b", "pending")]))
    assert [column.name for column in table.columns] == ["z", "a", "m", "b", "Avg"]


def test_worst_gap_and_training() -> None:
    records = [
        run("mat", "art", 0.6, training=0.9),
        run("mat", "cartoon", 0.8, training=0.7),
        run("mat", "sketch", 0.7, training=0.8),
        run("erm", "art", 0.6, training=None, validation=0.5),
    ]
    table = table_of(runs_of(records), columns=["training", "worst", "gap"])
    assert [column.name for column in table.columns] == [*DOMAINS, "Avg", "worst", "gap", "training"]
    assert cell_of(table, "mat", "worst").mean == pytest.approx(60.0)
    assert cell_of(table, "mat", "training").mean == pytest.approx(80.0)
    assert cell_of(table, "mat", "gap").mean == pytest.approx(10.0)
    assert cell_of(table, "erm", "worst").reason == "a test domain is missing"
    by_validation = table_of(runs_of(records), selection="ood_validation", columns=["gap"])
    assert cell_of(by_validation, "erm", "gap") == Cell(None, reason="no holdout accuracy")


def test_worst_gap_and_training_of_several_datasets() -> None:
    records = [
        *on_each("erm", (0.5, 0.6, 0.7), training=0.9),
        *on_each("erm", (0.9, 0.7), dataset="other", domains=("a", "b"), training=0.8),
        *on_each("mat", (0.7, 0.8, 0.9), training=0.9),
    ]
    table = table_of(runs_of(records), "Averages", columns=["worst", "gap", "training"])
    assert [column.name for column in table.columns] == ["other", "toy", "Avg", "worst", "gap", "training"]
    assert cell_of(table, "erm", "worst").mean == pytest.approx(50.0)
    assert cell_of(table, "erm", "gap").mean == pytest.approx((30.0 + 0.0) / 2)
    assert cell_of(table, "erm", "training").mean == pytest.approx(85.0)
    for name in ("worst", "gap", "training"):
        assert cell_of(table, "mat", name) == Cell(None, reason="not available for every dataset")
        assert any(note.startswith(f"{name}: ") for note in table.footnotes)


def test_selection_by_the_test_domain_always_has_training_accuracy() -> None:
    records = [run("ldat", name, 0.7, training=0.376) for name in DOMAINS]
    for title in ("toy", "Averages"):
        assert "training" not in [column.name for column in table_of(runs_of(records), title).columns]
        table = table_of(runs_of(records), title, selection="test_domain")
        assert cell_of(table, "ldat", "training").mean == pytest.approx(37.6)
        assert "training: accuracy of the selected models" in text(table)


def test_footnotes_describe_runs_selection_and_draws() -> None:
    records = [run("mat", name, 0.5, draw=draw) for name in DOMAINS for draw in range(3)]
    failed = plan("mat", "art", "failed", "boom", draw=3)
    table = table_of(runs_of(records[:-1], [failed]))
    assert table.footnotes[0] == "Based on 8 runs (1 trial). Of 1 planned run: 1 failed."
    assert table.footnotes[1] == (
        "Selected by training_domain: highest mean accuracy on the training domains' holdouts, at any step."
    )
    assert table.footnotes[2] == "Selected from 3 hyperparameter draws per trial; only 2 for mat on sketch."
    assert "only 2" not in text(table_of(runs_of(records)))


def missing(runs: Runs, selection: str = "training_domain", domain: str = "sketch") -> str:
    table = table_of(runs, selection=selection)
    one = cell_of(table, "mat", domain)
    assert one.mean is None
    assert any(note.endswith(f": {one.reason}.") for note in table.footnotes)
    return one.reason


TWO = [run("mat", "art", 0.5), run("mat", "cartoon", 0.5), run("erm", "sketch", 0.5)]


@pytest.mark.parametrize(
    ("planned", "reason"),
    [
        ([], "no runs"),
        (
            [plan("mat", "sketch", "failed", "Error:\n out of memory")],
            "run failed: Error: out of memory",
        ),
        (
            [plan("mat", "sketch", "unfinished", draw=0), plan("mat", "sketch", "unfinished", draw=1)],
            "all 2 runs unfinished",
        ),
        (
            [
                plan("mat", "sketch", "unfinished"),
                plan("mat", "sketch", "pending", draw=1),
                plan("mat", "sketch", "failed", "boom", draw=2),
                plan("mat", "sketch", "failed", "crash", draw=3),
                plan("mat", "art", "failed", "elsewhere"),
                plan("erm", "sketch", "failed", "elsewhere"),
            ],
            "2 of 4 runs failed: boom (+1 other error), 1 of 4 runs unfinished, 1 of 4 runs pending",
        ),
        ([plan("mat", "sketch", "done")], "run done, but its records could not be used"),
    ],
)
def test_reason_of_a_cell_without_records(planned: list[object], reason: str) -> None:
    assert missing(runs_of(TWO, planned)) == reason  # type: ignore[arg-type]


def test_reason_of_a_cell_with_records() -> None:
    no_holdout = runs_of([*TWO, run("mat", "sketch", 0.5, training=None, holdout=None)])
    assert missing(no_holdout) == "no holdout accuracy on the training domains, which training_domain needs"
    assert missing(no_holdout, "test_domain") == "no holdout accuracy on the test domain, which test_domain needs"
    assert missing(no_holdout, "ood_validation") == "no validation domain, which ood_validation needs"
    assert missing(runs_of([*TWO, run("mat", "sketch", None)])) == "no accuracy on the test domain was recorded"


NEEDS = "leave_one_out needs runs that leave out two domains"


def test_leave_one_out_counts_missing_runs() -> None:
    alone = [run("mat", "sketch", 0.5), run("mat", "sketch", 0.5, draw=1)]
    one_pair = run("mat", ("art", "sketch"), 0.5)
    assert missing(runs_of(alone[:1]), "leave_one_out") == f"{NEEDS}; 2 of 2 missing"
    assert missing(runs_of([alone[0], one_pair]), "leave_one_out") == f"{NEEDS}; 1 of 2 missing"
    assert missing(runs_of([*alone, one_pair]), "leave_one_out") == f"{NEEDS}; 3 of 4 missing"
    # A pair without sketch, and one of another draw, do not help.
    useless = [run("mat", ("art", "cartoon"), 0.5), run("mat", ("cartoon", "sketch"), 0.5, draw=7)]
    assert missing(runs_of([alone[0], one_pair, *useless]), "leave_one_out") == f"{NEEDS}; 1 of 2 missing"
    late = run("mat", ("cartoon", "sketch"), 0.5, step=9)
    reason = f"{NEEDS}; no step has a record in all of them"
    assert missing(runs_of([alone[0], one_pair, late]), "leave_one_out") == reason
    fixed = run("mat", DOMAINS[1:], 0.5, roles="fixed")
    assert missing(runs_of([fixed]), "leave_one_out") == f"{NEEDS}; these test on 2 domains at once"


def test_runs_that_leave_out_two_domains_have_no_rows() -> None:
    pairs = [plan("mat", ("art", "cartoon"), "pending"), plan("irm", ("art", "sketch"), "pending")]
    table = table_of(runs_of(TWO, [*pairs, plan("mat", "art", "done")]))
    assert [row.algorithm for row in table.rows] == ["erm", "mat"]
    assert [column.name for column in table.columns] == [*DOMAINS, "Avg"]


def test_leave_one_out_counts_the_helper_runs() -> None:
    pairs = [run("mat", ("art", "sketch"), 0.4), run("mat", ("cartoon", "sketch"), 0.6)]
    runs = runs_of([run("mat", "sketch", 0.5), *pairs])
    assert table_of(runs).footnotes[0] == "Based on 1 run (1 trial)."
    table = table_of(runs, selection="leave_one_out")
    assert cell_of(table, "mat", "sketch").mean == pytest.approx(50.0)
    assert table.footnotes[0] == "Based on 3 runs (1 trial)."


def test_reasons_are_grouped() -> None:
    records = [*on_each("erm", (0.5, 0.5, 0.5)), run("mat", "art", 0.5)]
    planned = [plan("ldat", name, "pending") for name in DOMAINS]
    notes = table_of(runs_of(records, planned)).footnotes
    assert notes[-2:] == ("mat on cartoon, sketch: no runs.", "ldat: run pending.")
    everywhere = table_of(runs_of(records), selection="ood_validation").footnotes
    assert "erm; mat on art: no validation domain, which ood_validation needs." in everywhere
    nothing = table_of(runs_of(on_each("erm", (0.5, 0.5, 0.5))), selection="ood_validation").footnotes
    assert nothing[-1] == "all cells: no validation domain, which ood_validation needs."


def test_single_cell_has_no_averages_table() -> None:
    report = build_report(runs_of([run("erm", "a", 0.5, domains=("a", "b"))]))
    assert [one.title for one in report.tables] == ["toy"]


def test_plan_without_runs_gives_a_table_of_reasons() -> None:
    report = build_report(runs_of([], [plan("erm", "art", "pending"), plan("mat", "art", "failed", "boom")]))
    assert [one.cells[0].reason for one in report.tables[0].rows] == ["run pending", "run failed: boom"]


def test_each_selection_has_its_tables_once() -> None:
    runs = runs_of(on_each("erm", (0.5, 0.5, 0.5)))
    report = build_report(runs, ["test_domain", "training_domain", "test_domain"])
    assert [one.selection for one in report.tables] == ["test_domain"] * 2 + ["training_domain"] * 2


def test_errors() -> None:
    with pytest.raises(DomainwiseError, match=r"no runs to report on \(1 unfinished run skipped\)"):
        build_report(replace(runs_of([]), notes=("1 unfinished run skipped",)))
    with pytest.raises(DomainwiseError, match="unknown selection 'oracle'"):
        build_report(runs_of(TWO), ["oracle"])
    with pytest.raises(DomainwiseError, match="unknown column 'wurst'; did you mean 'worst'"):
        build_report(runs_of(TWO), columns=["wurst"])


@pytest.mark.parametrize(
    ("stopped", "footnote"),
    [
        ((5, 5), "5 of 8 draws were stopped early by racing."),
        ((6, 4), "4 to 6 of 8 draws were stopped early by racing."),
        ((0, 0), None),
    ],
)
def test_stopped_draws_are_a_footnote_and_not_missing(stopped: tuple[int, int], footnote: str | None) -> None:
    records, planned = [], []
    for trial, count in enumerate(stopped):
        states = ["stopped"] * count + ["done"] * (8 - count)
        planned += [plan("mat", "art", state, trial=trial, draw=draw) for draw, state in enumerate(states)]
        records += [run("mat", "art", 0.5, trial=trial, draw=draw) for draw in range(count, 8)]
    notes = table_of(runs_of(records, planned)).footnotes
    assert [note for note in notes if "racing" in note] == ([footnote] if footnote else [])
    assert notes[0] == f"Based on {16 - sum(stopped)} runs (2 trials)."
