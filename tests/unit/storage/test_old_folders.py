"""Run and sweep folders that the first version wrote (schema 1) stay readable.

tests/fixtures/schema_1/run      domainwise train --algorithm mat --keep-perturbations, 4 steps
tests/fixtures/schema_1/sweep    domainwise sweep, erm and mat, 2 draws, 2 trials; without weights and checkpoints
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from domainwise import load_algorithm, load_model
from domainwise.data.batches import iterate_batches
from domainwise.errors import DomainwiseError
from domainwise.explain import read_perturbation_history, summarize_perturbation
from domainwise.storage.run_folder import RunFolder
from domainwise.storage.sweep_folder import SweepFolder
from domainwise.sweeps.runner import SweepOutcome, run_sweep
from domainwise.sweeps.spec import SweepSpec
from domainwise.training import RunConfig, train
from domainwise.training.loading import open_run

FIXTURES = Path(__file__).parents[2] / "fixtures" / "schema_1"
DATA = {"train_count": 60, "test_count": 12, "image_size": 16}
SETTINGS = {"dataset_options": DATA, "steps": 4, "record_every": 2, "batch_size": 8, "seeding": "domainbed"}
# What MAT's standard variant was in the first version.
HPARAMS = {"weights": "domain", "step_size": 0.5, "warmup": 0.0}
SPEC = SweepSpec(("silhouettes",), ("erm", "mat"), draws=2, trials=2, settings=SETTINGS)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURES / "run", tmp_path / "run"))


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FIXTURES / "sweep", tmp_path / "sweep"))


def refuse_to_train(configs: object, callbacks: object) -> None:
    raise AssertionError("every run is done")


def test_report(sweep: Path, domainwise: Callable[..., Any]) -> None:
    outcome = domainwise("report", sweep)
    assert outcome.code == 0, outcome.err
    rows = [" ".join(line.split()) for line in outcome.out.splitlines()]
    assert "erm 60.0 ± 0.0 50.0 ± 0.0 50.0 ± 0.0 45.0 ± 5.0 45.0 ± 5.0 50.0" in rows
    assert "mat 50.0 ± 10.0 50.0 ± 0.0 50.0 ± 0.0 45.0 ± 5.0 45.0 ± 5.0 48.0" in rows


def test_sweep_status(sweep: Path, domainwise: Callable[..., Any]) -> None:
    files = sorted(sweep.rglob("*"))
    outcome = domainwise("sweep", "status", sweep, "--json")
    assert outcome.code == 0, outcome.err
    runs = json.loads(outcome.out)
    assert [(each["state"], each["step"]) for each in runs] == [("done", 4)] * 8
    assert sorted(files) == sorted(sweep.rglob("*"))


def test_run_sweep_accepts_the_same_options_and_extensions(sweep: Path) -> None:
    assert run_sweep(SPEC, sweep, engine=refuse_to_train) == SweepOutcome(done=8, failed=0)
    assert SweepFolder(sweep).read_spec() == SPEC.as_plain()
    replace(SPEC, trials=3, algorithms=("erm", "mat", "ldat")).claim(SweepFolder(sweep))


@pytest.mark.parametrize(
    "changes", [{"draws": 1}, {"settings": {**SETTINGS, "steps": 5}}, {"hparams": {"epsilon": 1.0}}, {"space": "paper"}]
)
def test_run_sweep_refuses_other_options(sweep: Path, changes: dict[str, Any]) -> None:
    name = "steps" if "settings" in changes else next(iter(changes))
    with pytest.raises(DomainwiseError, match=f"was started with {name} "):
        replace(SPEC, **changes).claim(SweepFolder(sweep))


def test_training_again_finds_the_run_done(run: Path) -> None:
    result = train(RunConfig("silhouettes", "mat", device="cpu", output=run, hparams=HPARAMS, **SETTINGS))  # type: ignore[arg-type]
    assert [record["step"] for record in result.records] == [0, 2, 3]


def test_training_again_without_the_old_settings_names_one_and_changes_nothing(run: Path) -> None:
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    with pytest.raises(DomainwiseError, match=r"is \S+ there and \S+ here") as error:
        train(RunConfig("silhouettes", "mat", device="cpu", output=run, **SETTINGS))  # type: ignore[arg-type]
    assert len(str(error.value).splitlines()) == 1
    assert {file: file.read_bytes() for file in before} == before


def test_training_resumes_from_the_checkpoint(run: Path) -> None:
    """An unfinished run of the first version ends with the weights and records that it would have had there."""
    (run / "done").unlink()
    before = {file.name: file.read_bytes() for file in run.glob("*.safetensors")}
    settings: dict[str, Any] = {"device": "cpu", "output": run, "hparams": HPARAMS, "keep": "all", **SETTINGS}
    result = train(RunConfig("silhouettes", "mat", **settings))
    assert len(result.records) == 3
    assert {file.name: file.read_bytes() for file in run.glob("*.safetensors")} == before


def test_the_old_settings_still_train_the_same_weights(run: Path, tmp_path: Path) -> None:
    config = RunConfig("silhouettes", "mat", device="cpu", output=tmp_path / "again", hparams=HPARAMS, **SETTINGS)  # type: ignore[arg-type]
    train(config)
    stored, again = (load_file(folder / "last.safetensors") for folder in (run, tmp_path / "again"))
    assert stored.keys() == again.keys()
    for name, tensor in stored.items():
        torch.testing.assert_close(again[name], tensor)


@pytest.mark.parametrize("which", ["best", "last"])
def test_load_model_has_the_recorded_accuracy(run: Path, which: Any) -> None:
    opened, model = open_run(run), load_model(run, which)
    accuracies = []
    for name in ("style_0", "style_1", "shift_16"):
        domain, holdout = opened.dataset.domains[opened.dataset.index(name)], opened.splits[name].holdout
        (x, y), *rest = iterate_batches(domain, holdout, torch.device("cpu"))
        assert not rest
        accuracies.append(float((model(x).argmax(1) == y).float().mean()))
    recorded = [
        [record["accuracy"][name]["holdout"] for name in ("style_0", "style_1", "shift_16")]
        for record in opened.records
    ]
    candidates = recorded if which == "best" else recorded[-1:]
    assert any(accuracies == pytest.approx(candidate) for candidate in candidates)


def test_load_algorithm_restores_the_perturbation(run: Path) -> None:
    algorithm = load_algorithm(run)
    snapshot = RunFolder(run).read_perturbations()[3]
    torch.testing.assert_close(algorithm.perturbation.deltas, snapshot["components"])


def test_open_run_and_its_perturbation(run: Path) -> None:
    opened = open_run(run)
    assert opened.roles.train == ("style_0", "style_1")
    summary = summarize_perturbation(opened)
    assert summary.delta.shape == (2, 3, 16, 16)
    assert summary.norms == pytest.approx(opened.records[-1]["perturbation"]["norm"], rel=1e-4)
    history = read_perturbation_history(opened)
    assert history.steps == history.snapshot_steps == [0, 2, 3]
    assert history.cosine_to_last[-1].tolist() == pytest.approx([1.0, 1.0])
