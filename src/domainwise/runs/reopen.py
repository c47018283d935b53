"""A run opened again with its data: what pictures and further measurements of it start from."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from domainwise.algorithms import Algorithm
from domainwise.data import DATASETS, Dataset
from domainwise.data.places import OnProgress, silent
from domainwise.data.splits import Roles, Split, roles, splits_of
from domainwise.errors import DomainwiseError
from domainwise.runs.build import data_facts, load_algorithm, load_model
from domainwise.runs.data import AnyDataset, built
from domainwise.runs.store import Record, RunFolder, Which


@dataclass(frozen=True)
class OpenRun:
    """A run with its data.

    Args:
        settings: what its config.json says, as `RunConfig` takes it.
    """

    folder: RunFolder
    settings: dict[str, Any]
    dataset: Dataset
    roles: Roles
    splits: dict[str, Split]

    @property
    def name(self) -> str:
        return self.folder.path.name

    @cached_property
    def records(self) -> list[Record]:
        return self.folder.read_records()

    def model(self, which: Which = "best") -> nn.Module:
        """As `load_model`."""
        return load_model(self.folder.path, which)

    def algorithm(self) -> Algorithm:
        """As `load_algorithm`: with the perturbation that training ended with."""
        return load_algorithm(self.folder.path)


def open_run(
    path: str | Path,
    *,
    dataset: AnyDataset | None = None,
    data_dir: str | Path | None = None,
    on_data: OnProgress = silent,
) -> OpenRun:
    """The run in `path` and the very images it was trained and tested on.

    Args:
        dataset: the folder, file or builder of the run's images, if it was none of the library's own datasets. A run
            folder may come from anywhere, so what it names is never imported by itself.
        data_dir: where the library's datasets lie, as for training.
    """
    folder = RunFolder(path)
    stored = folder.read_config()
    settings = stored["config"]
    if dataset is None and settings.get("dataset") not in DATASETS:
        raise DomainwiseError(
            f"the run in {folder.path} used images of its own, {settings.get('dataset')}: give them as --dataset"
        )
    source = settings["dataset"] if dataset is None else dataset
    seed = settings["trial_seed"]
    data = built(source, settings["dataset_options"], seed=seed, data_dir=data_dir, on_progress=on_data)
    parts = roles(data, settings["train_domains"], settings["test_domains"])
    splits = splits_of(data, seed)
    found = data_facts(data, parts, splits)
    for name, value in stored["data"].items():
        if found.get(name) != value:
            raise DomainwiseError(
                f"the images do not fit the run in {folder.path}: their {name} is {found.get(name)}, not {value}"
            )
    return OpenRun(folder, settings, data, parts, splits)
