"""`domainwise sweep`: dry run, run, extend, repeat with new seeds, status, and errors."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from domainwise.training import RunFolder
from easy_images import write_easy_images

Cli = Callable[..., Any]
OPTIONS = ("train_count=60", "test_count=20", "image_size=16", "shifts=(0,8)")
SMALL = [
    *("sweep", "--dataset", "silhouettes", "--algorithm", "erm", "--algorithm", "mat", "--steps", "4"),
    *(word for option in OPTIONS for word in ("--dataset-option", option)),
    *("--record-every", "2", "--batch-size", "8", "--device", "cpu", "--workers", "2"),
]


def read_runs(folder: Path) -> dict[str, RunFolder]:
    return {path.name: RunFolder(path) for path in folder.iterdir() if path.is_dir()}


def test_dry_run_prints_the_count_the_time_and_a_command(domainwise: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    outcome = domainwise(*SMALL, "--draws", "2", "--trials", "3", "--dry-run", "-o", folder)
    assert outcome.code == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0].startswith("12 runs, 0 done, in ")
    assert "on this machine, 2 runs at a time" in outcome.out
    assert not folder.exists()
    words = shlex.split(lines[-1].removeprefix("for example: "))
    assert words[:2] == ["domainwise", "train"]
    assert domainwise(*words[1:]).code == 0
    (run,) = read_runs(folder).values()
    assert run.is_done


def test_run_extend_status_and_report(domainwise: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    first = domainwise(*SMALL, "-o", folder)
    assert first.code == 0, first.err
    assert "done: 2 of 2 runs" in first.out
    times = {name: run.records_file.stat().st_mtime_ns for name, run in read_runs(folder).items()}
    extended = domainwise(*SMALL, "--draws", "2", "--algorithm", "uat", "-o", folder)
    assert extended.code == 0, extended.err
    assert "done: 6 of 6 runs" in extended.out
    runs = read_runs(folder)
    assert {name: runs[name].records_file.stat().st_mtime_ns for name in times} == times
    against = domainwise("robustness", "--against-epsilon", folder, "-o", tmp_path / "epsilon.png", "--json")
    assert against.code == 0, against.err
    # ERM's draws compete for one point; of the others, every sampled epsilon is one.
    epsilons = [(row["method"], row["epsilon"]) for row in json.loads(against.out) if row["domain"] == "average"]
    assert [method for method, _ in epsilons] == ["erm", "mat", "mat", "uat", "uat"]
    assert len(set(epsilons)) == 5
    report = domainwise("report", folder, "--format", "json")
    assert report.code == 0, report.err
    tables = json.loads(report.out)["tables"]
    assert [row["algorithm"] for row in tables[0]["rows"]] == ["erm", "uat", "mat"]
    smaller = domainwise(*SMALL, "-o", folder)
    assert smaller.code == 2
    assert "was started with algorithms erm mat uat, not erm mat" in smaller.err

    status = domainwise("sweep", "status", folder)
    assert status.out.splitlines()[-2].split() == ["all", "6", "0", "0", "0", "0"]
    names = sorted(runs)
    runs[names[0]].write_failure("Traceback\nValueError: no")
    for name in names[:3]:
        runs[name].done_file.unlink()
    runs[names[2]].config_file.unlink()
    files = sorted(folder.rglob("*"))
    status = domainwise("sweep", "status", folder)
    assert status.out.splitlines()[-3].split() == ["all", "3", "0", "1", "1", "1"]
    assert status.out.splitlines()[-1] == f"failed: {names[0]}: ValueError: no"
    entries = {each["run"]: each for each in json.loads(domainwise("sweep", "status", folder, "--json").out)}
    assert sorted(entries) == names
    assert [entries[name]["state"] for name in names] == ["failed", "unfinished", "pending", *["done"] * 3]
    assert entries[names[0]] == {
        "run": names[0],
        "dataset": "silhouettes",
        "algorithm": "erm",
        "test_domains": ["shift_0", "shift_8"],
        "trial": 0,
        "draw": 0,
        "state": "failed",
        "step": 4,
        "error": "ValueError: no",
        "reason": "",
    }
    assert sorted(folder.rglob("*")) == files


def test_selected_runs_are_repeated_with_new_seeds(domainwise: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    outcome = domainwise(*SMALL, "--draws", "2", "--trials", "2", "--best-on-more-seeds", "2", "-o", folder)
    assert outcome.code == 0, outcome.err
    repeated = read_runs(tmp_path / "sweep-best-training_domain")
    configs = [run.read_config()["config"] for run in repeated.values()]
    assert sorted((config["algorithm"], config["trial_seed"]) for config in configs) == [
        *(("erm", 2), ("erm", 3), ("mat", 2), ("mat", 3))
    ]
    # The hyperparameters are those of the run with the highest score over all trials and draws.
    runs = {name: run for name, run in read_runs(folder).items() if "-mat-" in name}
    scores = {
        name: max(
            sum(record["accuracy"][domain]["holdout"] for domain in record["train_domains"])
            for record in run.read_records()
        )
        for name, run in runs.items()
    }
    best = max(scores.values())
    allowed = [runs[name].read_config()["config"]["hparams"] for name, score in scores.items() if score == best]
    assert all(config["hparams"] in allowed for config in configs if config["algorithm"] == "mat")
    assert domainwise("report", tmp_path / "sweep-best-training_domain").code == 0


def test_slurm_script_has_one_job_per_run_that_is_not_done(domainwise: Cli, tmp_path: Path) -> None:
    folder, script = tmp_path / "sweep", tmp_path / "jobs.sh"
    assert domainwise(*SMALL, "-o", folder).code == 0
    outcome = domainwise(*SMALL, "--trials", "2", "-o", folder, "--engine", "slurm", "--write-script", script)
    assert outcome.code == 0, outcome.err
    assert f"wrote {script} with 2 jobs" in " ".join(outcome.out.split())
    assert "#SBATCH --array=1-2%2\n" in script.read_text()
    for line in (tmp_path / "jobs.commands").read_text().splitlines():
        assert domainwise(*shlex.split(line)[1:]).code == 0
    assert domainwise("sweep", "status", folder).out.splitlines()[-2].split() == ["all", "4", "0", "0", "0", "0"]


UAT = [word if word != "mat" else "uat" for word in SMALL]


def test_grid_run_resume_extend_recommend_and_report(domainwise: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    words = [*UAT, "--selection", "training_domain", "--selection", "one_standard_error", "-o", folder]
    dry = domainwise(*words, "--grid", "epsilon=.1,.5", "--trials", "2", "--dry-run")
    assert dry.out.startswith("6 runs, 0 done, in "), dry.err
    first = domainwise(*words, "--selection", "attacked_holdout", "--grid", "epsilon=.1,.5", "--trials", "2")
    assert first.code == 0, first.err
    assert first.out.count("recommended: epsilon ") == 1
    assert "done: 6 of 6 runs" in first.out
    runs = read_runs(folder)
    hparams = {name: run.read_config()["config"]["hparams"].get("epsilon") for name, run in runs.items()}
    assert {name.partition("-draw")[2]: value for name, value in hparams.items() if "-uat-" in name} == {
        "0-trial0": 0.1,
        "1-trial0": 0.5,
        "0-trial1": 0.1,
        "1-trial1": 0.5,
    }
    assert [name for name in runs if "-erm-" in name and "draw0" not in name] == []
    times = {name: run.records_file.stat().st_mtime_ns for name, run in runs.items()}
    words = [*words, "--selection", "attacked_holdout", "--grid", "epsilon=.1,.5,2", "--trials", "2"]
    extended = domainwise(*words)
    assert "done: 8 of 8 runs" in extended.out, extended.err
    assert {name: run.records_file.stat().st_mtime_ns for name, run in runs.items()} == times

    lines = [line.split("  ") for line in extended.out.splitlines()]
    table = [[cell.strip() for cell in line if cell.strip()] for line in lines]
    start = table.index(["uat on silhouettes, mean ± standard error over runs, in percent"])
    assert table[start + 1] == ["holdout", "holdout under attack", "selected by (share of runs)"]
    assert [row[0] for row in table[start + 2 : start + 5]] == ["epsilon 0.1", "epsilon 0.5", "epsilon 2"]
    assert table[start + 5][0].startswith("recommended: epsilon ")
    again = domainwise("sweep", "recommend", folder)
    assert again.code == 0, again.err
    assert again.out in extended.out
    (entry,) = json.loads(domainwise("sweep", "recommend", folder, "--json").out)
    assert [point["values"] for point in entry["points"]] == [{"epsilon": 0.1}, {"epsilon": 0.5}, {"epsilon": 2.0}]
    report = json.loads(domainwise("report", folder, "--format", "json").out)
    assert [table["selection"] for table in report["tables"] if table["title"] == "silhouettes"] == [
        *("training_domain", "one_standard_error", "attacked_holdout")
    ]
    status = domainwise("sweep", "status", folder).out
    assert [line.split()[3] for line in status.splitlines() if " on " in line] == ["2", "6"]
    assert "recommended" not in domainwise(*words, "--quiet").out


def test_race_dry_run_run_status_and_report(domainwise: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOMAINWISE_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "sweep"
    words = [
        *("sweep", "--dataset", write_easy_images(tmp_path / "colors"), "--test-domain", "light", "--image-size", "16"),
        *("--algorithm", "erm", "--algorithm", "mat", "--grid", "lr=.01,1e-8,1e-9", "--search", "race"),
        *("--network", "small_cnn", "--no-augment", "--steps", "20", "--record-every", "4", "--batch-size", "8"),
        *("--device", "cpu", "--workers", "2", "-o", folder),
    ]
    dry = domainwise(*words, "--dry-run")
    assert dry.code == 0, dry.err
    plan = "race for erm on colors: 3 draws, compared after 5, 9, 13, 17 of 20 steps (expected: 57% of a full search)"
    assert plan in dry.out
    assert "stop-after" not in dry.out
    outcome = domainwise(*words)
    assert outcome.code == 0, outcome.err
    assert plan in outcome.err
    assert "done: 2 of 6 runs (4 stopped early) in" in outcome.out
    assert outcome.err.count(" of 20 steps: holdout ") == 4
    status = domainwise("sweep", "status", folder)
    assert status.out.count(", clearly behind ") == 4
    runs = json.loads(domainwise("sweep", "status", folder, "--json").out)
    assert sorted(run["state"] for run in runs) == ["done"] * 2 + ["stopped"] * 4
    assert all(run["step"] in (5, 9, 13, 17) for run in runs if run["state"] == "stopped")
    assert "2 of 3 draws were stopped early by racing." in domainwise("report", folder).out
    assert "6 runs, 6 done" in domainwise(*words, "--dry-run").out
    more = domainwise(*["lr=.01,1e-8,1e-9,1e-7" if "lr=" in str(word) else word for word in words])
    assert more.code == 2
    assert "was started with grid lr=0.01,1e-08,1e-09, not lr=0.01,1e-08,1e-09,1e-07" in more.err


def test_recommend_needs_a_grid(domainwise: Cli, tmp_path: Path) -> None:
    assert domainwise(*SMALL, "-o", tmp_path / "sweep").code == 0
    outcome = domainwise("sweep", "recommend", tmp_path / "sweep")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert outcome.err.startswith(f"error: the sweep in {tmp_path / 'sweep'} has no grid; start one with --grid ")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--algorithm", "matt"], "unknown algorithm 'matt'; did you mean 'mat'?"),
        (["--dataset", "silhouete"], "unknown dataset 'silhouete'; did you mean 'silhouettes'?"),
        (["--selection", "oracle"], "unknown selection 'oracle'"),
        (["--selection", "leave_one_out"], "leave_one_out holds out each domain in turn"),
        (["--space", "papper"], "unknown search space 'papper'; did you mean 'paper'?"),
        (["--space", "paper"], "search space paper has no rule for erm on silhouettes"),
        (["--draws", "0"], "draws must be at least 1, got 0"),
        (["--draws", "1000000000"], "the sweep would have 2,000,000,000 runs, and at most 100,000 are possible; "),
        (["--trials", "1000000000", "--dry-run"], "the sweep would have 2,000,000,000 runs"),
        (["--engine", "sge"], "unknown engine 'sge'"),
        (["--engine", "slurm"], "--engine slurm and --write-script FILE must be given together"),
        (["--search", "racing", "--draws", "2"], "unknown search 'racing'; did you mean 'race'?"),
        (["--search", "race"], "a race needs at least 2 draws or a grid"),
        (
            ["--search", "race", "--draws", "2", "--selection", "test_domain"],
            "draws cannot race for selection test_domain, which looks at other runs or at the test domain; ",
        ),
        (
            ["--search", "race", "--draws", "2", "--engine", "slurm", "--write-script", "jobs.sh"],
            "--search race needs --engine local or ray",
        ),
        (["--workers", "0"], "workers must be at least 1, got 0"),
        (["-H", "epsilom=1"], "unknown hyperparameter 'epsilom'; did you mean 'epsilon'?"),
        (["-H", "epsilon"], "--hparam expects name=value, got 'epsilon'"),
        (["--test-domain", "shift_9"], "unknown test domain 'shift_9'"),
        (["--engine", "ray", "--results", "sent"], "unknown results mode 'sent'"),
        (["--grid", "epsilon"], "--grid expects name=value,value,..., got 'epsilon'"),
        (["--grid", "epsilon="], "--grid expects name=value,value,..., got 'epsilon='"),
        (["--grid", "epsilon=.1,,2"], "--grid expects name=value,value,..., got 'epsilon=.1,,2'"),
        (["--grid", "epsilom=.1,.5"], "unknown hyperparameter 'epsilom'; did you mean 'epsilon'?"),
        (["--grid", "rank=1,5"], "unknown hyperparameter 'rank'"),
        (
            ["--grid", "epsilon=.1,-1"],
            "hyperparameter epsilon must be a number of at least 0, such as 0.5 or '2/255 rms', got -1.0",
        ),
        (["--grid", "clean_weight=1,-1"], "hyperparameter clean_weight must be at least 0, got -1"),
        (["--grid", "count=1,two"], "hyperparameter count must be an integer, got 'two'"),
        (["--grid", "epsilon=.5,0.50"], "duplicate values in the grid for epsilon: 0.5, 0.5"),
        (["--grid", "epsilon=1", "--grid", "epsilon=2"], "--grid epsilon is given twice; list all its values in one"),
        (["--grid", "epsilon=.1", "--draws", "1"], "--draws and --grid cannot be used together"),
        (["--grid", "epsilon=.1", "-H", "epsilon=2"], "epsilon is both fixed (2.0) and in the grid (0.1)"),
        (
            ["--attack-radius", "-1 rms"],
            "attack_radius must be a number of at least 0, such as 0.5 or '2/255 rms', got '-1 rms'",
        ),
        (["--steps", "0"], "steps must be an integer of at least 1, got 0"),
    ],
)
def test_invalid_options_are_one_line_and_exit_code_2(
    domainwise: Cli, tmp_path: Path, words: list[str], message: str
) -> None:
    outcome = domainwise(*SMALL, "-o", tmp_path / "sweep", *words)
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: {message}")
    assert outcome.err.count("\n") == 1
    assert not (tmp_path / "sweep").exists()


def test_a_folder_without_a_sweep_and_a_sweep_without_methods(domainwise: Cli, tmp_path: Path) -> None:
    outcome = domainwise("sweep", "status", tmp_path)
    assert (outcome.code, outcome.err) == (2, f"error: no sweep in {tmp_path}: sweep.toml not found\n")
    outcome = domainwise("sweep", "--dataset", "silhouettes")
    assert outcome.err == "error: no algorithms given; a sweep needs at least one\n"
