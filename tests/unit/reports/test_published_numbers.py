"""The paper's numbers: spot checks, its averages recomputed, its errors pinned, and the columns next to ours."""

import statistics

import pytest
from report_runs import on_each, run, runs_of

from domainwise.algorithms import ALGORITHMS
from domainwise.data import DATASETS
from domainwise.reports import build_report, load_published_tables
from domainwise.reports.cells import Table
from domainwise.reports.published import PublishedValue
from domainwise.selection import SELECTIONS

PACS = ("art_painting", "cartoon", "photo", "sketch")


def value(number: int, algorithm: str, column: str, **where: str) -> tuple[float, float | None]:
    found = [
        one
        for one in load_published_tables()[number].values
        if (one.algorithm, one.column) == (algorithm, column)
        and all(getattr(one, name) == wanted for name, wanted in where.items())
    ]
    (one,) = found
    return one.mean, one.error


def test_all_tables_with_accuracies_are_included() -> None:
    counts = {number: len(table.values) for number, table in load_published_tables().items()}
    assert counts == {1: 10, 2: 114, 3: 8, 6: 39, 7: 5, 8: 4, 9: 4, 10: 48}


@pytest.mark.parametrize(
    ("number", "algorithm", "column", "where", "expected"),
    [
        (1, "erm", "nico", {}, (70.7, 1.0)),
        (1, "at", "pacs", {}, (81.5, 0.4)),
        (2, "erm", "pacs", {"source": "the paper"}, (81.7, 0.3)),
        (2, "erm", "pacs", {"source": "OoD-Bench"}, (81.5, 0.0)),
        (2, "at", "vlcs", {}, (76.2, 0.3)),
        (2, "rsc", "pacs", {}, (82.8, 0.4)),
        (2, "mmd", "colored_mnist", {}, (50.7, 0.1)),
        (2, "sagnet", "colored_mnist", {}, (30.5, 0.7)),
        (2, "coral", "office_home", {}, (63.8, 0.3)),
        (2, "irm", "colored_mnist", {}, (60.2, 2.4)),
        (2, "vrex", "nico", {}, (71.0, 1.3)),
        (2, "groupdro", "avg1", {}, (62.0, None)),
        (2, "dann", "colored_mnist", {}, (24.5, 0.8)),
        (2, "mtl", "nico", {}, (70.2, 0.6)),
        (2, "mixup", "office_home", {}, (63.3, 0.5)),
        (2, "andmask", "nico", {}, (72.2, 1.2)),
        (2, "mldg", "nico", {}, (51.6, 6.1)),
        (2, "mat", "office_home", {}, (64.5, 2.1)),
        (2, "mat", "colored_mnist", {}, (65.4, 8.1)),
        (2, "ldat", "nico", {}, (74.4, 1.6)),
        (2, "ldat", "avg4", {}, (73.3, None)),
        (3, "mat", "k or l = 200", {}, (34.9, 20.2)),
        (3, "ldat", "k or l = 1000", {}, (10.3, 0.1)),
        (6, "mat", "k or l = 25", {"dataset": "vlcs"}, (72.9, 0.3)),
        (6, "ldat", "k or l = 30", {"dataset": "nico"}, (67.2, 1.5)),
        (7, "mat", "pacs", {"setting": "eta = 0.01"}, (82.2, 0.4)),
        (8, "ldat", "pacs", {"setting": "rho = 0.01"}, (82.6, 0.2)),
        (9, "gut", "nico", {}, (66.6, 1.7)),
        (10, "ncdg", "cartoon", {"dataset": "pacs from photo"}, (29.8, None)),
        (10, "ldat", "sketch", {"dataset": "pacs from photo"}, (80.4, None)),
    ],
)
def test_numbers_are_those_printed(
    number: int, algorithm: str, column: str, where: dict[str, str], expected: tuple[float, float | None]
) -> None:
    assert value(number, algorithm, column, **where) == expected


def wrong_averages() -> dict[tuple[int, str, str, str], tuple[float, float]]:
    """Averages that rounding to one decimal does not explain: printed and computed."""
    found = {}
    for number, table in load_published_tables().items():
        rows: dict[tuple[str, str, str], dict[str, PublishedValue]] = {}
        for one in table.values:
            row = (one.algorithm, one.source, one.dataset if number == 10 else "")
            rows.setdefault(row, {})[one.column] = one
        for (algorithm, source, dataset), row in rows.items():
            for column, parts in table.mean_of.items():
                if column in row:
                    computed = statistics.fmean(row[part].mean for part in parts if part in row)
                    if abs(computed - row[column].mean) > 0.0501:
                        found[number, algorithm, dataset or source, column] = (row[column].mean, round(computed, 2))
    return found


def test_averages_can_be_recomputed_except_known_errors() -> None:
    assert wrong_averages() == {
        (2, "at", "the paper", "avg2"): (64.3, 63.94),
        (2, "coral", "OoD-Bench", "avg1"): (61.0, 60.92),
        (2, "ldat", "the paper", "avg2"): (69.1, 69.16),
        (10, "ldat", "pacs from cartoon", "avg"): (82.3, 82.23),
        (10, "ldat", "pacs from photo", "avg"): (79.0, 78.93),
        (10, "ncdg", "pacs from art_painting", "avg"): (76.6, 76.67),
        (10, "ncdg", "pacs from photo", "avg"): (49.0, 49.07),
    }


