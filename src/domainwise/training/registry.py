"""From the names in a `RunConfig` to datasets, methods and networks, and to a config with every default filled in."""

import dataclasses
import inspect
import os
import reprlib
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from domainwise.algorithms import ALGORITHMS, Algorithm
from domainwise.averaging import AVERAGES, average_options, build_average, default_sma_start, default_swad_every
from domainwise.data import DATASETS, Dataset, DatasetBuilder
from domainwise.data.dataset import Roles, assign_roles
from domainwise.data.hugging_face import hugging_face_dataset, is_hub_dataset, list_hub_dataset, name_hub_dataset
from domainwise.data.image_datasets import PUBLISHED, OnListing, ignore_listing, image_files
from domainwise.data.listing import LIST_SUFFIXES, Listing, check_not_table, list_images, name_dataset
from domainwise.data.paths import OnProgress, data_folder, expand_home, ignore_progress
from domainwise.errors import DomainwiseError, unknown_choice
from domainwise.escaping import escape_unprintable
from domainwise.hparams import Hparams
from domainwise.networks import NETWORKS, NetworkBuilder, build_backbone, is_backbone, list_backbones
from domainwise.networks.backbones import TIMM
from domainwise.networks.weights import fingerprint_weights, is_weights_file
from domainwise.plugins import Kind, explain_failure, find_plugins, import_name
from domainwise.seeds import seed_hash
from domainwise.storage.discovery import StoredRun
from domainwise.training.config import BatchNorm, RunConfig

AnyDataset = str | Path | DatasetBuilder
AnyAlgorithm = str | type[Algorithm]
AnyNetwork = str | NetworkBuilder


def find_algorithm(algorithm: AnyAlgorithm) -> type[Algorithm]:
    method = _look_up("algorithm", algorithm, ALGORITHMS)
    if not isinstance(method, type) or not issubclass(method, Algorithm):
        raise DomainwiseError(
            f"algorithm {import_path(algorithm)} is {_describe(method)}; expected a subclass of "
            "domainwise.algorithms.Algorithm"
        )
    if is_own_code(method):
        _check_own_algorithm(method)
    return method


def _check_own_algorithm(method: type[Algorithm]) -> None:
    """Raise an error for what would otherwise fail later, or change a method silently."""
    name, hparams = method.__name__, method.Hparams
    if missing := sorted(getattr(method, "__abstractmethods__", ())):
        raise DomainwiseError(f"algorithm {name} does not implement {', '.join(missing)}")
    if not isinstance(hparams, type) or not issubclass(hparams, Hparams):
        raise DomainwiseError(f"Hparams of {name} must be a subclass of domainwise.hparams.Hparams")
    if "__dataclass_fields__" not in vars(hparams):
        raise DomainwiseError(f"{hparams.__name__} of {name} needs the decorator @dataclass(frozen=True)")
    for field in hparams.fields().values():
        if field.default is dataclasses.MISSING:
            raise DomainwiseError(
                f"hyperparameter {field.name} of {name} has no default; define it with hparam(default, help=...)"
            )


def is_own_code(thing: Any) -> bool:
    """Return whether a class or function is not defined in domainwise."""
    thing = thing.func if isinstance(thing, partial) else thing
    return str(thing.__module__).partition(".")[0] != "domainwise"


def blame_own_code(thing: Any, task: str) -> AbstractContextManager[None]:
    """If a class or function is not ours, turn its exceptions into one line that names file and line."""
    return explain_failure(task, str(thing.__module__)) if is_own_code(thing) else nullcontext()


def check_average(name: str | None, options: Mapping[str, Any]) -> None:
    """Raise an error unless the options are valid for the average of this name."""
    if name is None:
        if options:
            raise DomainwiseError(f"average_options need an average: {', '.join(AVERAGES)}")
        return
    defaults = average_options(name)
    for option, value in options.items():
        if option not in defaults:
            raise unknown_choice(f"option of {name}", option, defaults)
        kind = type(defaults[option])
        accepted = (int, float) if kind is float else kind
        if not isinstance(value, accepted) or isinstance(value, bool):
            noun = {int: "an integer", float: "a number", str: "a string"}[kind]
            raise DomainwiseError(f"average_options of {name}: {option} must be {noun}, got {value!r}")
    try:
        build_average(name, nn.Identity(), **options)
    except ValueError as error:
        raise DomainwiseError(f"average_options of {name}: {error}") from error


