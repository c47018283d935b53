"""`domainwise report`: tables."""

import csv
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from domainwise import reports
from domainwise.cli.report import EXAMPLES, report
from domainwise.errors import DomainwiseError

DOMAINS = ("art", "cartoon", "sketch")


def invoke(*words: object) -> Result:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command(epilog=EXAMPLES)(report)
    return CliRunner().invoke(app, [str(word) for word in words])


def stdout_of(*words: object) -> str:
    result = invoke(*words)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.stdout


def error_of(*words: object) -> str:
    result = invoke(*words)
    assert isinstance(result.exception, DomainwiseError), result.output
    return str(result.exception)


def write_run(folder: Path, algorithm: str, tested: str, accuracies: Sequence[float], is_done: bool = True) -> None:
    """Write a run folder with one record per accuracy; the holdouts of its training domains improve with every step."""
    folder.mkdir(parents=True)
    lines = []
    for step, accuracy in enumerate(accuracies):
        measured = {name: {"holdout": 0.5 + step / 100} for name in DOMAINS}
        measured[tested] = {"main": accuracy, "holdout": 1 - accuracy}
        lines.append(
            {
                "schema": 1,
                "step": step,
                "dataset": "toy",
                "algorithm": algorithm,
                "trial_seed": 0,
                "hparams_seed": 0,
                "train_domains": [name for name in DOMAINS if name != tested],
                "validation_domains": [],
                "test_domains": [tested],
                "roles": "left_out",
                "hparams": {},
                "accuracy": measured,
                "loss": 0.1,
            }
        )
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "config.json").write_text(json.dumps({"schema": 1, "config": {"steps": len(lines)}, "data": {}}))
    if is_done:
        (folder / "done").touch()


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    folder = tmp_path / "sweep"
    for algorithm, better in (("erm", 0.0), ("mat", 0.05)):
        for place, domain in enumerate(DOMAINS):
            write_run(folder / f"{algorithm}-{domain}", algorithm, domain, (0.9, 0.6 + place / 10 + better))
    return folder


def test_table_in_a_pipe(sweep: Path) -> None:
    text = stdout_of(sweep)
    assert "toy, selected by training_domain" in text
    assert next(line.split() for line in text.splitlines() if "mat" in line) == ["mat", "65.0", "75.0", "85.0", "75.0"]
    assert "Based on 6 runs (1 trial)." in text
    assert "\x1b" not in text


def test_selection_is_that_of_the_command_or_else_of_the_sweep(sweep: Path) -> None:
    (sweep / "sweep.toml").write_text('selection = ["test_domain", "training_domain"]\n')
    text = stdout_of(sweep, "--format", "markdown")
    assert text.index("selected by test_domain") < text.index("selected by training_domain")
    given = stdout_of(sweep, "--format", "markdown", "--selection", "ood_validation")
    assert "selected by ood_validation" in given
    assert "selected by test_domain" not in given
    (sweep / "sweep.toml").write_text('name = "no selection"\n')
    assert "selected by training_domain" in stdout_of(sweep)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("selection = [", "sweep.toml is damaged: "),
        ("selection = 3", "sweep.toml is damaged: selection: expected array, got int; restore it"),
        ('selection = ["oracle"]', "unknown selection 'oracle'"),
    ],
)
def test_invalid_sweep_file(sweep: Path, content: str, message: str) -> None:
    (sweep / "sweep.toml").write_text(content)
    assert message in error_of(sweep)


def test_format_is_that_of_the_ending(sweep: Path, tmp_path: Path) -> None:
    for name, start in (("t.md", "### toy"), ("t.tex", "% \\usepackage{booktabs}"), ("t.csv", "dataset,algorithm")):
        assert stdout_of(sweep, "--output", tmp_path / name) == ""
        assert (tmp_path / name).read_text().startswith(start)
    assert stdout_of(sweep, "-o", tmp_path / "t.md", "--format", "json") == ""
    assert json.loads((tmp_path / "t.md").read_text())["tables"][0]["title"] == "toy"
    assert not list(tmp_path.glob(".*"))


def test_notes_are_not_part_of_csv(sweep: Path) -> None:
    write_run(sweep / "unfinished", "ldat", "art", (0.5,), is_done=False)
    result = invoke(sweep, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert {row["algorithm"] for row in rows} == {"erm", "mat"}
    assert "note: " in result.stderr
    assert "1 unfinished run skipped" in result.stderr
    assert "1 unfinished run skipped" in stdout_of(sweep, "--format", "markdown").splitlines()[-1]


def test_unfinished_runs_are_included_on_request(sweep: Path) -> None:
    write_run(sweep / "unfinished", "ldat", "art", (0.5,), is_done=False)
    assert "ldat" not in stdout_of(sweep)
    content = json.loads(stdout_of(sweep, "--unfinished", "--format", "json"))
    assert [row["algorithm"] for row in content["tables"][0]["rows"]] == ["erm", "mat", "ldat"]


def test_extra_columns_and_comparisons(sweep: Path) -> None:
    text = stdout_of(
        *(sweep, "--column", "worst", "--columns", "gap", "--paper", "--compare-to", "erm"),
        *("--selection", "test_domain", "--selection", "training_domain", "--format", "markdown"),
    )
    assert "| method | art | cartoon | sketch | Avg | worst | gap | training |" in text
    assert "| method | art | cartoon | sketch | Avg | worst | gap |\n" in text
    assert "| method | toy | worst | gap |\n" in text
    assert "The paper has no numbers for this table." in text
    assert "| mat | +5.0 (too few trials) | 1 | 1 | inconclusive | — |" in text


def test_errors(sweep: Path, tmp_path: Path) -> None:
    assert "unknown format 'yaml'" in error_of(sweep, "--format", "yaml")
    assert "unknown column 'best'" in error_of(sweep, "--column", "best")
    assert "unknown method to compare to 'irm'" in error_of(sweep, "--compare-to", "irm")
    assert "margin must be at least 0 points, got -1" in error_of(sweep, "--compare-to", "erm", "--margin", "-1")
    assert "--margin is for verdicts; add --compare-to METHOD" in error_of(sweep, "--margin", "2")
    (tmp_path / "file").touch()
    assert "t.md could not be written" in error_of(sweep, "--output", tmp_path / "file" / "t.md")
    assert "nothing" in error_of(tmp_path / "nothing")


def test_python_call_gives_the_same_tables(sweep: Path) -> None:
    options = {"selections": ["test_domain"], "columns": ["worst"], "compare_to": "erm", "margin": 0.5}
    result = reports.report([sweep], **options)  # type: ignore[arg-type]
    words = ("--selection", "test_domain", "--column", "worst", "--compare-to", "erm", "--margin", "0.5")
    assert reports.FORMATS["json"](result) == stdout_of(sweep, *words, "--format", "json")


def test_quiet_prints_the_table_and_no_notes(sweep: Path) -> None:
    write_run(sweep / "unfinished", "ldat", "art", (0.5,), is_done=False)
    result = invoke(sweep, "--format", "csv", "-q")
    assert result.stdout.startswith("dataset,algorithm")
    assert result.stderr == ""


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("--selection te", ["test_domain"]),
        ("--column w", ["worst"]),
        ("--format ", ["text", "markdown", "latex", "csv", "json", "html"]),
    ],
)
def test_completion(words: str, completions: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_DOMAINWISE_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"domainwise report x {words}")
    monkeypatch.setenv("COMP_CWORD", "4")
    code = "import sys; sys.argv[0] = 'domainwise'; from domainwise.cli import main; main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.stdout.split() == completions
