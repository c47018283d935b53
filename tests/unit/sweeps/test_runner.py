"""`run_sweep` runs what is not done yet, and `repeat_best` repeats what was selected with new seeds."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from inline_engine import InlineEngine

from domainwise.errors import DomainwiseError, RunInterrupted
from domainwise.storage.run_folder import SCHEMA, RunFolder, RunStatus
from domainwise.storage.sweep_folder import PlannedRun, SweepFolder
from domainwise.sweeps.engine import EngineCallbacks
from domainwise.sweeps.plan import plan_sweep
from domainwise.sweeps.runner import SweepCallbacks, SweepOutcome, make_engine, plan_best_runs, repeat_best, run_sweep
from domainwise.sweeps.spec import SweepSpec
from domainwise.training import RunConfig

OPTIONS = {"train_count": 40, "test_count": 20, "image_size": 16, "shifts": (0.0, 8.0)}
SPEC = SweepSpec(
    datasets=("silhouettes",),
    algorithms=("erm", "mat"),
    settings={"steps": 2, "batch_size": 4, "dataset_options": OPTIONS},
)
ERM, MAT = (f"silhouettes-{method}-shift_0-shift_8-draw0-trial0" for method in ("erm", "mat"))


def run(
    spec: SweepSpec, folder: Path, callbacks: SweepCallbacks | None = None, *, retry_failed: bool = False
) -> tuple[SweepOutcome, list[str]]:
    """Return the outcome and the names of the runs that the engine was given."""
    engine = InlineEngine()
    outcome = run_sweep(
        spec, folder, engine=engine, placement={"device": "cpu"}, retry_failed=retry_failed, callbacks=callbacks
    )
    return outcome, engine.names


def test_run_sweep_runs_the_plan_and_reports_every_status(tmp_path: Path) -> None:
    statuses: list[tuple[str, RunStatus]] = []
    plans: list[list[str]] = []
    callbacks = SweepCallbacks(
        on_plan=lambda plan: plans.append([run.name for run in plan]),
        on_status=lambda run, status: statuses.append((run.name, status)),
    )
    outcome, names = run(SPEC, tmp_path / "sweep", callbacks)
    assert outcome == SweepOutcome(done=2, failed=0)
    assert names == [ERM, MAT]
    assert plans == [[ERM, MAT]]
    assert statuses == [
        (ERM, RunStatus("pending")),
        (MAT, RunStatus("pending")),
        *(
            (name, status)
            for name in (ERM, MAT)
            for status in (*(RunStatus("running", step) for step in (1, 2)), RunStatus("done", 2))
        ),
    ]
    stored = SweepFolder(tmp_path / "sweep").read_statuses()
    assert {planned.name: status for planned, status in stored.items()} == {
        ERM: RunStatus("done", 2),
        MAT: RunStatus("done", 2),
    }


def test_run_sweep_resumes_and_extends(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    done: list[str] = []
    stop_after_one = SweepCallbacks(
        on_status=lambda run, status: done.append(run.name) if status.state == "done" else None,
        should_stop=lambda: bool(done),
    )
    with pytest.raises(RunInterrupted):
        run(SPEC, folder, stop_after_one)
    assert done == [ERM]
    assert run(SPEC, folder) == (SweepOutcome(2, 0), [MAT])
    assert run(SPEC, folder) == (SweepOutcome(2, 0), [])
    extended = replace(SPEC, algorithms=("erm", "mat", "uat"), trials=2)
    outcome, names = run(extended, folder)
    assert outcome == SweepOutcome(6, 0)
    assert ERM not in names
    assert MAT not in names
    assert len(names) == 4
    with pytest.raises(DomainwiseError, match="was started with algorithms erm mat uat, not erm mat"):
        run(replace(SPEC, trials=2), folder)


def test_run_sweep_skips_failed_runs_unless_asked_to_retry(tmp_path: Path) -> None:
    folder = tmp_path / "sweep"
    (folder / MAT).mkdir(parents=True)
    (folder / MAT / "notes.txt").touch()
    outcome, _ = run(SPEC, folder)
    assert outcome == SweepOutcome(done=1, failed=1)
    status = RunFolder(folder / MAT).read_status()
    assert status.state == "failed"
    assert "contains files that are not a run (notes.txt ...)" in status.error
    (folder / MAT / "notes.txt").unlink()
    assert run(SPEC, folder) == (outcome, [])
    assert run(SPEC, folder, retry_failed=True) == (SweepOutcome(2, 0), [MAT])
    assert not (folder / MAT / "failed.txt").exists()


def test_a_sweep_of_which_no_run_began_binds_nothing(tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise DomainwiseError("no cluster")

    def fail(configs: Sequence[RunConfig], callbacks: EngineCallbacks) -> None:
        for index in range(len(configs)):
            callbacks.on_failed(index, "no weights")

    with pytest.raises(DomainwiseError, match="no cluster"):
        run_sweep(replace(SPEC, draws=3), tmp_path, engine=refuse)
    assert run_sweep(SPEC, tmp_path, engine=fail) == SweepOutcome(0, 2)
    others = replace(SPEC, settings={**SPEC.settings, "steps": 1})
    assert run(others, tmp_path, retry_failed=True) == (SweepOutcome(2, 0), [ERM, MAT])
    with pytest.raises(DomainwiseError, match="was started with steps 1, not 2"):
        run(SPEC, tmp_path)


def test_a_sweep_takes_no_folder_with_runs_that_it_has_not_planned(tmp_path: Path) -> None:
    plan = plan_sweep(replace(SPEC, trials=2), tmp_path / "sweep")
    for planned, config in plan.items():
        if planned.trial == 1:
            write_run(planned, config, {"shift_0": 0.5, "shift_8": 0.5})
    with pytest.raises(
        DomainwiseError, match=r"contains runs that are not of this sweep \(.*-trial1\); choose another"
    ):
        run(SPEC, tmp_path / "sweep")
    assert not (tmp_path / "sweep" / "sweep.toml").exists()
    assert not (tmp_path / "sweep" / "plan.jsonl").exists()


def test_repeat_best_trains_the_selected_runs_with_new_seeds(tmp_path: Path) -> None:
    spec = replace(SPEC, algorithms=("erm",))
    run(spec, tmp_path / "sweep")
    engine = InlineEngine()
    outcomes = repeat_best(spec, tmp_path / "sweep", [1, 2], engine=engine, placement={"device": "cpu"})
    assert outcomes == {tmp_path / "sweep-best-training_domain": SweepOutcome(2, 0)}
    assert engine.names == [f"{ERM}-again1", f"{ERM}-again2"]


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("loca", {}, "unknown engine 'loca'; did you mean 'local'"),
        ("local", {"workers": 0}, "workers must be at least 1, got 0"),
        ("ray", {"results": "sent"}, "unknown results mode 'sent'"),
    ],
)
def test_invalid_engines(name: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(DomainwiseError, match=message):
        make_engine(name, **settings)  # type: ignore[arg-type]


SEARCH = replace(SPEC, algorithms=("mat",), selection=("test_domain",), draws=2, trials=2)


def write_run(run: PlannedRun, config: RunConfig, holdouts: dict[str, float]) -> None:
    """Write a finished run with these accuracies on the holdouts of the test domains."""
    folder = RunFolder(run.folder)
    folder.path.mkdir(parents=True)
    accuracy = {"style_0": {"holdout": 0.9}, "style_1": {"holdout": 0.9}}
    accuracy |= {name: {"main": value, "holdout": value} for name, value in holdouts.items()}
    record = {
        "schema": SCHEMA,
        "step": 0,
        "dataset": "silhouettes",
        "algorithm": "mat",
        "trial_seed": run.trial,
        "hparams_seed": run.draw,
        "train_domains": ["style_0", "style_1"],
        "validation_domains": [],
        "test_domains": list(holdouts),
        "roles": "fixed",
        "hparams": dict(config.hparams),
        "accuracy": accuracy,
    }
    folder.write_records([record])
    folder.config_file.write_text(json.dumps({"config": {"steps": 1}, "data": {}}))
    folder.write_done()


def test_a_run_is_repeated_only_for_the_domains_it_was_selected_for(tmp_path: Path) -> None:
    plan = plan_sweep(SEARCH, tmp_path / "sweep")
    # Draw 1 of the first trial is best on shift_0 and draw 1 of the second on shift_8, with different hyperparameters.
    for planned, config in plan.items():
        is_first, is_second = (planned.trial, planned.draw) == (0, 1), (planned.trial, planned.draw) == (1, 1)
        write_run(planned, config, {"shift_0": 0.9 if is_first else 0.5, "shift_8": 0.8 if is_second else 0.4})
    best = plan_best_runs(tmp_path / "sweep", plan, "test_domain", [7, 8], tmp_path / "best")
    hparams = {(planned.trial, planned.draw): config.hparams for planned, config in plan.items()}
    assert [(config.trial_seed, config.test_domains, config.hparams) for config in best.values()] == [
        (seed, domains, hparams[trial, 1])
        for seed in (7, 8)
        for trial, domains in ((0, ("shift_0",)), (1, ("shift_8",)))
    ]
    assert hparams[0, 1] != hparams[1, 1]
    assert len({config.folder() for config in best.values()}) == 4
    for planned, config in best.items():
        assert (planned.trial, planned.test_domains) == (config.trial_seed, config.test_domains)


def test_a_run_that_is_best_on_all_domains_is_repeated_once(tmp_path: Path) -> None:
    plan = plan_sweep(SEARCH, tmp_path / "sweep")
    for planned, config in plan.items():
        accuracy = 0.9 if (planned.trial, planned.draw) == (1, 0) else 0.5
        write_run(planned, config, {"shift_0": accuracy, "shift_8": accuracy})
    ((best, config),) = plan_best_runs(tmp_path / "sweep", plan, "test_domain", [5], tmp_path / "best").items()
    assert config.test_domains == best.test_domains == ("shift_0", "shift_8")
    assert config.hparams_seed == 0


def test_repeating_before_any_run_is_done(tmp_path: Path) -> None:
    plan = plan_sweep(SEARCH, tmp_path / "sweep")
    (tmp_path / "sweep").mkdir()
    with pytest.raises(DomainwiseError, match="no run"):
        plan_best_runs(tmp_path / "sweep", plan, "test_domain", [5], tmp_path / "best")
