"""Finds runs and sweeps below a path, ours and DomainBed's, and reads both as records of one kind."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

from domainwise.errors import DomainwiseError, format_error
from domainwise.storage.hub import VERSION_FILE, find_version
from domainwise.storage.run_folder import (
    RUN_FILES,
    Record,
    RunFolder,
    RunStatus,
    damaged_line,
    read_json_lines,
    read_record_file,
)
from domainwise.storage.schemas import SCHEMA, check_record, parse_domainbed_line
from domainwise.storage.sweep_folder import PLAN_FILE, SWEEP_FILES, SweepFolder

# A run has one of these next to its config at any time: when it starts, while it trains, and when it is done.
_BESIDE_CONFIG = frozenset((".lock", "records.jsonl", "done"))
_DOMAINBED_FILE = "results.jsonl"

# DomainBed's names to ours, and its domains in the order of its indices, which is that of the folder names.
_DOMAINBED_DATASETS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "RotatedMNIST": ("rotated_mnist", ("0", "15", "30", "45", "60", "75")),
    "ColoredMNIST": ("colored_mnist", ("+90%", "+80%", "-90%")),
    "PACS": ("pacs", ("art_painting", "cartoon", "photo", "sketch")),
    "VLCS": ("vlcs", ("Caltech101", "LabelMe", "SUN09", "VOC2007")),
    "OfficeHome": ("office_home", ("Art", "Clipart", "Product", "Real World")),
    "TerraIncognita": ("terra_incognita", ("location_100", "location_38", "location_43", "location_46")),
    "DomainNet": ("domainnet", ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")),
}


@dataclass(frozen=True)
class BackboneSettings:
    """The network of a run, in the terms of its config; weights and batch_norm are empty if it has no such setting."""

    network: str
    weights: str = ""
    batch_norm: str = ""

    def __str__(self) -> str:
        """Return it as reports show it: `resnet50 (IMAGENET1K_V1, frozen batch norm)`."""
        name, separator, digest = self.weights.partition("sha256:")
        weights = "no pretrained weights" if name == "none" else name + separator + digest[:8]
        details = ", ".join(filter(None, (weights, self.batch_norm and f"{self.batch_norm} batch norm")))
        return f"{self.network} ({details})" if details else self.network


@dataclass(frozen=True)
class StoredRun:
    """A run found on disk. Its status and config are read on first use, and once."""

    path: Path
    is_domainbed: bool = False

    @cached_property
    def status(self) -> RunStatus:
        """The status by the files alone; DomainBed's runs count as done, because it does not say."""
        return RunStatus("done") if self.is_domainbed else RunFolder(self.path).read_stored_status()

    @property
    def config(self) -> dict[str, dict[str, Any]]:
        """What `RunFolder.read_config` returns; empty parts if it is missing or damaged."""
        return self._config_and_error[0]

    @property
    def config_error(self) -> str:
        """What is wrong with the config; empty if it is in order."""
        return self._config_and_error[1]

    @cached_property
    def _config_and_error(self) -> tuple[dict[str, dict[str, Any]], str]:
        try:
            return RunFolder(self.path).read_config(), ""
        except (DomainwiseError, OSError) as error:
            return {"config": {}, "data": {}}, format_error(error)

    @property
    def seeding(self) -> str:
        return str(self.config["config"].get("seeding", "domainbed"))

    @property
    def records_file(self) -> Path:
        return self.path / _DOMAINBED_FILE if self.is_domainbed else RunFolder(self.path).records_file

    def read_records(self) -> tuple[list[Record], bool]:
        """Return the records, and whether an incomplete last line was dropped.

        They are not kept: the records of all runs would take several times the memory of their files.

        Raises:
            DomainwiseError: the file is damaged.
        """
        if not self.is_domainbed:
            return read_record_file(self.records_file)
        lines, is_truncated = read_json_lines(self.records_file, parse_domainbed_line)
        records = []
        for number, line in enumerate(lines, start=1):
            try:
                records.append(check_record(convert_domainbed(line)))
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                raise damaged_line(self.records_file, number, error) from error
        return records, is_truncated

    def find_backbone(self, records: Sequence[Record]) -> BackboneSettings | None:
        """Return the backbone, of DomainBed's runs by their records; None if it was not recorded."""
        settings = (records[-1] if records else {}) if self.is_domainbed else self.config["config"]
        if not settings.get("network"):
            return None
        return BackboneSettings(*(str(settings.get(name) or "") for name in ("network", "weights", "batch_norm")))

    @property
    def last_step(self) -> int | None:
        """The step that the last record of the finished run must have, if its config says so."""
        if self.is_domainbed or self.status.state != "done":
            return None
        steps = self.config["config"].get("steps")
        return RunFolder(self.path).find_last_step(steps) if isinstance(steps, int) else None


@dataclass(frozen=True)
class Discovery:
    """The runs and sweeps at or below some paths, each once."""

    runs: list[StoredRun] = field(default_factory=list)
    sweeps: list[SweepFolder] = field(default_factory=list)


