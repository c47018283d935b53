"""`domainwise sweep`: told beforehand, carried out, widened, repeated on new seeds, and refused."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from domainwise.training import RunFolder

Cli = Callable[..., object]
SMALL = [
    *("sweep", "--datasets", "silhouettes", "--algorithms", "erm", "mat", "--steps", "4", "--record-every", "2"),
    *("--dataset-option", "train_count=60", "test_count=20", "image_size=16", "shifts=(0,8)"),
    *("--batch-size", "8", "--device", "cpu", "--workers", "2"),
]


def runs(folder: Path) -> dict[str, RunFolder]:
    return {path.name: RunFolder(path) for path in folder.iterdir() if path.is_dir()}


def test_a_dry_run_tells_how_many_how_long_and_shows_one(domainwise: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    outcome = domainwise(*SMALL, "--draws", "2", "--trials", "3", "--dry-run", "-o", folder)
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0].startswith("12 runs, 0 of them done, into ")
    assert "on this machine with 2 at a time" in outcome.out
    assert not folder.exists()
    words = shlex.split(lines[-1].removeprefix("one of them: "))
    assert words[:2] == ["domainwise", "train"]
    assert domainwise(*words[1:]).code == 0
    (run,) = runs(folder).values()
    assert run.is_done
    assert "12 runs, 0 of them done" in outcome.out


def test_a_sweep_is_carried_out_told_of_widened_and_reported(domainwise: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    first = domainwise(*SMALL, "-o", folder)
    assert first.code == 0, first.err
    assert "done: 2 of 2 runs" in first.out
    made = {name: run.records_file.stat().st_mtime_ns for name, run in runs(folder).items()}
    wider = domainwise(*SMALL, "--draws", "2", "--algorithms", "uat", "-o", folder)
    assert wider.code == 0, wider.err
    assert "done: 6 of 6 runs" in wider.out
    assert {name: runs(folder)[name].records_file.stat().st_mtime_ns for name in made} == made
    status = domainwise("sweep", "status", folder)
    assert status.out.splitlines()[-2].split() == ["all", "6", "0", "0", "0"]
    report = domainwise("report", folder, "--format", "json")
    assert report.code == 0, report.err
    tables = json.loads(report.out)["tables"]
    assert [row["algorithm"] for row in tables[0]["rows"]] == ["erm", "uat", "mat"]
    narrower = domainwise(*SMALL, "-o", folder)
    assert narrower.code == 2
    assert "was begun with algorithms erm mat uat, not erm mat" in narrower.err


def test_what_was_chosen_is_repeated_on_new_seeds(domainwise: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    outcome = domainwise(*SMALL, "--draws", "2", "--trials", "2", "--best-on-more-seeds", "2", "-o", folder)
    assert outcome.code == 0, outcome.err
    again = runs(tmp_path / "sweep-best-training_domain")
    configs = [run.read_config()["config"] for run in again.values()]
    assert sorted((config["algorithm"], config["trial_seed"]) for config in configs) == [
        *(("erm", 2), ("erm", 3), ("mat", 2), ("mat", 3))
    ]
    # The hyperparameters are those of the run with the highest score among all trials and draws.
    scores = {}
    for name, run in runs(folder).items():
        if "-mat-" in name:
            best = max(
                sum(record["accuracy"][domain]["holdout"] for domain in record["train_domains"])
                for record in run.read_records()
            )
            scores[name] = best
    highest = max(scores.values())
    allowed = [runs(folder)[name].read_config()["config"]["hparams"] for name in scores if scores[name] == highest]
    for config in configs:
        if config["algorithm"] == "mat":
            assert config["hparams"] in allowed
    assert domainwise("report", tmp_path / "sweep-best-training_domain").code == 0


def test_a_script_for_slurm_has_a_job_a_run_that_is_not_done(domainwise: Cli, tmp_path: Path) -> None:
    folder, script = tmp_path / "sweep", tmp_path / "jobs.sh"
    assert domainwise(*SMALL, "-o", folder).code == 0
    outcome = domainwise(*SMALL, "--trials", "2", "-o", folder, "--engine", "slurm", "--write-script", script)
    assert outcome.code == 0, outcome.err
    assert "2 jobs in" in outcome.out
    assert "#SBATCH --array=1-2%2\n" in script.read_text()
    for line in (tmp_path / "jobs.commands").read_text().splitlines():
        assert domainwise(*shlex.split(line)[1:]).code == 0
    assert domainwise("sweep", "status", folder).out.splitlines()[-2].split() == ["all", "4", "0", "0", "0"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--algorithms", "matt"], "unknown algorithm 'matt'; did you mean 'mat'?"),
        (["--datasets", "silhouete"], "unknown dataset 'silhouete'; did you mean 'silhouettes'?"),
        (["--selection", "oracle"], "unknown selection 'oracle'"),
        (["--selection", "leave_one_out"], "leave_one_out leaves out each domain in turn"),
        (["--space", "papper"], "unknown search space 'papper'; did you mean 'paper'?"),
        (["--space", "paper"], "the search space paper says nothing of erm on silhouettes"),
        (["--draws", "0"], "draws must be at least 1, not 0"),
        (["--engine", "sge"], "unknown engine 'sge'"),
        (["--engine", "slurm"], "--engine slurm writes a script and --write-script says where"),
        (["--workers", "0"], "--workers must be at least 1, not 0"),
        (["-H", "epsilom=1"], "unknown hyperparameter 'epsilom'; did you mean 'epsilon'?"),
        (["-H", "epsilon"], "--hparam takes name=value, not 'epsilon'"),
        (["--test-domains", "shift_9"], "unknown domain of silhouettes 'shift_9'"),
        (["--results", "sent"], "unknown way of results 'sent'"),
        (["--steps", "0"], "steps must be a whole number of at least 1, not 0"),
    ],
)
def test_what_cannot_be_used_is_one_line_and_exit_code_2(
    domainwise: Cli, tmp_path: Path, words: list[str], said: str
) -> None:
    outcome = domainwise(*SMALL, "-o", tmp_path / "sweep", *words)
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: {said}")
    assert outcome.err.count("\n") == 1
    assert not (tmp_path / "sweep").exists()


def test_the_folder_of_no_sweep_and_a_sweep_of_nothing(domainwise: Cli, tmp_path: Path) -> None:
    outcome = domainwise("sweep", "status", tmp_path)
    assert (outcome.code, outcome.err) == (2, f"error: there is no sweep in {tmp_path}: it has no sweep.toml\n")
    assert domainwise("sweep", "--datasets", "silhouettes").err == "error: a sweep needs at least one of algorithms\n"
