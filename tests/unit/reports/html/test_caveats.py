"""Each caveat is on the page if it applies, and only then."""

import json
from pathlib import Path

from domainwise.reports.build import build_report
from domainwise.reports.cells import build_grids
from domainwise.reports.html.caveats import Caveat, find_caveats
from domainwise.reports.html.page_data import read_page_data
from domainwise.selection import SELECTIONS
from run_folders import DOMAINS, write_grid, write_run


def caveats(folder: Path, *selections: str, split_variants: bool = False, kind: str | None = None) -> list[Caveat]:
    data = read_page_data([folder], split_variants=split_variants)
    names = selections or ("training_domain",)
    selected = {name: SELECTIONS[name](data.runs.frame) for name in names}
    found = find_caveats(data, build_grids(data.runs), selected, build_report(data.runs, names).tables)
    return [caveat for caveat in found if kind in (None, caveat.kind)]


def text(folder: Path, kind: str, *selections: str, split_variants: bool = False) -> str:
    (caveat,) = caveats(folder, *selections, split_variants=split_variants, kind=kind)
    return caveat.text


def test_complete_fair_comparison_has_no_caveats(tmp_path: Path) -> None:
    write_grid(tmp_path, "erm", 0.4)
    write_grid(tmp_path, "mat", 0.5)
    assert caveats(tmp_path) == []


def test_two_trials_are_too_few(tmp_path: Path) -> None:
    write_grid(tmp_path, "erm", 0.4, trials=2)
    assert "Fewer than 3 trials on toy (2 trials)" in text(tmp_path, "trials")


def test_oracle_selection(tmp_path: Path) -> None:
    write_grid(tmp_path, "erm", 0.4)
    assert [each.kind for each in caveats(tmp_path, "training_domain", "test_domain")] == ["oracle"]


def test_model_at_chance_level_on_the_training_domains(tmp_path: Path) -> None:
    write_grid(tmp_path, "erm", 0.4)
    write_grid(tmp_path, "mat", 0.4, training=0.251, classes=4)
    assert caveats(tmp_path, kind="chance") == []
    write_grid(tmp_path, "ldat", 0.4, training=0.25, classes=4)
    message = text(tmp_path, "chance")
    assert "9 models selected by training_domain on toy are at chance level on the training domains" in message
    assert "ldat tested on art, trial 0: 25.0 %" in message
    assert "; 5 more" in message
    assert "mat" not in message


def test_model_tested_on_several_domains_counts_once(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one", "erm", "art", training=0.1)
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    for line in lines:
        line["roles"], line["test_domains"], line["train_domains"] = "fixed", ["art", "sketch"], ["cartoon"]
        line["accuracy"]["sketch"] = {"main": 0.3, "holdout": 0.3}
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "1 model selected by training_domain on toy is at chance level" in text(tmp_path, "chance")


def test_missing_cells_with_reasons(tmp_path: Path) -> None:
    write_grid(tmp_path, "erm", 0.4)
    for trial in range(3):
        write_run(tmp_path / f"mat{trial}", "mat", "art", trial=trial)
    message = text(tmp_path, "missing", "training_domain", "test_domain")
    assert message.startswith("Selected by training_domain or test_domain, 2 cells of toy have missing runs or trials")
    assert "mat on cartoon, sketch: no runs." in message


def test_long_list_is_cut(tmp_path: Path) -> None:
    domains = [f"a domain with quite a long name {number}" for number in range(9)]
    write_grid(tmp_path, "erm", 0.01, domains=domains)
    write_run(tmp_path / "mat", "mat", domains[0], domains=domains)
    message = text(tmp_path, "missing")
    assert message.endswith("(see below the table)")
    assert len(message) < 400


def test_different_steps(tmp_path: Path) -> None:
    write_grid(tmp_path, "erm", 0.4)
    for trial in range(3):
        for domain in DOMAINS:
            write_run(tmp_path / f"mat-{domain}-{trial}", "mat", domain, (0.1, 0.2, 0.3), trial=trial)
    assert "toy were trained for different numbers of steps: erm 2; mat 3." in text(tmp_path, "steps")


def test_steps_of_runs_that_do_not_count_are_ignored(tmp_path: Path) -> None:
    write_grid(tmp_path, "erm", 0.4)
    write_grid(tmp_path, "mat", 0.4)
    write_run(tmp_path / "begun", "mat", "art", (0.1, 0.2, 0.3), trial=1, draw=1, is_done=False)
    assert caveats(tmp_path) == []


def test_different_budgets(tmp_path: Path) -> None:
    write_grid(tmp_path, "erm", 0.4)
    write_grid(tmp_path, "mat", 0.4)
    write_grid(tmp_path, "mat", 0.4, draw=1)
    assert "were selected from different numbers of hyperparameter draws: erm 1; mat 2." in text(tmp_path, "budget")


def test_variants_side_by_side(tmp_path: Path) -> None:
    write_grid(tmp_path, "mat", 0.4, name="small", hparams={"epsilon": 0.1})
    write_grid(tmp_path, "mat", 0.5, name="large", hparams={"epsilon": 1.0})
    assert text(tmp_path, "variants", split_variants=True).startswith("Several settings of mat are shown")
