"""Records of DomainBed's runs, converted to ours."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from domainwise.algorithms import ALGORITHMS
from domainwise.data import DATASETS
from domainwise.data.download.sources import SOURCES
from domainwise.selection import SELECTIONS, read_runs
from domainwise.storage.discovery import StoredRun, convert_domainbed
from run_folders import DOMAINBED_2021, DOMAINBED_2024, write_domainbed_run


def line(dataset: str = "PACS", algorithm: str = "ERM", domains: int = 4, **changes: Any) -> dict[str, Any]:
    """A line as DomainBed's training script writes it."""
    accuracies = {
        key: value
        for index in range(domains)
        for key, value in ((f"env{index}_in_acc", 0.1 * index), (f"env{index}_out_acc", 0.1 * index + 0.05))
    }
    args = {"algorithm": algorithm, "dataset": dataset, "data_dir": "/data", "holdout_fraction": 0.2}
    args |= {"hparams_seed": 3, "trial_seed": 1, "seed": 99, "task": "domain_generalization", "test_envs": [2]}
    rest = {"epoch": 1.5, "loss": 0.7, "mem_gb": 0.0, "step": 300, "step_time": 0.2}
    return {"args": args | changes, "hparams": {"lr": 5e-5}, **accuracies, **rest}


def test_line_becomes_a_record() -> None:
    assert convert_domainbed(line()) == {
        "schema": 1,
        "step": 300,
        "dataset": "pacs",
        "algorithm": "erm",
        "trial_seed": 1,
        "hparams_seed": 3,
        "train_domains": ["art_painting", "cartoon", "sketch"],
        "validation_domains": [],
        "test_domains": ["photo"],
        "roles": "left_out",
        "hparams": {"lr": 5e-5},
        "network": "resnet50",
        "weights": "IMAGENET1K_V1",
        "batch_norm": "frozen",
        "accuracy": {
            "art_painting": {"main": 0.0, "holdout": 0.05},
            "cartoon": {"main": 0.1, "holdout": pytest.approx(0.15)},
            "photo": {"main": 0.2, "holdout": 0.25},
            "sketch": {"main": pytest.approx(0.3), "holdout": pytest.approx(0.35)},
        },
        "loss": 0.7,
    }


@pytest.mark.parametrize(
    ("theirs", "ours", "domains"),
    [
        ("RotatedMNIST", "rotated_mnist", ["0", "15", "30", "45", "60", "75"]),
        ("ColoredMNIST", "colored_mnist", ["+90%", "+80%", "-90%"]),
        ("PACS", "pacs", ["art_painting", "cartoon", "photo", "sketch"]),
        ("VLCS", "vlcs", ["Caltech101", "LabelMe", "SUN09", "VOC2007"]),
        ("OfficeHome", "office_home", ["Art", "Clipart", "Product", "Real World"]),
        ("TerraIncognita", "terra_incognita", ["location_100", "location_38", "location_43", "location_46"]),
        ("DomainNet", "domainnet", ["clipart", "infograph", "painting", "quickdraw", "real", "sketch"]),
    ],
)
def test_datasets_and_domains_get_our_names(theirs: str, ours: str, domains: list[str]) -> None:
    given = convert_domainbed(line(theirs, domains=len(domains)))
    assert given["dataset"] == ours
    assert ours in DATASETS
    assert list(given["accuracy"]) == domains
    # Folders are read in the order of their names, theirs and ours.
    assert "mnist" in ours or domains == sorted(domains)
    arrange = SOURCES[ours].arrange
    assert domains == list(getattr(arrange, "keywords", {}).get("names", domains))


# All methods of DomainBed, and those of the paper's code, which builds on it.
DOMAINBED_METHODS = (
    *("ERM", "ERMPlusPlus", "Fish", "IRM", "GroupDRO", "Mixup", "MLDG", "CORAL", "MMD", "DANN", "CDANN", "MTL"),
    *(
        "SagNet",
        "ARM",
        "VREx",
        "RSC",
        "SD",
        "ANDMask",
        "SANDMask",
        "IGA",
        "SelfReg",
        "Fishr",
        "TRM",
        "IB_ERM",
        "IB_IRM",
    ),
    *("CAD", "CondCAD", "Transfer", "CausIRL_CORAL", "CausIRL_MMD", "EQRM", "RDM", "ADRMX", "URM"),
    *("AT", "UAT", "MAT", "LDAT"),
)
# The methods that neither of them has.
OURS_ONLY = {"gut", "ncdg", "miro", "sam", "sagm", "randconv", "mixstyle", "dsu"}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("ERMPlusPlus", "ermplusplus"),
        ("VREx", "vrex"),
        ("IB_ERM", "iberm"),
        ("IB_IRM", "ibirm"),
        ("CondCAD", "condcad"),
        ("CausIRL_CORAL", "causirlcoral"),
        ("CausIRL_MMD", "causirlmmd"),
    ],
)
def test_methods_get_our_names(theirs: str, ours: str) -> None:
    assert convert_domainbed(line(algorithm=theirs))["algorithm"] == ours
    assert ours in ALGORITHMS


