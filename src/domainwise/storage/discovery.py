"""Which folders hold runs, whoever made them, and which are sweeps."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

from domainwise.errors import DomainwiseError
from domainwise.storage.run_folder import Record

# What a run of ours leaves beside its config from its first moment, while it trains, and at its end.
_BESIDE_CONFIG = frozenset((".lock", "records.jsonl", "done"))


@dataclass(frozen=True)
class Folder:
    """A folder with a run or a sweep's plan in it, and the names of its files."""

    path: Path
    files: frozenset[str]

    @property
    def is_ours(self) -> bool:
        return "config.json" in self.files and bool(self.files & _BESIDE_CONFIG)

    @property
    def is_domainbeds(self) -> bool:
        return "results.jsonl" in self.files

    @property
    def is_sweep(self) -> bool:
        return "plan.jsonl" in self.files


def find_folders(paths: Sequence[Path]) -> list[Folder]:
    """Folders with something to read at or below `paths`, each once however many ways lead to it."""
    found: dict[str, Folder] = {}
    for path in paths:
        here = {
            where: folder for where, folder in _walk(path) if folder.is_ours or folder.is_domainbeds or folder.is_sweep
        }
        if not here:
            raise DomainwiseError(
                f"there are no runs in {path}: a run has config.json and records.jsonl, DomainBed's has results.jsonl"
            )
        for where, folder in here.items():
            found.setdefault(where, folder)
    return list(found.values())


def _walk(path: Path) -> Iterator[tuple[str, Folder]]:
    if not path.is_dir():
        raise DomainwiseError(f"{path} is not a folder" if path.exists() else f"there is no folder {path}")
    seen = set()
    for where, below, files in os.walk(path, onerror=_refuse, followlinks=True):
        real = os.path.realpath(where)
        if real in seen:
            below.clear()
            continue
        seen.add(real)
        below[:] = sorted(name for name in below if not name.startswith("."))
        yield real, Folder(Path(where), frozenset(files))


def _refuse(error: OSError) -> NoReturn:
    raise DomainwiseError(f"the folder {error.filename} cannot be read: {error.strerror}") from error


# Its names to ours, and the domains in the order of its indices, which is that of the folders' names.
_DATASETS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "RotatedMNIST": ("rotated_mnist", ("0", "15", "30", "45", "60", "75")),
    "ColoredMNIST": ("colored_mnist", ("+90%", "+80%", "-90%")),
    "PACS": ("pacs", ("art_painting", "cartoon", "photo", "sketch")),
    "VLCS": ("vlcs", ("Caltech101", "LabelMe", "SUN09", "VOC2007")),
    "OfficeHome": ("office_home", ("Art", "Clipart", "Product", "Real World")),
    "TerraIncognita": ("terra_incognita", ("location_100", "location_38", "location_43", "location_46")),
    "DomainNet": ("domainnet", ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")),
}
# Methods of its own and of the paper's code, which is built on it; ours are these in lower case.
_ALGORITHMS = (
    *("ERM", "IRM", "GroupDRO", "Mixup", "MLDG", "CORAL", "MMD", "DANN", "MTL", "SagNet", "VREx", "RSC", "ANDMask"),
    *("AT", "UAT", "MAT", "LDAT"),
)


def record_of(line: Mapping[str, Any]) -> Record:
    """A line of `results.jsonl` as a record; a LookupError or TypeError for what is no such line.

    Datasets and methods that we do not have keep their names, and such a dataset's domains are `env0`, `env1`, ...
    """
    args = line["args"]
    dataset, domains = _named(args["dataset"], _number_of_domains(line))
    tested = [domains[index] for index in args["test_envs"]]
    return {
        "step": line["step"],
        "dataset": dataset,
        "algorithm": _algorithm(args["algorithm"]),
        "trial_seed": args["trial_seed"],
        "hparams_seed": args["hparams_seed"],
        "train_domains": [name for name in domains.values() if name not in tested],
        "validation_domains": [],
        "test_domains": tested,
        "roles": "left_out",
        "hparams": line.get("hparams", {}),
        "accuracy": {name: _accuracy(line, index) for index, name in domains.items()},
    }


def _number_of_domains(line: Mapping[str, Any]) -> int:
    return next(index for index in count() if f"env{index}_in_acc" not in line)


def _named(dataset: str, number: int) -> tuple[str, dict[int, str]]:
    """Our name of a dataset and of its domains by their indices, or its own where it is not the one we know."""
    ours, domains = _DATASETS.get(dataset, (dataset, ()))
    if len(domains) != number:
        return dataset, {index: f"env{index}" for index in range(number)}
    return ours, dict(enumerate(domains))


def _algorithm(name: str) -> str:
    return name.lower() if name in _ALGORITHMS else name


def _accuracy(line: Mapping[str, Any], index: int) -> dict[str, float]:
    parts = {"main": line[f"env{index}_in_acc"], "holdout": line.get(f"env{index}_out_acc")}
    # DomainBed writes NaN for what it could not measure, the one value that does not equal itself.
    return {part: value for part, value in parts.items() if value is not None and value == value}
