"""What is repeated with new seeds is what was chosen, once for each test domain."""

import json
from pathlib import Path

from domainwise.storage.run_folder import SCHEMA, write_records
from domainwise.sweeps.plan import PlannedRun, plan
from domainwise.sweeps.runner import plan_best_runs
from domainwise.sweeps.spec import SweepSpec

OPTIONS = {"train_count": 40, "test_count": 20, "shifts": (0.0, 8.0)}
SPEC = SweepSpec(
    datasets=("silhouettes",),
    algorithms=("mat",),
    selection=("test_domain",),
    draws=2,
    trials=2,
    settings={"steps": 1, "dataset_options": OPTIONS},
)


def write_run(run: PlannedRun, holdouts: dict[str, float]) -> None:
    """A finished run with these accuracies on the test domains' holdouts."""
    folder = run.config.folder()
    folder.mkdir(parents=True)
    accuracy = {"style_0": {"holdout": 0.9}, "style_1": {"holdout": 0.9}}
    accuracy |= {name: {"main": value, "holdout": value} for name, value in holdouts.items()}
    record = {
        "schema": SCHEMA,
        "step": 0,
        "dataset": "silhouettes",
        "algorithm": "mat",
        "trial_seed": run.config.trial_seed,
        "hparams_seed": run.config.hparams_seed,
        "train_domains": ["style_0", "style_1"],
        "validation_domains": [],
        "test_domains": list(holdouts),
        "roles": "fixed",
        "hparams": dict(run.config.hparams),
        "accuracy": accuracy,
    }
    write_records(folder / "records.jsonl", [record])
    (folder / "config.json").write_text(json.dumps({"config": {"steps": 1}, "data": {}}))
    (folder / "done").touch()


def test_a_run_counts_for_the_domains_it_was_chosen_for(tmp_path: Path) -> None:
    runs = plan(SPEC, tmp_path / "sweep")
    # Draw 1 of the first trial is best without shift and draw 1 of the second under it: other hyperparameters.
    for run in runs:
        first = (run.config.trial_seed, run.config.hparams_seed) == (0, 1)
        second = (run.config.trial_seed, run.config.hparams_seed) == (1, 1)
        write_run(run, {"shift_0": 0.9 if first else 0.5, "shift_8": 0.8 if second else 0.4})
    again = plan_best_runs(tmp_path / "sweep", runs, "test_domain", [7, 8], tmp_path / "again")
    found = [(run.config.trial_seed, run.config.test_domains, run.config.hparams) for run in again]
    of = {(run.config.trial_seed, run.config.hparams_seed): run.config.hparams for run in runs}
    assert found == [
        (seed, tests, of[which, 1]) for seed in (7, 8) for which, tests in ((0, ("shift_0",)), (1, ("shift_8",)))
    ]
    assert of[0, 1] != of[1, 1]
    assert len({run.config.folder() for run in again}) == 4


def test_one_run_that_is_best_on_all_is_repeated_whole(tmp_path: Path) -> None:
    runs = plan(SPEC, tmp_path / "sweep")
    for run in runs:
        best = 0.9 if (run.config.trial_seed, run.config.hparams_seed) == (1, 0) else 0.5
        write_run(run, {"shift_0": best, "shift_8": best})
    (again,) = plan_best_runs(tmp_path / "sweep", runs, "test_domain", [5], tmp_path / "again")
    assert again.config.test_domains == ("shift_0", "shift_8")
    assert again.config.hparams_seed == 0