def test_avg3_omits_two_datasets_and_avg4_one() -> None:
    means = load_published_tables()[2].mean_of
    assert means["avg3"] == ("pacs", "office_home", "nico")
    assert means["avg4"] == ("pacs", "office_home", "vlcs", "nico")
    assert "swapped" in load_published_tables()[2].note
    assert "63.9, not 64.3" in load_published_tables()[2].note


def test_erm_differs_between_tables_1_and_6() -> None:
    assert value(6, "erm", "no k or l", dataset="nico") == (69.7, 1.0)
    assert value(1, "erm", "nico") == (70.7, 1.0)
    assert "differs from Table 1" in load_published_tables()[6].note


def with_paper(*args: object, title: str, selection: str = "training_domain") -> Table:
    report = build_report(runs_of(*args), [selection], paper=True)  # type: ignore[arg-type]
    (table,) = [one for one in report.tables if one.title == title]
    return table


def papers(table: Table) -> dict[str, dict[str, float | None]]:
    """The paper's columns by name and method."""
    return {
        column.name: {row.algorithm: row.cells[index].mean for row in table.rows}
        for index, column in enumerate(table.columns)
        if column.kind == "paper"
    }


PACS_RUNS = [
    pair
    for name in ("erm", "mat", "irm", "uat")
    for pair in on_each(name, (0.8, 0.8, 0.8, 0.8), dataset="pacs", domains=PACS)
]


def test_the_papers_average_follows_ours() -> None:
    table = with_paper(PACS_RUNS, title="pacs")
    assert [column.name for column in table.columns][-2:] == ["Avg", "paper's Avg (Table 2)"]
    assert papers(table) == {"paper's Avg (Table 2)": {"erm": 81.7, "irm": 81.1, "uat": None, "mat": 82.3}}
    assert table.rows[2].cells[-1].reason == "not in the paper"
    assert any("settings differ" in note for note in table.footnotes)
    assert "The paper's numbers for irm are from OoD-Bench (20 draws, 5001 steps)." in table.footnotes
    assert papers(with_paper(PACS_RUNS, title="Averages")) == {
        "paper's pacs (Table 2)": {"erm": 81.7, "irm": 81.1, "uat": None, "mat": 82.3}
    }


def test_gut_is_from_table_9() -> None:
    records = [
        run(name, "test", 0.7, dataset="nico", domains=("train1", "test"), validation=0.7, roles="fixed")
        for name in ("erm", "gut")
    ]
    table = with_paper(records, title="nico", selection="ood_validation")
    assert papers(table) == {"paper's test (Tables 2, 9)": {"erm": 73.2, "gut": 66.6}}
    assert not any("the paper selected by" in note for note in table.footnotes)
    by_training = with_paper(records, title="nico")
    assert "On nico the paper selected by ood_validation, not training_domain." in by_training.footnotes


def test_colored_mnist_is_compared_on_the_papers_test_domain() -> None:
    domains = ("+90%", "+80%", "-90%")
    records = on_each("mat", (0.7, 0.7, 0.1), dataset="colored_mnist", domains=domains)
    assert papers(with_paper(records, title="colored_mnist")) == {"paper's -90% (Table 2)": {"mat": 65.4}}
    # Its number is no average over three domains, only over the one.
    assert papers(with_paper(records, title="Averages")) == {}
    first = on_each("mat", (0.7, 0.1), dataset="colored_mnist", domains=("-90%", "+80%"))
    assert papers(with_paper(first, title="Averages")) == {}
    other = on_each("mat", (0.7, 0.8), domains=("a", "b"))
    both = with_paper([*records[2:], *other], title="Averages")
    assert papers(both) == {"paper's colored_mnist (Table 2)": {"mat": 65.4}}


def test_single_sources_are_from_table_10() -> None:
    records = [
        run(name, PACS[1:], 0.7, dataset="pacs", domains=PACS, roles="named") for name in ("mat", "ldat", "ncdg", "erm")
    ]
    table = with_paper(records, title="pacs from art_painting")
    found = papers(table)
    assert list(found) == [f"paper's {name} (Table 10)" for name in ("cartoon", "photo", "sketch", "Avg")]
    assert found["paper's photo (Table 10)"] == {"erm": None, "ncdg": 95.0, "mat": 94.1, "ldat": 94.2}
    assert found["paper's Avg (Table 10)"]["ldat"] == 81.6


def test_other_datasets_have_no_numbers_in_the_paper() -> None:
    table = with_paper(on_each("mat", (0.7, 0.8, 0.9)), title="toy")
    assert papers(table) == {}
    assert table.footnotes[-1] == "The paper has no numbers for this table."


def test_published_tables_use_our_names() -> None:
    values = [value for table in load_published_tables().values() for value in table.values]
    assert {value.algorithm for value in values} <= set(ALGORITHMS)
    assert {value.dataset.split(" from ")[0] for value in values if value.dataset} <= set(DATASETS)
    assert {value.selection for value in values if value.selection} <= set(SELECTIONS)
    assert all(value.error is None or 0 <= value.error < value.mean < 100 for value in values)