def find_network_builder(
    network: str | NetworkBuilder, weights: str | Path | None, batch_norm: BatchNorm | None
) -> NetworkBuilder:
    weights = str(weights or "none")
    if isinstance(network, str) and network not in NETWORKS and is_backbone(network):
        return partial(build_backbone, network, weights=weights, batch_norm=batch_norm or "live")
    if weights != "none" or batch_norm is not None:
        raise DomainwiseError(f"network {import_path(network)} does not support weights or batch_norm; backbones do")
    if isinstance(network, str) and network in NETWORKS:
        return NETWORKS[network]
    names = ", ".join((*NETWORKS, *find_plugins("network")))
    choices = f"{names}, a torchvision model, timm:NAME, package.module:function"
    builder: NetworkBuilder = _look_up("network", network, NETWORKS, list_backbones(), choices)
    _require_function("network", network, builder)
    return builder


def find_dataset_builder(dataset: AnyDataset) -> DatasetBuilder:
    if isinstance(dataset, Path) or is_path(dataset):
        return partial(image_files, str(dataset))
    if is_hub_dataset(dataset):
        name_hub_dataset(dataset)  # raises an error for a wrong name
        return partial(hugging_face_dataset, dataset)
    builder: DatasetBuilder = _look_up("dataset", dataset, DATASETS)
    _require_function("dataset", dataset, builder)
    return builder


def _require_function(kind: Kind, given: str | Callable[..., Any], function: Any) -> None:
    if not callable(function):
        raise DomainwiseError(f"{kind} {import_path(given)} is {_describe(function)}; expected a function")


def _describe(thing: Any) -> str:
    return f"the class {thing.__name__}" if isinstance(thing, type) else f"of type {type(thing).__name__}"


def is_path(dataset: AnyDataset) -> bool:
    """Return whether a dataset is given as a folder or file."""
    if isinstance(dataset, Path):
        return True
    if not isinstance(dataset, str) or dataset in DATASETS or is_hub_dataset(dataset) or ".py:" in dataset:
        return False
    if "/" in dataset or dataset.endswith(LIST_SUFFIXES):
        return True
    return os.path.exists(dataset) and dataset.lower() not in find_plugins("dataset")


def dataset_name(dataset: AnyDataset) -> str:
    if isinstance(dataset, Path) or is_path(dataset):
        return name_dataset(str(dataset))
    return name_hub_dataset(dataset) if is_hub_dataset(dataset) else import_path(dataset)


def check_name(name: str | None, dataset: AnyDataset) -> None:
    """Raise an error unless a dataset can have this name."""
    if name is None:
        return
    if isinstance(dataset, str) and dataset in DATASETS:
        raise DomainwiseError(f"dataset {dataset} keeps its name; --name is for your own data")
    if not name.strip() or name != escape_unprintable(name):
        raise DomainwiseError(f"{escape_unprintable(name)!r} cannot be the name of a dataset; choose another --name")


def keep_recorded_name(config: RunConfig) -> RunConfig:
    """Return the config with the name that its dataset has in earlier runs next to it.

    Earlier versions gave a link the name of its target. Their runs go on, and new ones are comparable with them.
    """
    if config.name is not None or not is_path(config.dataset):
        return config
    name = name_dataset(os.path.realpath(expand_home(str(config.dataset))))
    if name == config.dataset_name:
        return config
    folder = Path("runs") if config.output is None else Path(config.output)
    folders = [folder, *(folder.iterdir() if folder.is_dir() else ())]
    recorded = {StoredRun(each).config["config"].get("dataset") for each in folders}
    return dataclasses.replace(config, name=name) if name in recorded else config


def dataset_options(dataset: AnyDataset) -> dict[str, inspect.Parameter]:
    """Return the options of a dataset: its builder's parameters, without the seed and where the data is."""
    parameters = inspect.signature(find_dataset_builder(dataset)).parameters
    return {name: each for name, each in parameters.items() if name not in _CONTEXT}


def check_options(dataset: AnyDataset, options: Mapping[str, Any]) -> None:
    """Raise an error unless a dataset has these options, with values of the types that its builder declares."""
    allowed, is_own = dataset_options(dataset), is_own_code(find_dataset_builder(dataset))
    for option, value in options.items():
        if option not in allowed:
            if is_path(dataset):
                check_not_table(expand_home(str(dataset)))
            raise unknown_choice(f"option of dataset {dataset_name(dataset)}", option, allowed)
        if not is_own:
            _check_option(option, allowed[option].annotation, value)


# Parameters of a builder that are not options of the dataset.
_CONTEXT = ("seed", "data_dir", "on_progress", "on_listing")


