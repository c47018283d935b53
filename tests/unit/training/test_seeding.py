"""Common random numbers: what methods share within a trial, and what DomainBed's seeding leaves as it was."""

from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest

from domainwise import DomainwiseError, RunConfig
from domainwise.selection import read_runs
from domainwise.storage.run_folder import RunFolder
from domainwise.storage.sweep_folder import SweepFolder
from domainwise.sweeps.runner import run_sweep
from domainwise.sweeps.spec import SweepSpec
from domainwise.training import RunResult, train
from domainwise.training.registry import DatasetCache, derive_seeds, resolve_config

DATA = {"dataset_options": {"train_count": 60, "test_count": 20}}
QUICK: dict[str, Any] = {**DATA, "steps": 6, "record_every": 3, "batch_size": 8, "dropout": 0.5, "threads": 1}
DATASETS = DatasetCache()


def quick_train(output: Path, algorithm: str, hparams: dict[str, Any] | None = None, **settings: Any) -> RunResult:
    config = RunConfig(algorithm=algorithm, hparams=hparams or {}, output=output, **{**QUICK, **settings})
    return train(config, datasets=DATASETS)


def weights_of(result: RunResult, which: str = "last") -> bytes:
    return (result.folder / f"{which}.safetensors").read_bytes()


@pytest.fixture(scope="module")
def erm(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    return quick_train(tmp_path_factory.mktemp("erm") / "run", "erm")


@pytest.mark.parametrize(
    ("algorithm", "hparams"),
    [
        ("at", {}),
        ("at", {"steps": 3, "rank": 2}),
        ("uat", {}),
        ("uat", {"schedule": "simultaneous"}),
        *(("mat", {"weights": weights}) for weights in ("assigned", "soft", "subspace", "domain", "sample")),
        ("ldat", {}),
        ("ldat", {"solver": "factors"}),
    ],
)
def test_radius_zero_is_erm_to_the_bit(algorithm: str, hparams: dict[str, Any], erm: RunResult, tmp_path: Path) -> None:
    result = quick_train(tmp_path / "run", algorithm, {**hparams, "epsilon": 0.0})
    assert weights_of(result) == weights_of(erm)
    assert weights_of(result, "best") == weights_of(erm, "best")
    for ours, theirs in zip(result.records, erm.records, strict=True):
        assert ours["accuracy"] == theirs["accuracy"]
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-6)  # summed in another order


def test_a_radius_makes_a_difference(erm: RunResult, tmp_path: Path) -> None:
    assert weights_of(quick_train(tmp_path / "run", "uat", {"epsilon": 0.5})) != weights_of(erm)


def test_domainbed_seeding_gives_every_method_its_own_batches(erm: RunResult, tmp_path: Path) -> None:
    own_erm = quick_train(tmp_path / "erm", "erm", seeding="domainbed")
    uat = quick_train(tmp_path / "uat", "uat", {"epsilon": 0.0}, seeding="domainbed")
    assert len({weights_of(each) for each in (erm, own_erm, uat)}) == 3


def seeds_of(**settings: Any) -> Any:
    config = RunConfig(**DATA, **settings)
    dataset = DATASETS.build(config)
    return derive_seeds(resolve_config(config, dataset)[0], dataset)


def test_seeds_depend_on_the_task_and_only_the_method_has_its_own() -> None:
    erm = seeds_of(algorithm="erm")
    for other in (seeds_of(algorithm="mat"), seeds_of(algorithm="erm", hparams_seed=3)):
        assert replace(other, method=erm.method) == erm
        assert other.method != erm.method
    for other in (seeds_of(algorithm="erm", trial_seed=1), seeds_of(algorithm="erm", test_domains=("shift_8",))):
        assert not set(astuple(other)) & set(astuple(erm))
    assert len(set(astuple(erm))) == 5


def test_augmentation_does_not_change_which_images_a_batch_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from domainwise.training import trainer

    labels: list[list[list[int]]] = []
    draw = trainer.draw_batches

    def note_labels(*arguments: Any, **settings: Any) -> Any:
        batches = draw(*arguments, **settings)
        labels[-1] += [y.tolist() for _, y in batches]
        return batches

    monkeypatch.setattr(trainer, "draw_batches", note_labels)
    for augment in (False, True):
        labels.append([])
        quick_train(tmp_path / str(augment), "erm", augment=augment)
    assert labels[0] == labels[1]


def test_a_folder_with_another_seeding_is_never_continued_or_counted_silently(tmp_path: Path) -> None:
    result = quick_train(tmp_path / "a", "erm", seeding="domainbed", trial_seed=1)
    # As it was written before there was a choice.
    file = RunFolder(result.folder).config_file
    file.write_text(file.read_text().replace('"seeding": "domainbed",', ""))
    assert "seeding" not in file.read_text()
    with pytest.raises(DomainwiseError, match=r'seeding is "domainbed" there and "common" here'):
        quick_train(tmp_path / "a", "erm", trial_seed=1)
    assert quick_train(tmp_path / "a", "erm", trial_seed=1, seeding="domainbed").records == result.records
    quick_train(tmp_path / "b", "uat", trial_seed=1)
    assert [note for note in read_runs([tmp_path]).notes if "seeding" in note] == [
        "runs have different seedings (1 common, 1 domainbed), so their methods did not see the same batches"
    ]
    assert not read_runs([tmp_path / "a"]).notes


def test_a_sweep_keeps_its_seeding(tmp_path: Path) -> None:
    settings = {**QUICK, "seeding": "domainbed"}
    del settings["threads"]
    spec = SweepSpec(("silhouettes",), ("erm",), settings=settings)
    run_sweep(spec, tmp_path / "sweep")
    folder = SweepFolder(tmp_path / "sweep")
    folder.spec_file.write_text(folder.spec_file.read_text().replace('seeding = "domainbed"\n', ""))
    common = replace(spec, trials=2, settings={**settings, "seeding": "common"})
    with pytest.raises(DomainwiseError, match="was started with seeding domainbed, not common"):
        common.claim(folder)
    folder.spec_file.unlink()
    with pytest.raises(DomainwiseError, match=r"a run with domainbed seeding, not common.* with --seeding domainbed"):
        run_sweep(common, tmp_path / "sweep")
    assert run_sweep(replace(spec, trials=2), tmp_path / "sweep").done == 2


def test_records_skip_the_first_step_unless_asked_for() -> None:
    config = RunConfig(steps=7, record_every=3)
    assert config.record_steps() == [3, 6]
    assert replace(config, steps=8).record_steps() == [3, 6, 7]
    assert replace(config, record_first=True).record_steps() == [0, 3, 6]
    assert replace(config, steps=1).record_steps() == [0]
    assert replace(config, steps=2).record_steps() == [1]
