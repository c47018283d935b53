"""`domainwise reproduce`: every recipe in small from its runs to its result; and, slow, every one at full size."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from domainwise.reproduction.memory import measured_costs
from domainwise.reproduction.plan import plan_recipe
from domainwise.reproduction.recipe import recipes, scales
from domainwise.reproduction.smoke_data import write_layouts
from domainwise.training import train

WITH_RUNS = [key for key, recipe in recipes().items() if recipe.blocks]
PICTURES = {
    "figure_1": ["against_radius_pacs"],
    "figure_2": ["ranks"],
    "figure_4": ["grad_cam_nico"],
    **{key: ["against_setting"] for key in ("table_3", "table_6", "table_7", "table_8")},
    "theorem": ["bound", "map", "reliance_over_p", "reliance_over_time", "task"],
}


def test_all_recipes_in_small(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "domainwise", "reproduce", "--all", "--scale", "smoke", "-o", str(tmp_path)]
    first = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert first.returncode == 0, first.stderr[-2000:]
    for key, recipe in recipes().items():
        result = (tmp_path / "smoke" / key / "result.md").read_text()
        assert result.startswith(f"# {', '.join(recipe.numbers)}: {recipe.about}")
        for claim in recipe.claims:
            assert f"| {claim.says} |" in result
        for row in recipe.rows:
            assert f"| {row.name} |" in result
        page = tmp_path / "smoke" / key / "result.html"
        assert page.exists() == bool(recipe.blocks)
        if recipe.blocks:
            assert "smoke scale (two steps of a tiny network" in page.read_text()
        pictures = sorted(file.stem for file in (tmp_path / "smoke" / key).glob("*.png"))
        assert pictures == PICTURES.get(key, [])
    again = subprocess.run([*command[:4], "table_8", *command[5:]], capture_output=True, text=True, timeout=600)
    assert again.returncode == 0, again.stderr
    assert "1/4" not in again.stdout
    (tmp_path / "smoke" / "runs" / "at" / "pacs-at-art_painting-draw0-trial0" / "done").unlink()
    so_far = subprocess.run(
        [*command[:4], "table_8", *command[5:], "--so-far"], capture_output=True, text=True, timeout=600
    )
    assert so_far.returncode == 0, so_far.stderr
    assert "note: 1 of 4 runs are not done" in so_far.stdout
    assert "\n at " not in so_far.stdout
    assert "\n erm " in so_far.stdout


@pytest.mark.slow
@pytest.mark.parametrize("key", WITH_RUNS)
def test_the_first_run_at_full_size_starts(key: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    data = write_layouts(tmp_path_factory.getbasetemp() / "layouts")
    settings = {"weights": "none", "steps": 2, "record_every": 2, "batch_size": 8}
    folder = tmp_path_factory.mktemp(key)
    made = plan_recipe(recipes()[key], scales()["full"], folder, data_dir=data, settings=settings)
    config = next(iter(made.runs.values()))
    if config.dataset != "colored_mnist":
        assert config.network == "resnet18"
        assert config.dataset_options == {"image_size": 224}
    result = train(replace(config, device="cpu"))
    assert result.last["step"] == 1


@pytest.mark.slow
def test_memory_is_measured_at_full_size() -> None:
    settings = scales()["full"].of("pacs")
    assert (settings["network"], settings["image_size"]) == ("resnet18", 224)
    erm, mat, ldat = measured_costs("resnet18", 224, batch_size=2, rounds=1)
    # k = 20 images a domain in MAT; two factors of rank 10 a colour in LDAT.
    assert mat.kept >= 3 * 20 * 3 * 224 * 224 * 4
    assert ldat.kept >= 3 * 2 * 3 * 224 * 10 * 4
    assert erm.kept < ldat.kept < mat.kept
    assert all(each.seconds > 0 and each.peak > 0 for each in (erm, mat, ldat))
