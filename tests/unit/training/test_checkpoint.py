"""What a checkpoint says is checked before it is used; an error names the file, and changes nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import DATASETS, tiny_config, tiny_run

from domainwise.errors import DomainwiseError
from domainwise.storage.run_folder import RunFolder
from domainwise.training import train

Damage = Callable[[dict[str, Any]], Any]


@pytest.fixture(scope="module")
def paused(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has stopped after 4 of 7 updates, of which 3 are in a record."""
    folder = tmp_path_factory.mktemp("paused") / "run"
    tiny_run(folder, algorithm="mat", average="sma", lr_schedule="plateau", stop_after=4)
    return folder


def put(value: Any, *keys: Any) -> Damage:
    """Return a function that replaces an entry."""

    def replace(checkpoint: dict[str, Any]) -> dict[str, Any]:
        entry: Any = checkpoint
        for key in keys[:-1]:
            entry = entry[key]
        entry[keys[-1]] = value
        return checkpoint

    return replace


def remove(key: str) -> Damage:
    return lambda checkpoint: {name: value for name, value in checkpoint.items() if name != key}


OPTIMIZER = ("algorithm", "_extra_state", "optimizers", "optimizer")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        *(
            (put(step, "step"), rf"step must be an integer from 0 to 7, got {shown}")
            for step, shown in [
                *((1e9, r"1000000000\.0"), (10**9, "1000000000"), (2.5, r"2\.5"), ("4", "'4'"), (True, "True")),
                *((-1, "-1"), (8, "8"), (float("nan"), "nan"), (None, "None"), (torch.tensor(4), r"tensor\(4\)")),
            ]
        ),
        (put(3, "step"), "step is 3, but it has 1 record up to step 3 and 1 more update"),
        (put(7, "step"), "step is 7, but"),
        *((remove(key), f"missing key '{key}'") for key in ("step", "measured", "records", "best", "random")),
        *((remove(key), f"missing key '{key}'") for key in ("algorithm", "average", "schedule")),
        (remove("generators"), "missing key 'generator"),
        (put("1", "records"), "records must be an integer of at least 0, got '1'"),
        (put(-1, "records"), "records must be an integer of at least 0, got -1"),
        (put("x", "best"), "best must be a number, got 'x'"),
        (put(float("nan"), "best"), "best must be a number, got nan"),
        (put(3, "measured"), "measured must be a list of updates with their loss, got 3"),
        (put([{"penalty": 1.0}], "measured"), "measured must be a list of updates"),
        (put([{"loss": "x"}], "measured"), "measured must be a list of updates"),
        (put([], "measured"), "step is 4, but it has 1 record up to step 3 and 0 more updates"),
        (put({}, "algorithm"), r"[Mm]issing key"),
        (put(torch.zeros(5), "algorithm", "network.classifier.bias"), "size mismatch for network.classifier"),
        (put(None, "algorithm"), "."),
        (put("x", "algorithm", "_extra_state", "updates"), "updates must be an integer of at least 0, got 'x'"),
        (put(torch.zeros(5), *OPTIMIZER, "state", 0, "exp_avg"), r"exp_avg of optimizer has shape \(5,\), not \("),
        (put({}, *OPTIMIZER), "."),
        (put(None, "average"), "."),
        (put(None, "schedule"), "."),
        (put(torch.zeros(5), "generators", "batches"), "."),
        (put(None, "random"), "."),
    ],
)
def test_a_checkpoint_that_makes_no_sense_is_an_error(
    damage: Damage, reason: str, paused: Path, tmp_path: Path
) -> None:
    run = RunFolder(tmp_path / "run")
    run.create()
    run.import_files(RunFolder(paused).export_files())
    checkpoint = run.read_checkpoint()
    assert checkpoint is not None
    run.write_checkpoint(damage(checkpoint))
    before = run.export_files()
    config = tiny_config(run.path, algorithm="mat", average="sma", lr_schedule="plateau")
    with pytest.raises(DomainwiseError, match=rf"checkpoint\.pt does not match this run: .*{reason}") as error:
        train(config, datasets=DATASETS)
    assert "\n" not in str(error.value)
    assert run.export_files() == before
    assert not run.is_done


def test_a_checkpoint_that_is_no_dictionary_is_an_error(tmp_path: Path) -> None:
    torch.save([], tmp_path / "checkpoint.pt")
    with pytest.raises(DomainwiseError, match=r"checkpoint\.pt is damaged"):
        RunFolder(tmp_path).read_checkpoint()


def test_an_intact_checkpoint_is_resumed(paused: Path, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.create()
    run.import_files(RunFolder(paused).export_files())
    config = tiny_config(run.path, algorithm="mat", average="sma", lr_schedule="plateau")
    assert train(config, datasets=DATASETS).last["step"] == 6