def discover(paths: Sequence[Path]) -> Discovery:
    """Find every run and sweep at or below `paths`, each once however many ways lead to it."""
    runs: dict[str, StoredRun] = {}
    sweeps: dict[str, SweepFolder] = {}
    for path in paths:
        is_empty = True
        for real, folder, files in _walk(path):
            is_ours = "config.json" in files and bool(files & _BESIDE_CONFIG)
            if is_ours or _DOMAINBED_FILE in files:
                runs.setdefault(real, StoredRun(folder, is_domainbed=not is_ours))
                is_empty = False
            if PLAN_FILE in files:
                sweeps.setdefault(real, SweepFolder(folder))
                is_empty = False
        if is_empty:
            raise DomainwiseError(
                f"no runs found in {path}: a run has config.json and records.jsonl, one of DomainBed's results.jsonl"
            )
    return Discovery(list(runs.values()), list(sweeps.values()))


def check_output(path: Path) -> None:
    """Raise an error if a file that the user has named would be one of a run or a sweep, whether it exists or not.

    Files with other names may be next to these.
    """
    folder = Path(os.path.realpath(path.parent))
    own = {_DOMAINBED_FILE: (_DOMAINBED_FILE,), "config.json": RUN_FILES, PLAN_FILE: SWEEP_FILES}
    names = {name for marker, names in own.items() if (folder / marker).exists() for name in names}
    is_perturbation = folder.name == "perturbations" and (folder.parent / "config.json").exists()
    # Some file systems take names in capitals for the same.
    if path.name.lower() in names or (is_perturbation and path.suffix.lower() == ".safetensors"):
        raise DomainwiseError(f"{path} is a file of a run or sweep; choose another output")


def convert_domainbed(line: Mapping[str, Any]) -> Record:
    """Convert a line of DomainBed's `results.jsonl` to a record; raise LookupError or TypeError for anything else.

    Methods get names like ours: lower case, no underscores. Datasets that we do not have keep their names, and their
    domains are `env0`, `env1`, ... The record also says which network was trained, as the config of our runs does.
    """
    args, hparams = line["args"], line.get("hparams", {})
    num_domains = next(index for index in count() if f"env{index}_in_acc" not in line)
    dataset, names = _DOMAINBED_DATASETS.get(args["dataset"], (args["dataset"], ()))
    if len(names) != num_domains:
        dataset, names = args["dataset"], tuple(f"env{index}" for index in range(num_domains))
    test_domains = [dict(enumerate(names))[index] for index in args["test_envs"]]
    return {
        "schema": SCHEMA,
        "step": line["step"],
        "dataset": dataset,
        "algorithm": args["algorithm"].replace("_", "").lower(),
        "trial_seed": args["trial_seed"],
        "hparams_seed": args["hparams_seed"],
        "train_domains": [name for name in names if name not in test_domains],
        "validation_domains": [],
        "test_domains": test_domains,
        "roles": "left_out",
        "hparams": hparams,
        **_domainbed_network(args["dataset"], hparams),
        "accuracy": {name: _domainbed_accuracy(line, index) for index, name in enumerate(names)},
        **({"loss": line["loss"]} if "loss" in line else {}),
    }


def _domainbed_network(dataset: str, hparams: Mapping[str, Any]) -> dict[str, str]:
    """Return network, weights and batch norm mode by the names they have in our configs.

    Hyperparameters that are missing have the value that was fixed before they were added, in July 2024. Datasets other
    than DomainBed's are taken for photographs, unless MNIST is in their name.
    """
    if "MNIST" in dataset or dataset == "Debug28":
        return {"network": "mnist_cnn"}
    if hparams.get("vit"):
        return {"network": "dinov2_vitb14", "weights": "pretrained"}
    batch_norm = "frozen" if hparams.get("freeze_bn", True) else "live"
    # AugMix first: DomainBed replaces the network that resnet18 asks for.
    if hparams.get("resnet50_augmix"):
        return {"network": "timm:resnet50.ram_in1k", "weights": "pretrained", "batch_norm": batch_norm}
    network = "resnet18" if hparams.get("resnet18") else "resnet50"
    return {"network": network, "weights": "IMAGENET1K_V1", "batch_norm": batch_norm}


def _domainbed_accuracy(line: Mapping[str, Any], index: int) -> dict[str, float]:
    parts = {"main": line[f"env{index}_in_acc"], "holdout": line.get(f"env{index}_out_acc")}
    # DomainBed writes NaN for what it could not measure, the one value that does not equal itself.
    return {part: value for part, value in parts.items() if value is not None and value == value}


def _walk(path: Path) -> Iterator[tuple[str, Path, frozenset[str]]]:
    """Yield the real path, the path and the file names of every folder, without following loops of links."""
    if not path.is_dir():
        raise DomainwiseError(f"{path} is not a folder" if path.exists() else f"folder {path} not found")
    seen = set()
    for folder, subfolders, files in os.walk(path, onerror=_raise, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            subfolders.clear()
            continue
        seen.add(real)
        if VERSION_FILE in files:
            # Former versions of a model are no results.
            subfolders[:], files = [find_version(Path(folder)).name], []
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        yield real, Path(folder), frozenset(files)


def _raise(error: OSError) -> NoReturn:
    raise DomainwiseError(f"folder {error.filename} could not be read: {error.strerror}") from error