def _check_option(name: str, annotation: Any, value: Any) -> None:
    """Raise an error unless the value of an option is of the type that its builder declares."""
    is_valid, expected = {
        int: (_is_integer, "an integer"),
        float: (_is_finite, "a finite number"),
        bool: (lambda value: isinstance(value, bool), "True or False"),
        str: (lambda value: isinstance(value, str), "a string"),
        Sequence[float]: (_are_finite, "a list of finite numbers"),
    }.get(annotation, (lambda value: True, ""))
    if not is_valid(value):
        raise DomainwiseError(f"dataset option {name} must be {expected}, got {reprlib.repr(value)}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    # Compares integers of any size exactly; NaN fails.
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _are_finite(values: Any) -> bool:
    return isinstance(values, list | tuple) and all(map(_is_finite, values))


def algorithm_name(algorithm: AnyAlgorithm) -> str:
    if isinstance(algorithm, str) and ":" not in algorithm:
        return algorithm
    return find_algorithm(algorithm).__name__.lower()


def import_path(thing: str | Callable[..., Any]) -> str:
    """Return a name as it is, and a class or function as the path it can be imported from."""
    if isinstance(thing, str):
        return thing
    return f"{thing.__module__}:{getattr(thing, '__qualname__', type(thing).__qualname__)}"


def identify_weights(weights: str | Path | None) -> str | Path | None:
    """Return the name of published weights, or the name and hash of a file, so that moving it changes nothing."""
    return fingerprint_weights(Path(weights)) if weights is not None and is_weights_file(str(weights)) else weights


def list_dataset_files(
    dataset: AnyDataset, options: Mapping[str, Any], data_dir: str | Path | None = None
) -> Listing | None:
    """Return the files of a dataset before any of them is read; None if it is not made of image files."""
    check_options(dataset, options)
    if is_hub_dataset(dataset):
        unused = ("image_size", "skip_broken")
        return list_hub_dataset(dataset, **{name: value for name, value in options.items() if name not in unused})
    if is_path(dataset):
        return list_images(str(dataset))
    return PUBLISHED[dataset].load_listing(data_dir) if isinstance(dataset, str) and dataset in PUBLISHED else None


def build_dataset(
    dataset: AnyDataset,
    options: Mapping[str, Any],
    *,
    seed: int,
    data_dir: str | Path | None = None,
    on_progress: OnProgress = ignore_progress,
    on_listing: OnListing = ignore_listing,
) -> Dataset:
    """Build a dataset from the seed and nothing else that differs between runs."""
    name, builder = dataset_name(dataset), find_dataset_builder(dataset)
    check_options(dataset, options)
    context = {"data_dir": data_dir, "on_progress": on_progress, "on_listing": on_listing}
    accepted = {key: value for key, value in context.items() if key in inspect.signature(builder).parameters}
    failure = f"dataset {name} could not be built"
    try:
        with blame_own_code(builder, failure):
            data = builder(seed=seed, **accepted, **options)
    except TypeError as error:
        raise DomainwiseError(f"{failure}: {error}") from error
    if not isinstance(data, Dataset):
        raise DomainwiseError(f"{failure}: expected a domainwise.data.Dataset, got {type(data).__name__}")
    return data


class DatasetCache:
    """Builds the dataset of a config, and keeps the last one.

    Consecutive runs mostly share their data, and building it can take longer than a short run.
    """

    def __init__(self) -> None:
        self._key: object = None
        self._dataset: Dataset | None = None

    def build(
        self, config: RunConfig, on_progress: OnProgress = ignore_progress, on_listing: OnListing = ignore_listing
    ) -> Dataset:
        """Return the dataset of a config under its name there; arguments as for `build_dataset`."""
        source = os.path.realpath(str(config.dataset)) if is_path(config.dataset) else config.dataset
        folder = os.path.realpath(data_folder(config.data_dir))
        key = (source, config.dataset_name, folder, config.trial_seed, repr(sorted(config.dataset_options.items())))
        if self._dataset is None or key != self._key:
            self._dataset = build_dataset(
                config.dataset,
                config.dataset_options,
                seed=config.trial_seed,
                data_dir=config.data_dir,
                on_progress=on_progress,
                on_listing=on_listing,
            )
            if config.name is not None:
                self._dataset = dataclasses.replace(self._dataset, name=config.name)
            self._key = key
        return self._dataset


def resolve_config(config: RunConfig, dataset: Dataset) -> tuple[RunConfig, Roles]:
    """Fill in everything left open: the defaults of the method on the dataset, of the dataset, and of the method."""
    parts = assign_roles(dataset, config.train_domains, config.test_domains)
    config = _apply_run_defaults(config, config.steps or dataset.steps)
    hparams_class = config.algorithm_class().Hparams
    own = {name: setting.default for name, setting in hparams_class.for_dataset(dataset.name).items()}
    defaults = {**dataset.defaults, **own}
    fields = hparams_class.fields()
    hparams = hparams_class.build({name: defaults[name] for name in defaults if name in fields}, **config.hparams)
    network = config.network if config.network is not None else dataset.network
    weights, batch_norm = _resolve_weights(config, network, dataset)
    resolved = dataclasses.replace(
        config,
        network=network,
        weights=weights,
        batch_norm=batch_norm,
        augment=dataset.is_augmented if config.augment is None else config.augment,
        hparams=hparams.as_dict(),
        train_domains=parts.train,
        test_domains=parts.test,
        steps=config.steps or dataset.steps,
        record_every=config.record_every or dataset.record_every,
        batch_size=config.batch_size or int(defaults.get("batch_size", 32)),
    )
    assert resolved.steps is not None
    if resolved.lr_warmup >= resolved.steps:
        raise DomainwiseError(
            f"lr_warmup must be below the number of steps, {resolved.steps}, got {resolved.lr_warmup}"
        )
    return dataclasses.replace(resolved, average_options=_resolve_average_options(resolved)), parts


def _apply_run_defaults(config: RunConfig, steps: int) -> RunConfig:
    """Fill in the settings that belong to the method."""
    defaults = {**config.algorithm_class().run_defaults, "batch_norm": None}  # only backbones have that choice
    options = defaults.pop("average_options", {})
    if config.average is None and "start" in options:
        # The method's own start may come too late for a short run.
        defaults["average_options"] = {**options, "start": min(options["start"], default_sma_start(steps))}
    return dataclasses.replace(config, **{name: value for name, value in defaults.items() if not getattr(config, name)})


def _resolve_average_options(config: RunConfig) -> dict[str, Any]:
    """Return the options of the average, with defaults that fit the number of steps."""
    if config.average is None:
        return {}
    assert config.steps is not None
    fitting = {"sma": {"start": default_sma_start(config.steps)}, "swad": {"every": default_swad_every(config.steps)}}
    return {**average_options(config.average), **fitting.get(config.average, {}), **config.average_options}


@dataclass(frozen=True)
class RunSeeds:
    """The seeds of a run, besides that of its data.

    Args:
        weights: initial weights of the network.
        batches: the images of each batch.
        augmentation: how they are augmented.
        dropout: what the network itself draws during an update.
        method: everything that the method draws itself.
    """

    weights: int
    batches: int
    augmentation: int
    dropout: int
    method: int


def derive_seeds(config: RunConfig, dataset: Dataset) -> RunSeeds:
    """Return the seeds of a resolved config.

    With common random numbers, methods differ in nothing but what they do: weights, batches, augmentation and dropout
    depend on the dataset, its domains and the trial only. DomainBed has one seed for everything, and another one for
    each run.
    """
    tested = [dataset.index(name) for name in config.test_domains]
    run = (config.algorithm_name, tested, config.hparams_seed, config.trial_seed)
    task = (config.dataset_name, [dataset.index(name) for name in config.train_domains], tested, config.trial_seed)
    if config.seeding == "domainbed":
        seed = seed_hash(config.dataset_name, *run)
        weights = seed_hash("weights", *task) if config.shared_start else seed
        return RunSeeds(weights, seed, seed, seed, seed)
    return RunSeeds(
        weights=seed_hash("weights", *task),
        batches=seed_hash("batches", *task),
        augmentation=seed_hash("augmentation", *task),
        dropout=seed_hash("dropout", *task),
        method=seed_hash("method", *task, *run),
    )


def _resolve_weights(
    config: RunConfig, network: str | NetworkBuilder, dataset: Dataset
) -> tuple[str | Path | None, BatchNorm | None]:
    """Return a backbone's weights and batch norm: pretrained and frozen, if the dataset's defaults ask for that."""
    if not isinstance(network, str) or network in NETWORKS or not is_backbone(network):
        return config.weights, config.batch_norm
    default = "pretrained" if network.startswith(TIMM) and dataset.weights != "none" else dataset.weights
    weights = config.weights or default
    default_batch_norm = config.algorithm_class().run_defaults.get("batch_norm")
    return weights, config.batch_norm or default_batch_norm or ("live" if weights == "none" else "frozen")


def _look_up(
    kind: Kind, given: Any, table: Mapping[str, Any], other_names: Sequence[str] = (), choices: str = ""
) -> Any:
    """Return what `given` names in the table, as "package.module:Name" or as the entry point of an installed package.

    A class or function is returned as it is.

    Args:
        other_names: names from other tables, to suggest the nearest spelling.
        choices: a description of the choices, if there are too many to list.
    """
    if not isinstance(given, str):
        return given
    if given in table:
        return table[given]
    if ":" in given:
        return import_name(kind, given)
    plugins = find_plugins(kind)
    if given.lower() in plugins:
        return plugins[given.lower()].load()
    names = dict.fromkeys((*table, *plugins))
    choices = choices or f"{', '.join(names)}, or package.module:{'Class' if kind == 'algorithm' else 'function'}"
    raise unknown_choice(kind, given, (*names, *other_names), choices)
