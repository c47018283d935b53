"""Builds the algorithm of a config, and loads the model, the algorithm or the data of a finished run."""

import shlex
import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from domainwise.algorithms import Algorithm
from domainwise.algorithms.sharpness import Sharpness
from domainwise.data import DATASETS, Dataset
from domainwise.data.dataset import Roles, Split, assign_roles, split_domains
from domainwise.data.hugging_face import is_hub_dataset
from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.errors import DomainwiseError, unknown_choice
from domainwise.networks.backbones import TIMM
from domainwise.networks.finetuning import prepare_network_
from domainwise.plugins import find_plugins
from domainwise.storage.hub import find_run
from domainwise.storage.run_folder import Record, RunFolder, Which
from domainwise.training.config import RunConfig
from domainwise.training.registry import (
    AnyAlgorithm,
    AnyDataset,
    AnyNetwork,
    DatasetCache,
    blame_own_code,
    dataset_name,
    import_path,
    is_path,
    resolve_config,
)


def describe_data(dataset: Dataset, roles: Roles, splits: Mapping[str, Split]) -> dict[str, Any]:
    """Return the facts about the data that a model needs, so that it can be loaded without the data."""
    return {
        "classes": list(dataset.classes),
        "input_shape": list(dataset.image_shape),
        "train_domains": list(roles.train),
        "validation_domains": list(roles.validation),
        "test_domains": list(roles.test),
        "domain_sizes": [len(splits[name].main) for name in roles.train],
        "chance": _measure_chance(dataset, roles.train),
        **({} if dataset.revision is None else {"revision": dataset.revision}),
    }


def _measure_chance(dataset: Dataset, train_domains: Sequence[str]) -> float:
    """Return the mean accuracy on the training domains of always predicting the same class, the best one."""
    labels = (dataset.domains[dataset.index(name)].labels for name in train_domains)
    shares = [each.bincount(minlength=len(dataset.classes)).double() / len(each) for each in labels]
    return float(torch.stack(shares).mean(dim=0).max())


def warn_of_new_revision(folder: RunFolder, dataset: Dataset) -> None:
    """Warn if the data of a run has another revision by now: its images may differ."""
    recorded = folder.read_config()["data"].get("revision")
    if recorded is not None and dataset.revision not in (None, recorded):
        warnings.warn(
            f"the run in {folder.path} began with revision {recorded} of {dataset.name}, not {dataset.revision}; "
            "if their images differ, so do the results",
            stacklevel=2,
        )


def merge_holdouts(splits: Mapping[str, Split], train_domains: Sequence[str]) -> dict[str, Split]:
    """Return the splits of a refit: all images of the training domains are trained on."""
    merged = dict(splits)
    for name in train_domains:
        everything = torch.cat([splits[name].holdout, splits[name].main])
        merged[name] = Split(main=everything, holdout=everything[:0])
    return merged


def build_algorithm(config: RunConfig, data: Mapping[str, Any], generator: torch.Generator | None = None) -> Algorithm:
    """Build the algorithm of a config around a fresh network."""
    build_network, method = config.network_builder(), config.algorithm_class()
    try:
        with blame_own_code(build_network, f"network {import_path(config.network or '')} could not be built"):
            network = build_network(data["input_shape"], len(data["classes"]), config.dropout)
        _check_outputs(network, config, len(data["classes"]))
        prepare_network_(
            network,
            freeze=config.freeze,
            layer_decay=config.layer_decay,
            lora=config.lora,
            lora_targets=config.lora_targets,
            gradient_checkpointing=config.gradient_checkpointing,
        )
        with blame_own_code(method, f"algorithm {method.__name__} could not be built"):
            return method(
                network,
                num_domains=len(data["train_domains"]),
                input_shape=data["input_shape"],
                domain_sizes=data.get("domain_sizes"),
                num_steps=config.steps,
                generator=generator,
                sharpness=_build_sharpness(config),
                **config.hparams,
            )
    except ValueError as error:
        raise DomainwiseError(str(error)) from error


