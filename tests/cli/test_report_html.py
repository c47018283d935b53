"""`domainwise report -o FILE.html`: a page instead of tables."""

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from test_report import DOMAINS, error_of, invoke, stdout_of, write_run

from domainwise.errors import DomainwiseError
from domainwise.training import RunConfig, train


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    folder = tmp_path / "sweep"
    for algorithm, better in (("erm", 0.0), ("mat", 0.05)):
        for place, domain in enumerate(DOMAINS):
            write_run(folder / f"{algorithm}-{domain}", algorithm, domain, (0.9, 0.6 + place / 10 + better))
    return folder


@pytest.fixture
def duplicates(tmp_path: Path) -> Path:
    for epsilon in (0.1, 1.0):
        run = tmp_path / "duplicates" / f"mat-{epsilon}"
        write_run(run, "mat", "art", (0.5, 0.6 + epsilon / 10))
        config = {"dataset": "toy", "algorithm": "mat", "steps": 2, "hparams": {"epsilon": epsilon}}
        (run / "config.json").write_text(json.dumps({"schema": 1, "config": config, "data": {}}))
    return tmp_path / "duplicates"


def test_page(sweep: Path, tmp_path: Path) -> None:
    page = tmp_path / "made" / "page.html"
    result = invoke(sweep, "-o", page)
    assert result.exit_code == 0
    assert result.stdout == ""
    assert result.stderr == f"wrote {page}\n"
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert 'data-value="65.0' in text
    assert not list(page.parent.glob(".*"))


def test_first_selection_is_that_of_the_command_or_else_of_the_sweep(sweep: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    (sweep / "sweep.toml").write_text('selection = ["test_domain"]\n')
    stdout_of(sweep, "-o", page)
    assert 'data-selection="test_domain">' in page.read_text()
    assert 'data-selection="training_domain" hidden>' in page.read_text()
    stdout_of(sweep, "-o", page, "--selection", "training_domain")
    assert 'data-selection="training_domain">' in page.read_text()
    assert 'data-selection="test_domain"' not in page.read_text()


def test_table_options_apply_to_the_page(sweep: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    stdout_of(sweep, "-o", page, "--column", "worst", "--compare-to", "erm", "--paper")
    text = page.read_text()
    assert '<th scope="col">worst</th>' in text
    assert "The paper has no numbers for this table." in text
    assert "+5.0" in text
    assert "<td>inconclusive</td>" in text


def test_duplicates_raise_an_error_that_names_the_option(duplicates: Path, tmp_path: Path) -> None:
    for words in ((), ("-o", tmp_path / "page.html")):
        assert error_of(duplicates, *words).endswith("or tell them apart by their settings with --split-variants")
    assert not (tmp_path / "page.html").exists()


def test_variants_are_split_in_page_and_tables(duplicates: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    stdout_of(duplicates, "--split-variants", "-o", page)
    assert '<th scope="row">mat, epsilon 1</th>' in page.read_text()
    text = stdout_of(duplicates, "--split-variants", "--format", "csv")
    assert [line.split('"')[1] for line in text.splitlines()[1:3]] == ["mat, epsilon 0.1", "mat, epsilon 0.1"]
    assert "mat, epsilon 1" in stdout_of(duplicates, "--split-variants")


def test_duplicates_with_the_same_settings_raise_an_error(duplicates: Path) -> None:
    run = duplicates / "again"
    write_run(run, "mat", "art", (0.5, 0.6))
    (run / "config.json").write_text((duplicates / "mat-0.1" / "config.json").read_text())
    assert error_of(duplicates, "--split-variants").endswith("they have the same settings; leave one of them out")


def test_errors_are_one_line(sweep: Path, tmp_path: Path, domainwise: Callable[..., object]) -> None:
    outcome = domainwise("report", sweep, "-o", tmp_path)
    assert vars(outcome)["code"] == 2
    assert vars(outcome)["err"].count("\n") == 1
    assert str(tmp_path) in vars(outcome)["err"]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert isinstance(invoke(empty, "-o", tmp_path / "p.html").exception, DomainwiseError)


@pytest.mark.parametrize(
    ("words", "unused"),
    [
        (("--help",), ("torch", "polars", "scipy", "jinja2", "matplotlib")),
        (("SWEEP",), ("torch", "scipy", "jinja2", "matplotlib")),
        (("SWEEP", "--compare-to", "erm", "--format", "json"), ("torch", "jinja2", "matplotlib")),
        (("SWEEP", "-o", "PAGE"), ("torch", "scipy", "matplotlib")),
    ],
    ids=["help", "tables", "comparison", "page"],
)
def test_start_up_imports_only_what_is_needed(
    sweep: Path, tmp_path: Path, words: Sequence[str], unused: Sequence[str]
) -> None:
    code = (
        "import sys; from domainwise.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        f"sys.exit(', '.join(name for name in {list(unused)} if name in sys.modules) or None)"
    )
    replaced = {"SWEEP": str(sweep), "PAGE": str(tmp_path / "page.html")}
    command = [sys.executable, "-c", code, "report", *(replaced.get(word, word) for word in words)]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert result.returncode == 0, f"imported: {result.stderr}"


def test_python_api_imports_no_torch() -> None:
    code = "import sys, domainwise.reports, domainwise.reports.html; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_pictures_of_the_selected_models(tmp_path: Path) -> None:
    options = {"train_count": 60, "test_count": 40, "shifts": [0, 8]}
    for algorithm in ("erm", "uat"):
        output = tmp_path / "sweep" / algorithm
        train(RunConfig(algorithm=algorithm, steps=2, batch_size=8, dataset_options=options, output=output))
    page = tmp_path / "page.html"
    result = invoke(tmp_path / "sweep", "-o", page, "--pictures")
    assert result.exit_code == 0, result.stderr
    assert "Perturbations of uat" in page.read_text()
    assert page.read_text().count("data:image/png;base64,") == 6


def test_pictures_that_could_not_be_drawn(sweep: Path, tmp_path: Path) -> None:
    assert "add --output FILE.html" in error_of(sweep, "--pictures")
    page = tmp_path / "page.html"
    for run in sweep.iterdir():
        (run / "best.safetensors").touch()
    with pytest.warns(UserWarning, match="Pictures of toy: could not be drawn: "):
        result = invoke(sweep, "-o", page, "--pictures")
    assert result.exit_code == 0
    assert "data:image" not in page.read_text()


def test_page_needs_a_file(sweep: Path) -> None:
    assert "a page is written to a file; add --output FILE.html" in error_of(sweep, "--format", "html")


def test_quiet_page_prints_nothing(sweep: Path, tmp_path: Path) -> None:
    result = invoke(sweep, "-o", tmp_path / "page.html", "-q")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
