"""A run that keeps its perturbations: what the files hold, and that stopping and going on does not change them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from domainwise.errors import DomainwiseError, RunInterrupted
from domainwise.perturbations import Perturbation
from domainwise.storage.run_folder import RunFolder
from domainwise.training import RunConfig, load_algorithm, train

SMALL = {"train_count": 20, "test_count": 10, "shifts": [0], "image_size": 16}
KEPT = [
    ("uat", {}, {"delta"}),
    ("mat", {"count": 3, "weights": "domain"}, {"delta", "components", "mixing_weights"}),
    ("mat", {"count": 3, "weights": "sample"}, {"components"}),
    ("ldat", {"rank": 4, "solver": "factors"}, {"delta", "left", "right"}),
    ("ldat", {"rank": 4}, {"delta"}),
    ("mat", {"count": 3}, {"components"}),
    ("mat", {"count": 3, "weights": "subspace"}, {"components"}),
]


def config(output: Path, algorithm: str = "mat", keep: bool = True, **hparams: Any) -> RunConfig:
    return RunConfig(
        algorithm=algorithm,
        hparams={"epsilon": 0.5, **hparams},
        steps=4,
        record_every=2,
        record_first=True,
        batch_size=8,
        dataset_options=SMALL,
        output=output,
        device="cpu",
        threads=1,
        keep_perturbations=keep,
        keep="all",
    )


def stop_after(steps: int) -> Callable[[], bool]:
    asked = iter(range(1, 100))
    return lambda: next(asked) >= steps


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in (folder / "perturbations").iterdir()}


def assert_same_end(one: Path, other: Path) -> None:
    assert (one / "last.safetensors").read_bytes() == (other / "last.safetensors").read_bytes()
    states = [load_algorithm(folder).perturbation.state_dict() for folder in (one, other)]
    extra = [state.pop("_extra_state") for state in states]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert extra[0]["updates"] == extra[1]["updates"]


@pytest.mark.parametrize(
    ("algorithm", "hparams"),
    [
        ("mat", {"count": 3}),
        ("mat", {"count": 3, "weights": "subspace"}),
        ("ldat", {"rank": 4}),
        ("ldat", {"rank": 4, "schedule": "simultaneous"}),
        ("at", {"rank": 2}),
    ],
)
def test_stopped_in_the_warm_up_and_resumed_training_ends_the_same(
    algorithm: str, hparams: dict[str, Any], tmp_path: Path
) -> None:
    """The warm-up lasts four of eight steps; training stops after the second."""
    settings = [replace(config(tmp_path / name, algorithm, False, **hparams), steps=8) for name in ("whole", "stopped")]
    train(settings[0])
    with pytest.raises(RunInterrupted, match="after 2 steps"):
        train(settings[1], should_stop=stop_after(1))
    train(settings[1])
    assert_same_end(tmp_path / "stopped", tmp_path / "whole")
    perturbation = load_algorithm(tmp_path / "stopped").perturbation
    assert (perturbation.warmup_steps, perturbation.updates) == (4, 8)


@pytest.mark.parametrize(("algorithm", "hparams", "names"), KEPT)
def test_stopped_and_resumed_the_files_are_the_same(
    algorithm: str, hparams: dict[str, Any], names: set[str], tmp_path: Path
) -> None:
    train(config(tmp_path / "whole", algorithm, **hparams))
    stopped = config(tmp_path / "stopped", algorithm, **hparams)
    with pytest.raises(RunInterrupted):
        train(stopped, should_stop=stop_after(1))
    kept = tmp_path / "stopped" / "perturbations"
    assert [file.name for file in kept.iterdir()] == ["step-000000.safetensors"]
    # What a killed process leaves: half a file, and one that is newer than the checkpoint.
    (kept / ".step-000001.safetensors.partial").write_bytes(b"half")
    (kept / "step-000002.safetensors").write_bytes(b"newer")
    train(stopped)
    assert contents(tmp_path / "stopped") == contents(tmp_path / "whole")
    assert_same_end(tmp_path / "stopped", tmp_path / "whole")
    read = RunFolder(tmp_path / "whole").read_perturbations()
    assert list(read) == [0, 2, 3]
    assert all(set(tensors) == names for tensors in read.values())


def test_the_last_file_is_the_perturbation_that_training_ended_with(tmp_path: Path) -> None:
    for number, (algorithm, hparams, names) in enumerate(KEPT):
        if "delta" not in names:
            continue
        result = train(config(tmp_path / str(number), algorithm, **hparams))
        kept = RunFolder(result.folder).read_perturbations()
        perturbation = load_algorithm(result.folder).perturbation
        assert isinstance(perturbation, Perturbation)
        assert torch.equal(kept[3]["delta"], perturbation.delta())
        for record, tensors in zip(result.records, kept.values(), strict=True):
            norms = tensors["delta"].flatten(1).norm(dim=1)
            assert norms.tolist() == pytest.approx(record["perturbation"]["norm"], abs=1e-6)


def test_the_parts_make_the_whole(tmp_path: Path) -> None:
    mat = RunFolder(train(config(tmp_path / "mat", count=3, weights="domain")).folder).read_perturbations()[3]
    mixed = torch.einsum("dk,dkchw->dchw", mat["mixing_weights"], mat["components"])
    assert torch.allclose(mixed, mat["delta"], atol=1e-7)
    ldat = RunFolder(train(config(tmp_path / "ldat", "ldat", rank=4, solver="factors")).folder).read_perturbations()[3]
    product = ldat["left"] @ ldat["right"]
    scale = 0.5 / product.flatten(1).norm(dim=1)
    assert torch.allclose(product * scale.reshape(-1, 1, 1, 1), ldat["delta"], atol=1e-6)


def test_keeping_them_is_not_part_of_what_the_run_is(tmp_path: Path) -> None:
    with_files, without = (
        train(config(tmp_path / name, keep=keep)).folder for name, keep in (("a", True), ("b", False))
    )
    for name in ("config.json", "last.safetensors"):
        assert (with_files / name).read_bytes() == (without / name).read_bytes()
    assert not (without / "perturbations").exists()
    assert RunFolder(without).read_perturbations() == {}
    # The same folder may be gone on with either way.
    assert len(train(config(with_files, keep=False)).records) == 3


@pytest.mark.parametrize("algorithm", ["erm", "at"])
def test_method_without_a_perturbation_warns(algorithm: str, tmp_path: Path) -> None:
    hparams = {} if algorithm == "erm" else {"hparams": {"epsilon": 0.5}}
    asked = RunConfig(
        algorithm=algorithm, steps=1, batch_size=8, dataset_options=SMALL, output=tmp_path / "run",
        device="cpu", keep_perturbations=True, **hparams,
    )  # fmt: skip
    with pytest.warns(UserWarning, match=f"{algorithm} has no perturbation that persists"):
        train(asked)
    assert not (tmp_path / "run" / "perturbations").exists()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_perturbation(7, {"delta": torch.zeros(1, 3, 4, 4)})
    (tmp_path / "perturbations" / "step-000012.safetensors").write_bytes(b"short")
    with pytest.raises(DomainwiseError, match=r"step-000012\.safetensors is damaged"):
        folder.read_perturbations()