def _check_outputs(network: nn.Module, config: RunConfig, num_classes: int) -> None:
    """Raise an error if the last layer of someone's own network does not have one output per class."""
    classifier = getattr(network, "classifier", None)
    if isinstance(classifier, nn.Linear) and classifier.out_features != num_classes:
        raise DomainwiseError(
            f"network {import_path(config.network or '')} has {classifier.out_features} outputs; expected one for each "
            f"of the {num_classes} classes"
        )


def check_config(config: RunConfig, dataset: Dataset) -> None:
    """Raise the error of a config whose algorithm cannot be built; the caller's random numbers do not change."""
    config, roles = resolve_config(config, dataset)
    data = describe_data(dataset, roles, split_domains(dataset, config.trial_seed))
    with torch.random.fork_rng(devices=[]):
        build_algorithm(replace(config, weights=None), data)


def _build_sharpness(config: RunConfig) -> Sharpness | None:
    if config.sagm:
        return Sharpness(config.sam_radius, config.sagm_alpha)
    return Sharpness(config.sam_radius) if config.sam else None


def make_refit_config(
    run: str | Path,
    output: str | Path,
    *,
    dataset: AnyDataset | None = None,
    weights: str | Path | None = None,
    algorithm: AnyAlgorithm | None = None,
    network: AnyNetwork | None = None,
) -> RunConfig:
    """Return the config that trains a finished run again on all images of its training domains.

    Args:
        output: folder of the new run.
        dataset, weights: the run's own, if they are files.
        algorithm, network: your own class or builder, if the run used one, as for `load_algorithm`.
    """
    folder = RunFolder(run)
    if not folder.is_done:
        raise DomainwiseError(f"the run in {folder.path} is not finished; resume it first")
    settings = folder.read_config(to_open=True)["config"]
    if settings.get("soup") is not None:
        raise DomainwiseError(f"the run in {folder.path} is an average of runs; refit one of these")
    recorded_name = str(settings["dataset"])
    settings["dataset"] = _require_dataset(folder, settings, dataset)
    if is_path(settings["dataset"]) and dataset_name(settings["dataset"]) != recorded_name:
        settings["name"] = recorded_name
    _replace_own_code(folder, settings, algorithm, network)
    if weights is not None:
        settings["weights"] = weights
    settings = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    return RunConfig.of(**{**settings, "refit": folder.path, "output": output})


def _require_dataset(folder: RunFolder, settings: Mapping[str, Any], dataset: AnyDataset | None) -> AnyDataset:
    """Return the dataset of a run, which must be given unless it has a name here."""
    stored = str(settings.get("dataset"))
    if dataset is None and is_hub_dataset(stored):
        raise DomainwiseError(
            f"the run in {folder.path} used a dataset of the Hugging Face Hub; pass --dataset {shlex.quote(stored)}"
        )
    if dataset is None and stored not in DATASETS and stored.lower() not in find_plugins("dataset"):
        raise DomainwiseError(
            f"the run in {folder.path} used a custom dataset, {settings.get('dataset')}; pass it with --dataset"
        )
    return str(settings["dataset"]) if dataset is None else dataset


def _replace_own_code(
    folder: RunFolder,
    settings: dict[str, Any],
    algorithm: AnyAlgorithm | None,
    network: AnyNetwork | None,
) -> None:
    """Set the method and the network of a run, which must be given if they are package.module:Name.

    Those with a name here stay: a command may be given several runs, and its `--algorithm` is for those that need it.
    """
    for name, given in (("algorithm", algorithm), ("network", network)):
        stored = str(settings[name])
        _, colon, own = stored.partition(":")
        if not colon or stored.startswith(TIMM):
            continue
        if given is None:
            raise DomainwiseError(
                f"the run in {folder.path} used a custom {name}, {stored}; pass it with --{name} ({name}= in Python)"
            )
        if import_path(given).partition(":")[2] != own:
            raise DomainwiseError(f"the run in {folder.path} used {name} {stored}, not {import_path(given)}")
        settings[name] = given