def test_every_method_of_domainbed_that_we_have_gets_our_name() -> None:
    names = [convert_domainbed(line(algorithm=name))["algorithm"] for name in DOMAINBED_METHODS]
    assert len(set(names)) == len(DOMAINBED_METHODS) == 34 + 4
    assert set(ALGORITHMS) - OURS_ONLY <= set(names)


def test_unknown_methods_get_such_a_name_too() -> None:
    assert convert_domainbed(line(algorithm="My_Method"))["algorithm"] == "mymethod"


def test_unknown_dataset_keeps_its_name_and_gets_numbered_domains() -> None:
    given = convert_domainbed(line("SVIRO", domains=10, test_envs=[0]))
    assert given["dataset"] == "SVIRO"
    assert given["test_domains"] == ["env0"]
    assert given["train_domains"] == [f"env{index}" for index in range(1, 10)]


def test_dataset_with_other_domains_keeps_its_name() -> None:
    given = convert_domainbed(line("PACS", domains=5))
    assert (given["dataset"], list(given["accuracy"])) == ("PACS", [f"env{index}" for index in range(5)])


def test_nan_means_not_measured() -> None:
    given = convert_domainbed(line() | {"env1_out_acc": float("nan"), "env2_in_acc": float("nan")})
    assert given["accuracy"]["cartoon"] == {"main": 0.1}
    assert given["accuracy"]["photo"] == {"holdout": 0.25}


@pytest.mark.parametrize("test_envs", [[4], [-1]])
def test_test_domain_out_of_range_raises(test_envs: list[int]) -> None:
    with pytest.raises(LookupError):
        convert_domainbed(line(test_envs=test_envs))


OLD_RESNET_50 = "resnet50 (IMAGENET1K_V1, frozen batch norm)"
MNIST_HPARAMS = DOMAINBED_2024 | {"lr": 0.001, "batch_size": 64}


@pytest.mark.parametrize(
    ("hparams", "expected"),
    [
        (DOMAINBED_2021, OLD_RESNET_50),
        (DOMAINBED_2021 | {"resnet18": True}, "resnet18 (IMAGENET1K_V1, frozen batch norm)"),
        (DOMAINBED_2024, "timm:resnet50.ram_in1k (pretrained, live batch norm)"),
        (DOMAINBED_2024 | {"freeze_bn": True}, "timm:resnet50.ram_in1k (pretrained, frozen batch norm)"),
        (DOMAINBED_2024 | {"resnet50_augmix": False}, "resnet50 (IMAGENET1K_V1, live batch norm)"),
        (DOMAINBED_2024 | {"resnet50_augmix": False, "freeze_bn": True}, OLD_RESNET_50),
        (DOMAINBED_2024 | {"vit": True, "dinov2": True}, "dinov2_vitb14 (pretrained)"),
        # Asking for a ResNet-18 is not enough since there is AugMix, which replaces it.
        (DOMAINBED_2024 | {"resnet18": True}, "timm:resnet50.ram_in1k (pretrained, live batch norm)"),
        (DOMAINBED_2024 | {"resnet18": True, "resnet50_augmix": False}, "resnet18 (IMAGENET1K_V1, live batch norm)"),
        # Forks have added one of the hyperparameters only, or write 0 and 1.
        (DOMAINBED_2021 | {"freeze_bn": False}, "resnet50 (IMAGENET1K_V1, live batch norm)"),
        (DOMAINBED_2024 | {"resnet50_augmix": 0, "freeze_bn": 1}, OLD_RESNET_50),
        ({}, OLD_RESNET_50),
    ],
)
def test_backbone_by_the_hyperparameters(tmp_path: Path, hparams: dict[str, Any], expected: str) -> None:
    run = StoredRun(write_domainbed_run(tmp_path / "run", "ERM", hparams), is_domainbed=True)
    assert str(run.find_backbone(run.read_records()[0])) == expected


