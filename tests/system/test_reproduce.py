"""`domainwise reproduce`: one recipe at smoke scale; (slow) all of them, and the first run of each at full scale."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from domainwise.reproduction import reproduce
from domainwise.reproduction.memory import measure_step_costs
from domainwise.reproduction.plan import plan_recipe
from domainwise.reproduction.recipe import find_scale, list_paper_recipes, load_recipes
from domainwise.reproduction.smoke_data import write_smoke_data
from domainwise.training import train

WITH_RUNS = [key for key, recipe in load_recipes().items() if recipe.blocks]
PICTURES = {
    "figure_1": ["accuracy_by_radius_pacs"],
    "figure_2": ["ranks"],
    "figure_4": ["gradcam_nico"],
    **{key: ["accuracy_by_setting"] for key in ("table_3", "table_6", "table_7", "table_8")},
    "theorem": ["bound", "map", "reliance_over_p", "reliance_over_time", "task"],
}
# Recipes with a claim about their first dataset alone, the only one at this scale.
WITH_CLAIMS = (*(f"table_{number}" for number in (1, 2, 3, 6, 7, 8, 9, 10)), "figure_1")


@pytest.mark.slow
def test_all_recipes_at_smoke_scale(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "domainwise", "reproduce", "--all", "--scale", "smoke", "-o", str(tmp_path)]
    first = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert first.returncode == 0, first.stderr[-2000:]
    assert len(list_paper_recipes()) == 13
    overview = (tmp_path / "smoke" / "claims.md").read_text()
    assert (tmp_path / "smoke" / "claims.png").exists()
    for recipe in list_paper_recipes():
        key = recipe.key
        result = (tmp_path / "smoke" / key / "result.md").read_text()
        assert result.startswith(f"# {recipe.title}\n")
        for claim in recipe.claims:
            assert f"| {claim.text} |" in result
        for row in recipe.rows:
            assert f"| {row.name} |" in result
        page = tmp_path / "smoke" / key / "result.html"
        assert page.exists() == bool(recipe.blocks)
        if recipe.blocks:
            assert "smoke scale (two steps of a tiny network" in page.read_text()
        pictures = {file.stem for file in (tmp_path / "smoke" / key).glob("*.png")}
        assert pictures == {*PICTURES.get(key, []), *(["claims"] if key in WITH_CLAIMS else [])}
        for claim in recipe.claims:
            assert f"| {', '.join(recipe.numbers)} | {claim.text} | inconclusive |" in overview


def test_finished_runs_are_kept_and_reported(tmp_path: Path, domainwise: Callable[..., Any]) -> None:
    words = ["reproduce", "table_8", "--scale", "smoke", "-o", tmp_path]
    first = domainwise(*words)
    assert first.code == 0, first.err
    assert "1/4" in first.err
    again = domainwise(*words)
    assert again.code == 0, again.err
    assert "1/4" not in again.err
    (tmp_path / "smoke" / "runs" / "at" / "pacs-at-art_painting-draw0-trial0" / "done").unlink()
    report = domainwise(*words, "--report-only")
    assert report.code == 0, report.err
    assert "note: 1 of 4 runs not finished" in report.out
    assert "\n at " not in report.out
    assert "\n erm " in report.out


def test_figure_1_with_two_draws_ends_with_a_curve(tmp_path: Path) -> None:
    """Run through the API, from one call to the files."""
    result = reproduce("Figure 1", find_scale("smoke", draws=2), tmp_path).results["figure_1"]
    (panel,) = result.figures["accuracy_by_radius_pacs"].axes
    assert {line.get_label() for line in panel.lines} == {"ERM (n = 1)", "AT (n = 1)", "UAT (n = 1)"}
    pictures = ["accuracy_by_radius_pacs.png", "claims.png"]
    assert [file.name for file in result.files] == ["result.md", *pictures, "result.html"]
    assert {verdict.verdict for verdict in result.verdicts} == {"inconclusive"}
    assert "smoke scale" in result.notes[0]
    assert "2 hyperparameter draws" in result.notes[0]


@pytest.mark.slow
@pytest.mark.parametrize("key", WITH_RUNS)
def test_the_first_run_at_full_scale_starts(key: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    data = write_smoke_data(tmp_path_factory.getbasetemp() / "layouts")
    settings = {"weights": "none", "steps": 2, "record_every": 2, "batch_size": 8}
    folder = tmp_path_factory.mktemp(key)
    plan = plan_recipe(
        load_recipes()[key], find_scale("full"), folder, folder / "runs", data_dir=data, settings=settings
    )
    config = next(iter(plan.runs.values()))
    if config.dataset not in ("colored_mnist", "silhouettes"):
        assert config.network == "resnet18"
        assert config.dataset_options == {"image_size": 224}
    result = train(replace(config, device="cpu"))
    assert result.last["step"] == 1


@pytest.mark.slow
def test_memory_is_measured_at_full_scale() -> None:
    settings = find_scale("full").get_settings("pacs")
    assert (settings["network"], settings["image_size"]) == ("resnet18", 224)
    erm, mat, ldat = measure_step_costs("resnet18", 224, batch_size=2, rounds=1)
    # k = 20 images per domain in MAT; two factors of rank 10 per channel in LDAT.
    assert mat.perturbations >= 3 * 20 * 3 * 224 * 224 * 4
    assert ldat.perturbations >= 3 * 2 * 3 * 224 * 10 * 4
    assert erm.perturbations < ldat.perturbations < mat.perturbations
    assert all(each.seconds > 0 and each.peak > 0 for each in (erm, mat, ldat))
