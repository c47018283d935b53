"""From a config to the algorithm it names, in training and when a finished run is loaded."""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from domainwise.algorithms import Algorithm
from domainwise.data import DATASETS, Dataset
from domainwise.data.dataset import Roles, Split, assign_roles, split_domains
from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.errors import DomainwiseError
from domainwise.networks import NetworkBuilder
from domainwise.networks.backbones import TIMM
from domainwise.storage.run_folder import Record, RunFolder, Which
from domainwise.training.config import RunConfig
from domainwise.training.registry import AnyDataset, built


def data_facts(dataset: Dataset, roles: Roles, splits: Mapping[str, Split]) -> dict[str, Any]:
    """What a model must know of the data, so that it can be loaded without it."""
    return {
        "classes": list(dataset.classes),
        "input_shape": list(dataset.image_shape),
        "train_domains": list(roles.train),
        "validation_domains": list(roles.validation),
        "test_domains": list(roles.test),
        "domain_sizes": [len(splits[name].main) for name in roles.train],
    }


def build_algorithm(config: RunConfig, data: Mapping[str, Any], generator: torch.Generator | None = None) -> Algorithm:
    """The run's algorithm around a fresh network."""
    try:
        network = config.network_builder()(data["input_shape"], len(data["classes"]), config.dropout)
        return config.algorithm_class()(
            network,
            num_domains=len(data["train_domains"]),
            input_shape=data["input_shape"],
            domain_sizes=data.get("domain_sizes"),
            generator=generator,
            **config.hparams,
        )
    except ValueError as error:
        raise DomainwiseError(str(error)) from error


def load_algorithm(
    run: str | Path, *, algorithm: type[Algorithm] | None = None, network: NetworkBuilder | None = None
) -> Algorithm:
    """The algorithm of a run as its newest checkpoint left it, perturbation and optimizer included.

    Args:
        algorithm, network: one's own class or builder, if the run used one. A folder may come from anywhere, so what
            its config names is never imported by itself.
    """
    folder = RunFolder(run)
    built = _rebuilt(folder, algorithm, network)
    checkpoint = folder.read_checkpoint()
    if checkpoint is None:
        raise DomainwiseError(f"the run in {folder.path} has no checkpoint yet")
    _load(built, checkpoint["algorithm"], folder)
    return built.eval()


def load_model(
    run: str | Path,
    which: Which = "best",
    *,
    algorithm: type[Algorithm] | None = None,
    network: NetworkBuilder | None = None,
) -> nn.Module:
    """The network of a run, in eval mode: images in [0, 1] to logits.

    Args:
        which: `best`, the one with the highest training-domain holdout (or validation domain), or `last`.
        algorithm, network: as for `load_algorithm`.
    """
    if which not in ("best", "last"):
        raise DomainwiseError(f"which must be 'best' or 'last', not {which!r}")
    folder = RunFolder(run)
    model = _rebuilt(folder, algorithm, network).network
    _load(model, folder.read_weights(which), folder)
    return model.eval()


def _rebuilt(folder: RunFolder, algorithm: type[Algorithm] | None, network: NetworkBuilder | None) -> Algorithm:
    stored = folder.read_config()
    # The data itself is not needed, and its builder may not be here.
    settings = {**stored["config"], "dataset": "silhouettes", "weights": None}
    for name, given in (("algorithm", algorithm), ("network", network)):
        if given is not None:
            settings[name] = given
        elif ":" in str(settings[name]) and not str(settings[name]).startswith(TIMM):
            raise DomainwiseError(f"the run in {folder.path} used its own {name} {settings[name]}: give it as {name}=")
    config = RunConfig.of(**{name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()})
    # Building draws random numbers that the loaded weights replace; the caller's sequence should not notice.
    with torch.random.fork_rng(devices=[]):
        return build_algorithm(config, stored["data"])


def _load(module: nn.Module, state: Mapping[str, Any], folder: RunFolder) -> None:
    tensors = OrderedDict(state)
    # MNASNet loads nothing that does not say its version, which files of plain tensors cannot.
    tensors._metadata = module.state_dict()._metadata  # type: ignore[attr-defined]
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        first = " ".join(str(error).split())
        raise DomainwiseError(f"the weights in {folder.path} do not fit its config: {first}") from error


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
    on_data: OnProgress = ignore_progress,
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
    parts = assign_roles(data, settings["train_domains"], settings["test_domains"])
    splits = split_domains(data, seed)
    found = data_facts(data, parts, splits)
    for name, value in stored["data"].items():
        if found.get(name) != value:
            raise DomainwiseError(
                f"the images do not fit the run in {folder.path}: their {name} is {found.get(name)}, not {value}"
            )
    return OpenRun(folder, settings, data, parts, splits)
