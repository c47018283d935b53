"""What a finished run keeps on disk, and that nothing is lost with its checkpoint."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import tiny_run

from domainwise import load_algorithm
from domainwise.errors import DomainwiseError
from domainwise.storage.run_folder import RunFolder

ALWAYS = {"config.json", "records.jsonl", "done", ".lock"}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - ALWAYS


@pytest.mark.parametrize(
    ("keep", "files"),
    [
        ("best", {"best.safetensors", "method.safetensors"}),
        ("last", {"last.safetensors", "method.safetensors"}),
        ("both", {"best.safetensors", "last.safetensors", "method.safetensors"}),
        ("all", {"best.safetensors", "last.safetensors", "checkpoint.pt"}),
    ],
)
def test_files_of_a_finished_run(tmp_path: Path, keep: str, files: set[str]) -> None:
    assert names(tiny_run(tmp_path / "run", keep=keep).folder) == files


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "mat"},
        {"algorithm": "ldat"},
        {"algorithm": "mat", "hparams": {"warmup": 1.0, "weights": "domain"}},
        {"algorithm": "dann"},
        {"algorithm": "mtl"},
        {"algorithm": "erm"},
        {"algorithm": "uat", "average": "sma", "average_options": {"start": 2}},
    ],
)
def test_the_algorithm_is_the_same_without_its_checkpoint(tmp_path: Path, settings: dict[str, Any]) -> None:
    whole = load_algorithm(tiny_run(tmp_path / "all", **settings).folder)
    pruned = load_algorithm(tiny_run(tmp_path / "both", keep="both", **settings).folder)
    expected, state = whole.state_dict(), pruned.state_dict()
    assert expected.keys() == state.keys()
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(state[name], value), name
    assert pruned.updates == whole.updates
    if hasattr(whole, "perturbation"):
        # How far a warm-up is depends on it.
        assert pruned.perturbation.updates == whole.perturbation.updates == 7
        assert pruned.perturbation.step_size == whole.perturbation.step_size


def test_a_finished_run_of_an_older_version_is_pruned_when_it_is_run_again(tmp_path: Path) -> None:
    folder = tiny_run(tmp_path / "run", algorithm="mat").folder
    before = load_algorithm(folder).state_dict()
    tiny_run(folder, algorithm="mat", keep="both")
    assert "checkpoint.pt" not in names(folder)
    after = load_algorithm(folder).state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before if name.startswith("perturbation.components"))


def test_nothing_is_removed_from_a_run_whose_records_are_damaged(tmp_path: Path) -> None:
    folder = tiny_run(tmp_path / "run").folder
    RunFolder(folder).write_records([])
    with pytest.raises(DomainwiseError, match="does not reach its last step"):
        tiny_run(folder, keep="both")
    assert "checkpoint.pt" in names(folder)


def test_a_run_killed_before_its_checkpoint_was_removed_is_pruned_the_next_time(tmp_path: Path) -> None:
    folder = RunFolder(tiny_run(tmp_path / "run").folder)
    folder.write_method_state({})
    tiny_run(folder.path, keep="best")
    assert names(folder.path) == {"best.safetensors", "method.safetensors"}
    assert load_algorithm(folder.path)
