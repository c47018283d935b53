"""Tables of other metrics than accuracy: which way is better, and what is missing."""

import json
from pathlib import Path
from typing import Any

import pytest

from domainwise.errors import DomainwiseError
from domainwise.reports import report
from domainwise.reports.formats import format_csv, format_text
from run_folders import DOMAINS, write_run


def add_metrics(run: Path, **metrics: Any) -> Path:
    """Write metrics that are the same in every domain, part and record."""
    lines = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    for line in lines:
        line["metrics"] = {
            name: {domain: dict.fromkeys(parts, value) for domain, parts in line["accuracy"].items()}
            for name, value in metrics.items()
        }
    (run / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two methods on three test domains in four trials; MAT has the lower accuracy, macro-F1 and calibration error."""
    for trial in range(4):
        for place, domain in enumerate(DOMAINS):
            for name, f1, ece in (("erm", 0.6, 0.3), ("mat", 0.5, 0.1 + trial / 1000)):
                run = write_run(tmp_path / f"{name}-{domain}-{trial}", name, domain, (0.3, f1 + 0.1), trial=trial)
                add_metrics(run, macro_f1=f1 + place / 10, ece=ece + place / 10)
    return tmp_path


def test_the_table_has_the_metric(runs: Path) -> None:
    table, averages = report([runs], metric="macro_f1", columns=("worst", "gap")).tables
    assert (table.metric, averages.metric) == ("macro_f1", "macro_f1")
    erm, mat = table.rows
    assert [cell.mean for cell in erm.cells] == pytest.approx([60, 70, 80, 70, 60, 0])
    assert [cell.is_best for cell in erm.cells] == [True] * 5 + [False]
    assert [cell.error for cell in mat.cells[:3]] == pytest.approx([0, 0, 0])
    assert "Selected by training_domain: highest mean macro-F1 on the training domains' holdouts, at any step." in (
        *table.footnotes,
    )
    assert "worst: lowest macro-F1 over the test domains." in averages.footnotes
    text = format_text(report([runs], metric="macro_f1"))
    assert text.startswith("toy, macro-F1, selected by training_domain\n")


def test_lower_is_better(runs: Path) -> None:
    """The lowest is bold, the highest the worst, and a method wins by being below."""
    result = report([runs], metric="ece", columns=("worst",), compare_to="erm")
    table, averages, comparison = result.tables
    erm, mat = table.rows
    assert [cell.mean for cell in erm.cells] == pytest.approx([30, 40, 50, 40, 50])
    assert [cell.is_best for cell in erm.cells] == [False] * 5
    assert [cell.is_best for cell in mat.cells] == [True] * 5
    assert averages.rows[1].cells[-1].mean == pytest.approx(mat.cells[-1].mean)
    assert "worst: highest ECE over the test domains." in table.footnotes
    difference, _, wins, verdict, _ = comparison.rows[0].cells
    assert difference.mean == pytest.approx(-19.85)
    assert difference.interval is not None
    assert difference.interval[0] < difference.mean < difference.interval[1] < 0
    assert (wins.mean, verdict.text) == (4, "holds")
    assert "Verdicts are on the claim that the method is below erm: a lower ECE is better." in comparison.footnotes
    assert all(line.endswith(",ece") for line in format_csv(result).splitlines()[1:])


def test_a_higher_calibration_error_does_not_hold(runs: Path) -> None:
    comparison = report([runs], metric="ece", compare_to="mat").tables[-1]
    difference, _, wins, verdict, _ = comparison.rows[0].cells
    assert (wins.mean, verdict.text) == (0, "does not hold")
    assert difference.mean == pytest.approx(19.85)


def test_runs_without_the_metric(runs: Path, tmp_path: Path) -> None:
    with pytest.raises(DomainwiseError, match=r"^no run has recorded worst_class; train with --metrics worst_class$"):
        report([runs], metric="worst_class")
    write_run(tmp_path / "ldat", "ldat", "art")
    table = report([runs], metric="ece").tables[0]
    assert table.rows[-1].algorithm == "ldat"
    assert [cell.mean for cell in table.rows[-1].cells] == [None] * 4
    assert "ldat on art: ece was not recorded: train with --metrics ece." in table.footnotes
    assert "Based on 24 runs (4 trials)." in table.footnotes


def test_errors(runs: Path) -> None:
    with pytest.raises(DomainwiseError, match=r"^unknown metric 'f1'\. Choices: accuracy, macro_f1"):
        report([runs], metric="f1")
    with pytest.raises(DomainwiseError, match=r"^the paper has accuracies only; leave out --paper or --metric ece$"):
        report([runs], metric="ece", paper=True)
