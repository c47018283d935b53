"""`domainwise report` on folders of runs."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from domainwise.cli.report import EXAMPLES, report
from domainwise.errors import DomainwiseError

DOMAINS = ("art", "cartoon", "sketch")


def invoke(*words: object) -> Result:
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command(epilog=EXAMPLES)(report)
    return CliRunner().invoke(app, [str(word) for word in words])


def printed(*words: object) -> str:
    result = invoke(*words)
    assert result.exit_code == 0, result.output + repr(result.exception)
    return result.stdout


def refused(*words: object) -> str:
    result = invoke(*words)
    assert isinstance(result.exception, DomainwiseError), result.output
    return str(result.exception)


def write_run(folder: Path, algorithm: str, tested: str, accuracies: Sequence[float], is_done: bool = True) -> None:
    """A run folder with a record a step; its training domains' holdouts get better with every one."""
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


def test_a_table_in_a_pipe(sweep: Path) -> None:
    text = printed(sweep)
    assert "toy, chosen by training_domain" in text
    assert next(line.split() for line in text.splitlines() if "mat" in line) == ["mat", "65.0", "75.0", "85.0", "75.0"]
    assert "Rests on 6 runs of 1 trial." in text
    assert "\x1b" not in text


def test_the_sweep_says_how_to_select_unless_the_command_does(sweep: Path) -> None:
    (sweep / "sweep.toml").write_text('selection = ["test_domain", "training_domain"]\n')
    text = printed(sweep, "--format", "markdown")
    assert text.index("chosen by test_domain") < text.index("chosen by training_domain")
    given = printed(sweep, "--format", "markdown", "--selection", "ood_validation")
    assert "chosen by ood_validation" in given
    assert "chosen by test_domain" not in given
    (sweep / "sweep.toml").write_text('name = "no selection"\n')
    assert "chosen by training_domain" in printed(sweep)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("selection = [", "sweep.toml cannot be read"),
        ("selection = 3", "must be a list of names, not 3"),
        ('selection = ["oracle"]', "unknown selection 'oracle'"),
    ],
)
def test_a_sweeps_file_that_is_wrong(sweep: Path, content: str, message: str) -> None:
    (sweep / "sweep.toml").write_text(content)
    assert message in refused(sweep)


def test_the_ending_of_the_file_is_its_format(sweep: Path, tmp_path: Path) -> None:
    for name, start in (("t.md", "### toy"), ("t.tex", "% \\usepackage{booktabs}"), ("t.csv", "dataset,algorithm")):
        assert printed(sweep, "--output", tmp_path / name) == ""
        assert (tmp_path / name).read_text().startswith(start)
    assert printed(sweep, "-o", tmp_path / "t.md", "--format", "json") == ""
    assert json.loads((tmp_path / "t.md").read_text())["tables"][0]["title"] == "toy"
    assert not list(tmp_path.glob(".*"))


def test_notes_stay_out_of_what_programs_read(sweep: Path) -> None:
    write_run(sweep / "unfinished", "ldat", "art", (0.5,), is_done=False)
    result = invoke(sweep, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert {row["algorithm"] for row in rows} == {"erm", "mat"}
    assert "note: " in result.stderr
    assert "1 unfinished run skipped" in result.stderr
    assert "1 unfinished run skipped" in printed(sweep, "--format", "markdown").splitlines()[-1]


def test_unfinished_runs_count_when_asked_for(sweep: Path) -> None:
    write_run(sweep / "unfinished", "ldat", "art", (0.5,), is_done=False)
    assert "ldat" not in printed(sweep)
    content = json.loads(printed(sweep, "--unfinished", "--format", "json"))
    assert [row["algorithm"] for row in content["tables"][0]["rows"]] == ["erm", "mat", "ldat"]


def test_all_that_can_be_added(sweep: Path) -> None:
    text = printed(
        *(sweep, "--columns", "worst, gap", "--compare", "paper", "--versus", "erm"),
        *("--selection", "test_domain", "--selection", "training_domain", "--format", "markdown"),
    )
    assert "| method | art | cartoon | sketch | Avg | worst | gap | training |" in text
    assert "| method | art | cartoon | sketch | Avg | worst | gap |\n" in text
    assert "The paper has no numbers for this." in text
    assert "| mat | +5.0 ± 0.0 | 3 | 3 | 0.2500 |" in text


def test_what_is_refused(sweep: Path, tmp_path: Path) -> None:
    assert "unknown format 'html'" in refused(sweep, "--format", "html")
    assert "unknown column 'best'" in refused(sweep, "--columns", "best")
    assert "unknown reference to --compare with 'papers'; did you mean" in refused(sweep, "--compare", "papers")
    assert "unknown method of these runs 'irm'" in refused(sweep, "--versus", "irm")
    assert "cannot be written" in refused(sweep, "--output", tmp_path / "nowhere" / "t.md")
    assert "nothing" in refused(tmp_path / "nothing")