def load_algorithm(
    run: str | Path, *, algorithm: AnyAlgorithm | None = None, network: AnyNetwork | None = None
) -> Algorithm:
    """Load the algorithm of a run as it was at the end, with its perturbation, in eval mode.

    Its optimizer is restored from a checkpoint, which finished runs have only with `keep="all"`. A run that kept only
    its best weights has these.

    Args:
        algorithm, network: your own class or builder, or package.module:Name, if the run used one. A run folder may
            come from anywhere, so no module that its config names is imported automatically. Names that an installed
            package registers are.
    """
    folder = RunFolder(run)
    restored = rebuild_algorithm(folder.path, algorithm, network)
    checkpoint, method_state = folder.read_checkpoint(), folder.read_method_state()
    if checkpoint is not None:
        _load_state(restored, checkpoint.get("algorithm", {}), folder)
    elif method_state is not None:
        weights = folder.read_weights("last" if folder.has_weights("last") else "best")
        network_state = {f"network.{name}": tensor for name, tensor in weights.items()}
        _load_state(restored, {**network_state, **_complete_method_state(restored, method_state)}, folder)
    else:
        raise DomainwiseError(f"the run in {folder.path} has no checkpoint yet")
    return restored.eval()


_EXTRA = "_extra_state"


def extract_method_state(state: Mapping[str, Any], *, with_network: bool) -> dict[str, Tensor]:
    """Return the tensors and numbers in the state of an algorithm, without those of its optimizers.

    Args:
        with_network: include the network, because the run's weights are an average.
    """
    tensors = {}
    for name, value in state.items():
        if name.startswith("network.") and not with_network:
            continue
        parts = {f"{name}/{key}": part for key, part in value.items()} if name.endswith(_EXTRA) else {name: value}
        for key, part in parts.items():
            if isinstance(part, Tensor):
                tensors[key] = part
            elif isinstance(part, int | float):
                tensors[key] = torch.tensor(part, dtype=torch.float64 if isinstance(part, float) else None)
    return tensors


