"""Records that also go to TensorBoard, Weights & Biases and MLflow, each read back by its own package."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from domainwise import RunConfig, train
from domainwise.errors import DomainwiseError
from domainwise.training import RunInterrupted, RunResult
from domainwise.training.tracking import flatten_record

STEPS = [0, 2, 4]


def config(tmp_path: Path, **settings: Any) -> RunConfig:
    return RunConfig(
        dataset_options={"image_size": 16, "train_count": 40, "test_count": 20, "shifts": (0,)},
        hparams={"count": 2, "weights": "domain"},
        steps=5,
        record_every=2,
        record_first=True,
        batch_size=4,
        device="cpu",
        threads=1,
        output=tmp_path / "run",
        **settings,
    )


def stopped_and_resumed(config: RunConfig) -> RunResult:
    """Stopped after the fourth update, which is after the second of three records; gone on with; asked for again."""
    asked = iter([False, True])
    with pytest.raises(RunInterrupted, match="after 4 steps"):
        train(config, should_stop=lambda: next(asked))
    result = train(config)
    train(config)
    assert [record["step"] for record in result.records] == STEPS
    return result


def expected(result: RunResult) -> dict[str, list[tuple[int, float]]]:
    """Every series as it must be plotted, by name."""
    return {
        name: [(record["step"], flatten_record(record)[name]) for record in result.records]
        for name in flatten_record(result.records[0])
    }


def test_what_is_plotted_of_a_record() -> None:
    record = {
        "step": 3,
        "train_domains": ["+90%", "b"],
        "accuracy": {"+90%": {"holdout": 0.5}, "c": {"main": 0.25, "holdout": 0.75}},
        "loss": 1.5,
        "terms": {"penalty": 2.0},
        "seconds_per_step": 0.1,
        "perturbation": {"norm": [0.3, 0.4], "singular_values": [[1.0], [2.0]]},
        "hparams": {"lr": 1e-3},
    }
    assert flatten_record(record) == {
        "accuracy/+90%/holdout": 0.5,
        "accuracy/c/main": 0.25,
        "accuracy/c/holdout": 0.75,
        "loss": 1.5,
        "terms/penalty": 2.0,
        "seconds_per_step": 0.1,
        "perturbation_norm/+90%": 0.3,
        "perturbation_norm/b": 0.4,
    }


def test_an_unknown_logger_is_refused_with_the_choices(tmp_path: Path) -> None:
    with pytest.raises(DomainwiseError) as refused:
        config(tmp_path, logger="tensorbord")
    choices = "tensorboard, wandb, mlflow"
    assert str(refused.value) == f"unknown logger 'tensorbord'; did you mean 'tensorboard'? Choices: {choices}"


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_package_that_is_not_here_is_named_before_anything_is_done(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        DomainwiseError, match=rf"^logger '{name}' needs {name}; .*: pip install '{name}(-skinny)?>=[\d.]+'$"
    ):
        train(config(tmp_path, logger=name))
    assert not (tmp_path / "run").exists()


def test_where_records_also_go_is_not_what_a_run_is(tmp_path: Path) -> None:
    assert config(tmp_path).identity() == config(tmp_path, logger="wandb").identity()


def test_tensorboard_has_every_record_once(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is an optional dependency")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = stopped_and_resumed(config(tmp_path, logger="tensorboard"))
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    series = {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}
    wanted = expected(result)
    assert series.keys() == wanted.keys()
    assert "perturbation_norm/style_0" in wanted
    for tag, points in series.items():
        assert [step for step, _ in points] == STEPS
        assert [value for _, value in points] == pytest.approx([value for _, value in wanted[tag]], rel=1e-6)
    (text,) = (event.tensor_proto.string_val[0] for event in events.Tensors("config/text_summary"))
    assert json.loads(text)["hparams"]["count"] == 2


def test_mlflow_goes_on_with_the_same_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is an optional dependency")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    result = stopped_and_resumed(config(tmp_path, logger="mlflow"))
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("domainwise").experiment_id])
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert (run.data.params["algorithm"], run.data.params["hparams.count"]) == ("mat", "2")
    series = {
        name: [(metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, name)]
        for name in run.data.metrics
    }
    assert series == expected(result)


def test_mlflow_takes_signs_it_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is an optional dependency")
    from domainwise.training.tracking import track_run

    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "mine")
    record = {"step": 7, "accuracy": {"+90%": {"main": 0.5}}, "loss": 1.0, "seconds_per_step": 1.0}
    with track_run(config(tmp_path, logger="mlflow"), is_resumed=False) as log:
        log(record)
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("mine").experiment_id])
    assert run.data.metrics["accuracy/_90_/main"] == 0.5


def test_a_tracker_that_cannot_start_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="mlflow is an optional dependency")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "gopher://nowhere")
    with pytest.raises(DomainwiseError, match=r"^could not start mlflow: ") as refused:
        train(config(tmp_path, logger="mlflow"))
    assert "\n" not in str(refused.value)


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    wandb = pytest.importorskip("wandb", reason="wandb is an optional dependency")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    yield wandb
    wandb.teardown()


def test_wandb_writes_without_a_network_and_goes_on_with_the_same_run(tmp_path: Path, offline: Any) -> None:
    result = stopped_and_resumed(config(tmp_path, logger="wandb"))
    files = sorted((tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2
    assert len({file.stem for file in files}) == 1
    assert files[0].stem.startswith("run-run-")
    # Numbers stand in these files as text, and no two records took the same time. On a busy machine wandb's own process
    # may still be writing.
    last_number = json.dumps(result.last["seconds_per_step"]).encode()
    deadline = time.monotonic() + 30
    while last_number not in files[1].read_bytes() and time.monotonic() < deadline:
        time.sleep(0.1)
    contents = [file.read_bytes() for file in files]
    is_there = [
        [json.dumps(record["seconds_per_step"]).encode() in content for record in result.records]
        for content in contents
    ]
    assert is_there == [[True, True, False], [False, False, True]]
    for content in contents:
        assert all(name.encode() in content for name in flatten_record(result.last))
