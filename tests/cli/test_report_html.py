"""`domainwise report --html`: a page beside or in place of tables."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from test_report import DOMAINS, invoke, printed, refused, write_run

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
def clashing(tmp_path: Path) -> Path:
    for epsilon in (0.1, 1.0):
        run = tmp_path / "clashing" / f"mat-{epsilon}"
        write_run(run, "mat", "art", (0.5, 0.6 + epsilon / 10))
        config = {"dataset": "toy", "algorithm": "mat", "steps": 2, "hparams": {"epsilon": epsilon}}
        (run / "config.json").write_text(json.dumps({"schema": 1, "config": config, "data": {}}))
    return tmp_path / "clashing"


def test_the_page_alone(sweep: Path, tmp_path: Path) -> None:
    page = tmp_path / "made" / "page.html"
    result = invoke(sweep, "--html", page)
    assert result.exit_code == 0
    assert result.stdout == ""
    assert result.stderr == f"wrote {page}\n"
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert 'data-value="65.0' in text
    assert not list(page.parent.glob(".*"))


def test_tables_beside_it_when_asked_for(sweep: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert "### toy, chosen by training_domain" in printed(sweep, "--html", page, "--format", "markdown")
    assert page.exists()
    assert printed(sweep, "--html", page, "--output", tmp_path / "t.csv") == ""
    assert (tmp_path / "t.csv").read_text().startswith("dataset,algorithm")


def test_the_sweep_or_the_command_says_what_comes_first(sweep: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    (sweep / "sweep.toml").write_text('selection = ["test_domain"]\n')
    printed(sweep, "--html", page)
    assert 'data-selection="test_domain">' in page.read_text()
    assert 'data-selection="training_domain" hidden>' in page.read_text()
    printed(sweep, "--html", page, "--selection", "training_domain")
    assert 'data-selection="training_domain">' in page.read_text()
    assert 'data-selection="test_domain"' not in page.read_text()


def test_options_of_tables_hold_for_the_page(sweep: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    printed(sweep, "--html", page, "--columns", "worst", "--versus", "erm", "--compare", "paper")
    text = page.read_text()
    assert '<th scope="col">worst</th>' in text
    assert "The paper has no numbers for this." in text
    assert "+5.0" in text


def test_variants_are_refused_and_the_way_out_is_named(clashing: Path, tmp_path: Path) -> None:
    for words in ((), ("--html", tmp_path / "page.html")):
        assert refused(clashing, *words).endswith("name them apart by their settings with --split-variants")
    assert not (tmp_path / "page.html").exists()


def test_variants_are_split_in_page_and_tables(clashing: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    text = printed(clashing, "--split-variants", "--html", page, "--format", "csv")
    assert [line.split('"')[1] for line in text.splitlines()[1:3]] == ["mat, epsilon 0.1", "mat, epsilon 0.1"]
    assert '<th scope="row">mat, epsilon 1</th>' in page.read_text()
    assert "mat, epsilon 1" in printed(clashing, "--split-variants")


def test_the_same_twice_is_refused_without_false_hope(clashing: Path) -> None:
    run = clashing / "again"
    write_run(run, "mat", "art", (0.5, 0.6))
    (run / "config.json").write_text((clashing / "mat-0.1" / "config.json").read_text())
    assert refused(clashing, "--split-variants").endswith("they have the same settings: leave one of them out")


def test_bad_input_is_one_line(sweep: Path, tmp_path: Path, domainwise: Callable[..., object]) -> None:
    outcome = domainwise("report", sweep, "--html", tmp_path)
    assert vars(outcome)["code"] == 2
    assert vars(outcome)["err"].count("\n") == 1
    assert str(tmp_path) in vars(outcome)["err"]
    empty = tmp_path / "empty"
    empty.mkdir()
    assert isinstance(invoke(empty, "--html", tmp_path / "p.html").exception, DomainwiseError)


def test_torch_is_not_waited_for(sweep: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from domainwise.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "sys.exit('torch' in sys.modules)"
    )
    words = [sys.executable, "-c", code, "report", str(sweep), "--html", str(tmp_path / "page.html")]
    subprocess.run(words, check=True, capture_output=True)


def test_pictures_of_the_chosen_models(tmp_path: Path) -> None:
    options = {"train_count": 60, "test_count": 40, "shifts": [0, 8]}
    for algorithm in ("erm", "uat"):
        output = tmp_path / "sweep" / algorithm
        train(RunConfig(algorithm=algorithm, steps=2, batch_size=8, dataset_options=options, output=output))
    page = tmp_path / "page.html"
    result = invoke(tmp_path / "sweep", "--html", page, "--pictures")
    assert result.exit_code == 0, result.stderr
    assert "Perturbations of uat" in page.read_text()
    assert page.read_text().count("data:image/png;base64,") == 4


def test_pictures_that_cannot_be_had(sweep: Path, tmp_path: Path) -> None:
    assert "give --html FILE" in refused(sweep, "--pictures")
    page = tmp_path / "page.html"
    for run in sweep.iterdir():
        (run / "best.safetensors").touch()
    result = invoke(sweep, "--html", page, "--pictures")
    assert result.exit_code == 0
    assert "note: no pictures of toy: " in result.stderr
    assert "data:image" not in page.read_text()