def _complete_method_state(algorithm: Algorithm, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the state that `extract_method_state` took apart, with the algorithm's own values for the rest."""
    state = {name: dict(value) for name, value in algorithm.state_dict().items() if name.endswith(_EXTRA)}
    for key, tensor in tensors.items():
        name, _, part = key.partition("/")
        if not part:
            state[name] = tensor  # type: ignore[assignment]
        elif part in state.get(name, {}):
            is_number = isinstance(state[name][part], int | float)
            state[name][part] = type(state[name][part])(tensor.item()) if is_number else tensor
    return state


def load_model(
    run: str | Path,
    which: Which = "best",
    *,
    algorithm: AnyAlgorithm | None = None,
    network: AnyNetwork | None = None,
    hub: str | Path | None = None,
) -> nn.Module:
    """Load the network of a run, in eval mode. It maps images in [0, 1] to logits of its `classes`, a tuple of names.

    Args:
        run: run folder, or a model on the Hugging Face Hub: `hf:owner/name` or `hf:owner/name@revision`.
        which: `best` (highest accuracy on the training domains' holdouts or the validation domains), `last`, or `start`
            (the initial weights, if the run kept them). In a run with an average, `best` and `last` are averages.
        algorithm, network: as for `load_algorithm`.
        hub: folder that stands in for the Hub (default: $DOMAINWISE_HUB, or the Hub itself).
    """
    check_which(which)
    folder = RunFolder(find_run(run, which, hub))
    model = rebuild_algorithm(folder.path, algorithm, network).network
    _load_state(model, folder.read_weights(which), folder)
    if not hasattr(model, "classes"):  # someone's own network may have a layer of this name
        model.classes = tuple(folder.read_config()["data"]["classes"])  # type: ignore[assignment]
    return model.eval()


def check_which(which: str) -> None:
    if which not in get_args(Which):
        raise unknown_choice("model of a run", which, get_args(Which))


def rebuild_algorithm(
    run: str | Path, algorithm: AnyAlgorithm | None = None, network: AnyNetwork | None = None
) -> Algorithm:
    """Build the algorithm of a run with fresh weights; arguments as for `load_algorithm`."""
    folder = RunFolder(run)
    stored = folder.read_config(to_open=True)
    # The data itself is not needed, and may not be available.
    settings = {**stored["config"], "dataset": "silhouettes", "weights": None, "compile": False}
    _replace_own_code(folder, settings, algorithm, network)
    config = RunConfig.of(**{name: tuple(v) if isinstance(v, list) else v for name, v in settings.items()})
    config = replace(config, hparams=config.algorithm_class().Hparams.complete(config.hparams))
    # Building draws random numbers for weights that are then replaced; the caller's generator must not advance.
    with torch.random.fork_rng(devices=[]):
        return build_algorithm(config, stored["data"])


def _load_state(module: nn.Module, state: Mapping[str, Any], folder: RunFolder) -> None:
    tensors = OrderedDict(state)
    # MNASNet refuses a state dict without version metadata, which safetensors files do not have.
    tensors._metadata = module.state_dict()._metadata  # type: ignore[attr-defined]
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise DomainwiseError(f"the weights in {folder.path} do not match its config: {reason}") from error


@dataclass(frozen=True)
class OpenRun:
    """A run reopened together with its data, for pictures and further measurements.

    Args:
        settings: the `RunConfig` settings in its config.json.
        own_algorithm, own_network: as for `load_algorithm`.
    """

    folder: RunFolder
    settings: dict[str, Any]
    dataset: Dataset
    roles: Roles
    splits: dict[str, Split]
    own_algorithm: AnyAlgorithm | None = None
    own_network: AnyNetwork | None = None

    @property
    def name(self) -> str:
        return self.folder.path.name

    @cached_property
    def records(self) -> list[Record]:
        return self.folder.read_records()

    def model(self, which: Which = "best") -> nn.Module:
        """Load the network as `load_model` does."""
        return load_model(self.folder.path, which, algorithm=self.own_algorithm, network=self.own_network)

    def algorithm(self) -> Algorithm:
        """Load the algorithm as `load_algorithm` does, with its final perturbation."""
        return load_algorithm(self.folder.path, algorithm=self.own_algorithm, network=self.own_network)


def open_run(
    path: str | Path,
    *,
    dataset: AnyDataset | None = None,
    data_dir: str | Path | None = None,
    algorithm: AnyAlgorithm | None = None,
    network: AnyNetwork | None = None,
    on_data: OnProgress = ignore_progress,
    datasets: DatasetCache | None = None,
) -> OpenRun:
    """Open the run in `path` with the same images that it was trained and tested on.

    Args:
        dataset: the folder, file or builder of the images, if the run used one. A run folder may come from anywhere,
            so no module that its config names is imported automatically.
        data_dir: folder that contains the built-in datasets.
        algorithm, network: as for `load_algorithm`.
        datasets: where the dataset comes from; share one between consecutive calls to build their data once.
    """
    folder = RunFolder(path)
    stored = folder.read_config(to_open=True)
    settings = stored["config"]
    source = _require_dataset(folder, settings, dataset)
    seed = settings["trial_seed"]
    config = RunConfig(
        dataset=source, dataset_options=settings["dataset_options"], trial_seed=seed, data_dir=data_dir, algorithm="erm"
    )
    data = (datasets or DatasetCache()).build(config, on_data)
    parts = assign_roles(data, settings["train_domains"], settings["test_domains"])
    splits = split_domains(data, seed)
    if settings.get("refit") is not None:
        splits = merge_holdouts(splits, parts.train)
    facts = describe_data(data, parts, splits)
    warn_of_new_revision(folder, data)
    for name, value in stored["data"].items():
        if name != "revision" and facts.get(name) != value:
            raise DomainwiseError(
                f"the dataset does not match the run in {folder.path}: {name} is {facts.get(name)}, expected {value}"
            )
    return OpenRun(folder, settings, data, parts, splits, algorithm, network)
