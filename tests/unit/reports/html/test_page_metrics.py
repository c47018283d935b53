"""Other metrics on the page: the table of all metrics, and confusion matrices of few and many classes."""

import json
import re
from pathlib import Path

import pytest

from domainwise.reports.html import write_page
from run_folders import DOMAINBED_2021, write_domainbed_run, write_run

HOSTILE = "<b>&"
PACS = ("art_painting", "cartoon", "photo", "sketch")


def write_matrices(folder: Path, classes: list[str], matrix: list[list[int]]) -> None:
    """Write ERM on two test domains in two trials, with the same matrix everywhere."""
    for trial in range(2):
        for domain in ("art", "sketch"):
            settings = {"domains": ("art", "sketch"), "metrics": ["macro_f1", "ece", "confusion"]}
            run = write_run(folder / f"{domain}-{trial}", "erm", domain, trial=trial, **settings)
            config = json.loads((run / "config.json").read_text())
            config["data"]["classes"] = classes
            (run / "config.json").write_text(json.dumps(config))
            lines = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
            for line in lines:
                line["metrics"] = {
                    name: {domain: dict.fromkeys(parts, value) for domain, parts in line["accuracy"].items()}
                    for name, value in (("macro_f1", 0.25), ("ece", 0.125 + trial / 10), ("confusion", matrix))
                }
            (run / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def page_of(folder: Path, **options: str) -> str:
    write_page(folder / "page.html", [folder], **options)  # type: ignore[arg-type]
    return (folder / "page.html").read_text()


def test_all_metrics_and_a_matrix_per_test_domain(tmp_path: Path) -> None:
    write_matrices(tmp_path, ["cow", HOSTILE, "never"], [[8, 2, 0], [5, 5, 0], [0, 0, 0]])
    page = page_of(tmp_path)
    head = re.search(r"all metrics, selected by training_domain.*?</table>", page, re.DOTALL)
    assert head is not None
    assert re.findall(r'<th scope="col">(.*?)</th>', head[0]) == ["method", "accuracy", "macro-F1", "ECE"]
    # The mean over trials, and the standard error over two of them.
    assert [float(value) for value in re.findall(r'data-value="([^"]+)"', head[0])] == pytest.approx([70, 25, 17.5])
    assert '17.5<span class="error"> ± 5.0' in head[0]
    view = page.partition('data-selection="training_domain"')[2].partition('class="view"')[0]
    matrices = re.findall(r"<svg[^>]*Confusion matrix of erm on (\w+) of toy: 65\.0 %.*?</svg>", view, re.DOTALL)
    assert matrices == ["art", "sketch"]
    assert "<title>cow: 16 images correct</title>" in view
    assert "<title>cow predicted as &lt;b&gt;&amp;: 4 images</title>" in view
    assert HOSTILE not in page
    assert '<th scope="row">cow</th><td>20</td><td>80.0</td><td>&lt;b&gt;&amp; (20.0 %)</td>' in view
    assert '<th scope="row">never</th><td>0</td><td>—</td><td></td>' in view


def test_methods_without_other_metrics_still_have_their_accuracy(tmp_path: Path) -> None:
    write_matrices(tmp_path, ["a", "b"], [[1, 0], [0, 1]])
    for domain in ("art", "sketch"):
        write_run(tmp_path / f"mat-{domain}", "mat", domain, domains=("art", "sketch"))
    head = re.search(r"all metrics, selected by training_domain.*?</table>", page_of(tmp_path), re.DOTALL)
    assert head is not None
    assert [float(value) for value in re.findall(r'data-value="([^"]+)"', head[0])] == pytest.approx([70, 25, 17.5, 70])
    assert head[0].count('title="not recorded: train with --metrics"') == 2


@pytest.mark.parametrize(("classes", "is_drawn"), [(2, True), (12, True), (13, True), (65, True), (66, False)])
def test_matrices_of_any_size(tmp_path: Path, classes: int, is_drawn: bool) -> None:
    """Many fields are one path per shade; too many classes get a note, and keep the table by class."""
    matrix = [[3 if row == column else 1 for column in range(classes)] for row in range(classes)]
    write_matrices(tmp_path, [f"class {index}" for index in range(classes)], matrix)
    page = page_of(tmp_path)
    assert ("Confusion matrix of erm on art of toy" in page) == is_drawn
    assert (f"Not drawn: {classes} classes are more than 65." in page) != is_drawn
    assert page.count('<th scope="row">class 1</th><td>') == 2 * page.count('class="view"')
    heats = page.count('class="heat"') / (2 * page.count('class="view"'))
    assert heats == (classes**2 if classes <= 12 else 2 - (classes == 65) if is_drawn else 0)


def test_a_page_by_another_metric(tmp_path: Path) -> None:
    write_matrices(tmp_path, ["cow", "camel"], [[8, 2], [5, 5]])
    page = page_of(tmp_path, metric="ece")
    assert "<h1>ECE in unseen domains</h1>" in page
    assert "ECE in percent on domains that no model was trained on; lower is better." in page
    assert "lowest mean ECE on the training domains&#39; holdouts" in page
    assert "chance," not in page  # of guessing, in the plot
    assert "mean ECE on the test domains at the last step" in page
    assert "upper bound" not in page  # the oracle's calibration error is too low


def test_a_name_with_accuracy_in_it_is_written_once(tmp_path: Path) -> None:
    for domain in ("art", "sketch"):
        write_run(tmp_path / domain, "erm", domain, dataset="highest accuracy", metrics=["balanced_accuracy", "ece"])
        records = tmp_path / domain / "records.jsonl"
        lines = [json.loads(line) for line in records.read_text().splitlines()]
        for line in lines:
            line["metrics"] = {"balanced_accuracy": line["accuracy"], "ece": line["accuracy"]}
        records.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = page_of(tmp_path, metric="balanced_accuracy")
    assert "<h1>Balanced accuracy in unseen domains</h1>" in page
    assert "alanced balanced" not in page
    assert "ECE per test domain of highest accuracy, selected by" in page_of(tmp_path, metric="ece")


def test_a_method_without_all_test_domains_is_not_the_best(tmp_path: Path) -> None:
    write_matrices(tmp_path, ["a", "b"], [[1, 0], [0, 1]])
    write_run(tmp_path / "mat", "mat", "sketch", (0.9,), domains=("art", "sketch"))
    table = re.search(r"all metrics, selected by training_domain.*?</ul>", page_of(tmp_path), re.DOTALL)
    assert table is not None
    assert "<strong>90.0" not in table[0]
    assert "<li>mat on accuracy: not all 2 test domains in trial 0, only 1 of 2 trials.</li>" in table[0]
    assert "<li>mat on macro-F1, ECE: not recorded: train with --metrics.</li>" in table[0]


def test_runs_of_domainbed_keep_their_accuracy(tmp_path: Path) -> None:
    write_domainbed_run(tmp_path / "theirs", "MTL", DOMAINBED_2021, tested=3)
    ours = write_run(tmp_path / "ours", "erm", "sketch", dataset="pacs", domains=PACS, metrics=["macro_f1"])
    lines = [json.loads(line) for line in (ours / "records.jsonl").read_text().splitlines()]
    for line in lines:
        line["metrics"] = {"macro_f1": line["accuracy"]}
    (ours / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    head = re.search(r"all metrics, selected by training_domain.*?</table>", page_of(tmp_path), re.DOTALL)
    assert head is not None
    assert [float(value) for value in re.findall(r'data-value="([^"]+)"', head[0])] == pytest.approx([70, 70, 80])


def test_a_page_without_metrics_has_no_empty_sections(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "erm", "art")
    page = page_of(tmp_path)
    assert "Confusion matrices" not in page
    assert "All metrics" not in page
