"""Each caution is there when it must be, and only then."""

import json
from pathlib import Path

from domainwise.reports.cells import grids
from domainwise.reports.html.caveats import Caution, cautions_of
from domainwise.reports.html.page_data import Material, Variants, read_material
from domainwise.reports.report import make_report
from domainwise.selection import SELECTIONS
from run_folders import DOMAINS, write_grid, write_run


def cautions(folder: Path, *selections: str, variants: Variants = "refuse", kind: str | None = None) -> list[Caution]:
    material: Material = read_material([folder], variants=variants)
    names = selections or ("training_domain",)
    chosen = {name: SELECTIONS[name](material.runs.frame) for name in names}
    found = cautions_of(material, grids(material.runs), chosen, make_report(material.runs, names).tables)
    return [caution for caution in found if kind in (None, caution.kind)]


def text(folder: Path, kind: str, *selections: str, variants: Variants = "refuse") -> str:
    (caution,) = cautions(folder, *selections, variants=variants, kind=kind)
    return caution.text


def test_a_whole_fair_comparison_has_none(tmp_path: Path) -> None:
    write_grid(tmp_path, "erm", 0.4)
    write_grid(tmp_path, "mat", 0.5)
    assert cautions(tmp_path) == []


def test_two_trials_are_few(tmp_path: Path) -> None:
    write_grid(tmp_path, "erm", 0.4, trials=2)
    assert "Fewer than 3 trials on toy (2 trials)" in text(tmp_path, "trials")


def test_the_oracle_is_named(tmp_path: Path) -> None:
    write_grid(tmp_path, "erm", 0.4)
    assert [each.kind for each in cautions(tmp_path, "training_domain", "test_domain")] == ["oracle"]


def test_a_model_worse_than_chance_where_it_trained(tmp_path: Path) -> None:
    write_grid(tmp_path, "erm", 0.4)
    write_grid(tmp_path, "mat", 0.4, training=0.25, classes=4)
    assert cautions(tmp_path, kind="chance") == []
    write_grid(tmp_path, "ldat", 0.4, training=0.249, classes=4)
    said = text(tmp_path, "chance")
    assert "9 models on toy are worse than chance (25.0 %)" in said
    assert "ldat tested on art, trial 0: 24.9 %" in said
    assert "and 5 more" in said
    assert "mat" not in said


def test_a_model_that_tests_on_several_domains_is_one(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one", "erm", "art", training=0.1)
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    for line in lines:
        line["roles"], line["test_domains"], line["train_domains"] = "fixed", ["art", "sketch"], ["cartoon"]
        line["accuracy"]["sketch"] = {"main": 0.3, "holdout": 0.3}
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "1 model on toy is worse than chance" in text(tmp_path, "chance")


def test_missing_cells_and_why(tmp_path: Path) -> None:
    write_grid(tmp_path, "erm", 0.4)
    for trial in range(3):
        write_run(tmp_path / f"mat{trial}", "mat", "art", trial=trial)
    said = text(tmp_path, "missing", "training_domain", "test_domain")
    assert said.startswith("Chosen by training_domain or test_domain, 2 cells of toy lack runs or trials")
    assert "mat on cartoon, sketch: no runs." in said


def test_a_long_list_only_begins(tmp_path: Path) -> None:
    domains = [f"a domain with quite a long name {number}" for number in range(9)]
    write_grid(tmp_path, "erm", 0.01, domains=domains)
    write_run(tmp_path / "mat", "mat", domains[0], domains=domains)
    said = text(tmp_path, "missing")
    assert said.endswith("(the rest is under the table)")
    assert len(said) < 400


def test_different_steps(tmp_path: Path) -> None:
    write_grid(tmp_path, "erm", 0.4)
    for trial in range(3):
        for domain in DOMAINS:
            write_run(tmp_path / f"mat-{domain}-{trial}", "mat", domain, (0.1, 0.2, 0.3), trial=trial)
    assert "toy were trained for different numbers of steps: erm 2; mat 3." in text(tmp_path, "steps")


def test_runs_that_do_not_count_may_have_other_steps(tmp_path: Path) -> None:
    write_grid(tmp_path, "erm", 0.4)
    write_grid(tmp_path, "mat", 0.4)
    write_run(tmp_path / "begun", "mat", "art", (0.1, 0.2, 0.3), trial=1, draw=1, is_done=False)
    assert cautions(tmp_path) == []


def test_different_budgets(tmp_path: Path) -> None:
    write_grid(tmp_path, "erm", 0.4)
    write_grid(tmp_path, "mat", 0.4)
    write_grid(tmp_path, "mat", 0.4, draw=1)
    assert "different numbers of hyperparameter draws to choose from: erm 1; mat 2." in text(tmp_path, "budget")


def test_variants_side_by_side(tmp_path: Path) -> None:
    write_grid(tmp_path, "mat", 0.4, name="small", hparams={"epsilon": 0.1})
    write_grid(tmp_path, "mat", 0.5, name="large", hparams={"epsilon": 1.0})
    assert text(tmp_path, "variants", variants="split").startswith("mat stands here with several settings")