@pytest.mark.parametrize(
    ("dataset", "domains"), [("RotatedMNIST", 6), ("ColoredMNIST", 3), ("ColoredMNIST", 5), ("Debug28", 3)]
)
def test_small_images_have_no_backbone_to_choose(dataset: str, domains: int) -> None:
    given = convert_domainbed(line(dataset, domains=domains) | {"hparams": MNIST_HPARAMS})
    assert given["network"] == "mnist_cnn"
    assert not {"weights", "batch_norm"} & set(given)


def test_dataset_of_photographs_that_we_do_not_have() -> None:
    given = convert_domainbed(line("SVIRO", domains=10) | {"hparams": DOMAINBED_2024})
    assert given["network"] == "timm:resnet50.ram_in1k"


def test_run_without_records_has_no_backbone(tmp_path: Path) -> None:
    assert StoredRun(tmp_path, is_domainbed=True).find_backbone([]) is None


def write(folder: Path, *lines: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    (folder / "results.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))


def test_folders_are_read_finished_or_not(tmp_path: Path) -> None:
    write(tmp_path / "8a0f", line() | {"step": 0}, line())
    (tmp_path / "8a0f" / "done").write_text("done")
    write(tmp_path / "77c2", line(test_envs=[2, 0]))
    (tmp_path / "77c2" / "out.txt").write_text("...")
    runs = read_runs([tmp_path])
    assert (runs.planned, runs.notes) == ({}, ())
    shown = runs.frame.select("run", "step", "test_domain", "is_result", "main", "training").sort("run", "step")
    assert shown.rows() == [
        (str(tmp_path / "77c2"), 300, "photo", False, 0.2, pytest.approx((0.15 + 0.35) / 2)),
        (str(tmp_path / "77c2"), 300, "art_painting", False, 0.0, pytest.approx((0.15 + 0.35) / 2)),
        (str(tmp_path / "8a0f"), 0, "photo", True, 0.2, pytest.approx((0.05 + 0.15 + 0.35) / 3)),
        (str(tmp_path / "8a0f"), 300, "photo", True, 0.2, pytest.approx((0.05 + 0.15 + 0.35) / 3)),
    ]


def test_nan_in_a_file_is_missing(tmp_path: Path) -> None:
    write(tmp_path / "run", line() | {"env0_out_acc": float("nan")})
    assert "NaN" in (tmp_path / "run" / "results.jsonl").read_text()
    runs = read_runs([tmp_path])
    assert runs.frame["training"].to_list() == [None]
    assert SELECTIONS["training_domain"](runs.frame).is_empty()
    assert SELECTIONS["test_domain"](runs.frame)["accuracy"].to_list() == [0.2]


def test_restarted_run_counts_once(tmp_path: Path) -> None:
    """DomainBed appends to the existing file."""
    first = [line() | {"step": step, "env2_in_acc": 0.9} for step in (0, 300)]
    write(tmp_path / "run", *first, line() | {"step": 0}, line())
    runs = read_runs([tmp_path])
    assert runs.frame["main"].to_list() == [0.2, 0.2]
    assert runs.notes == (f"{tmp_path / 'run' / 'results.jsonl'} has 2 steps twice; their later records count",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"args": {"dataset": "PACS"}}, "is damaged at line 2: missing key 'test_envs'"),
        ({"args": "none"}, "is damaged at line 2: "),
        ({"step": "last"}, "is damaged at line 2: step: expected int, got str"),
        ({"env1_in_acc": "high"}, "is damaged at line 2: accuracy.*.*: expected a number or null, got str"),
        ({"env0_out_acc": "high"}, "is damaged at line 2: accuracy.*.*: expected a number or null, got str"),
    ],
)
def test_bad_line_skips_its_run(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    write(tmp_path / "good", line())
    write(tmp_path / "bad", line(test_envs=[1]), line(test_envs=[1]) | {"step": 600} | changes)
    runs = read_runs([tmp_path])
    assert runs.frame["run"].to_list() == [str(tmp_path / "good")]
    [note] = runs.notes
    file = tmp_path / "bad" / "results.jsonl"
    assert re.match(re.escape(f"{tmp_path / 'bad'} skipped: {file}") + " ?" + re.escape(message.strip()), note)
