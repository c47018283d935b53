"""What is chosen of a recipe's runs: whole trials only, and training accuracy where the test domain chose."""

from pathlib import Path

from domainwise.reproduction.comparison import chosen_of
from domainwise.reproduction.plan import Part, RecipePlan
from domainwise.reproduction.recipe import Recipe, Row, scales
from domainwise.storage.sweep_folder import PlannedRun
from domainwise.training import RunConfig
from run_folders import write_run

ROW = Row("erm", "erm")
RECIPE = Recipe("table_1", "test", ("Table 1",), "about", rows=(ROW,))


def plan_of(folder: Path, selection: str, is_done: dict[tuple[str, int], bool]) -> RecipePlan:
    runs = {}
    for (domain, trial), done in is_done.items():
        output = write_run(folder / f"{domain}-{trial}", "erm", domain, (0.2, 0.6), trial=trial, is_done=done)
        config = RunConfig("pacs", "erm", test_domains=(domain,), trial_seed=trial, output=output)
        runs[PlannedRun(output, output.name, "toy", "erm", (domain,), trial, 0)] = config
    return RecipePlan(RECIPE, scales()["cpu"], (Part(ROW, "toy", selection, runs),), {})


def test_a_trial_counts_with_all_its_domains(tmp_path: Path) -> None:
    done = {("art", 0): True, ("cartoon", 0): True, ("art", 1): True, ("cartoon", 1): False}
    chosen = chosen_of(plan_of(tmp_path, "training_domain", done))
    assert chosen.select("test_domain", "trial").sort("test_domain").rows() == [("art", 0), ("cartoon", 0)]
    assert chosen["accuracy"].to_list() == [0.6, 0.6]
    assert chosen["training"].to_list() == [None, None]
    assert {Path(run).name for run in chosen["run"]} == {"art-0", "cartoon-0"}


def test_the_test_domains_choice_shows_its_training(tmp_path: Path) -> None:
    chosen = chosen_of(plan_of(tmp_path, "test_domain", {("art", 0): True}))
    assert chosen["training"].to_list() == [0.9]


def test_without_runs_there_is_nothing(tmp_path: Path) -> None:
    assert chosen_of(plan_of(tmp_path, "training_domain", {("art", 0): False})).is_empty()
