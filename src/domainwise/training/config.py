"""What a run is: everything that its outcome depends on, checked, and written down in full."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from domainwise.algorithms import ALGORITHMS, Algorithm
from domainwise.data import Dataset
from domainwise.data.dataset import Roles, assign_roles
from domainwise.data.paths import OnProgress, ignore_progress
from domainwise.errors import DomainwiseError, unknown
from domainwise.networks import NETWORKS, BatchNorm, NetworkBuilder, backbone, is_backbone, known_backbones
from domainwise.networks.backbones import TIMM
from domainwise.networks.weights import is_file, named_by_content
from domainwise.seeds import seed_hash
from domainwise.training.registry import AnyDataset, built, dataset_builder, dataset_name, found, name_of

Evaluate = Literal["selection", "all"]
Precision = Literal["fp32", "bf16"]
DeviceName = Literal["auto", "cpu", "cuda", "mps"]
LoggerName = Literal["tensorboard", "wandb", "mlflow"]
_CHOICES = {
    "batch_norm": BatchNorm,
    "evaluate": Evaluate,
    "precision": Precision,
    "device": DeviceName,
    "logger": LoggerName,
}


@dataclass(frozen=True)
class RunConfig:
    """One training run. None means: what suits the dataset.

    Args:
        dataset, algorithm, network: a name from the library's tables, one's own builder or class, or where to import it
            from, as "package.module:Name". A dataset may also be a folder of images or a CSV file, a network any
            torchvision model, or `timm:` and a timm model.
        weights, batch_norm: of a torchvision or timm model; see `domainwise.networks.backbone`.
        augment: whether to train on random views of the images.
        dataset_options: keyword arguments of the dataset's builder.
        hparams: hyperparameters of the method.
        train_domains, test_domains: by name; see `domainwise.data.dataset.assign_roles`.
        trial_seed: draws the data's splits (and the embedded data itself), so that methods see the same.
        hparams_seed: which draw of a search the hyperparameters are; 0 for none. It is recorded and seeds the run.
        evaluate: `selection` measures every holdout, and the main part of validation and test domains; `all` the rest.
        logger: where records also go; see `domainwise.training.tracking`.
        keep_perturbations: whether the folder keeps the perturbation at every record.
        data_dir, device, threads, output, logger, keep_perturbations: where and how it runs. They are not part of what
            the run is.
    """

    dataset: AnyDataset = "silhouettes"
    algorithm: str | type[Algorithm] = "mat"
    network: str | NetworkBuilder | None = None
    weights: str | Path | None = None
    batch_norm: BatchNorm | None = None
    augment: bool | None = None
    dataset_options: Mapping[str, Any] = field(default_factory=dict)
    hparams: Mapping[str, Any] = field(default_factory=dict)
    train_domains: tuple[str, ...] = ()
    test_domains: tuple[str, ...] = ()
    trial_seed: int = 0
    hparams_seed: int = 0
    steps: int | None = None
    record_every: int | None = None
    batch_size: int | None = None
    dropout: float = 0.0
    evaluate: Evaluate = "selection"
    precision: Precision = "fp32"
    data_dir: str | Path | None = None
    device: DeviceName = "auto"
    threads: int | None = None
    output: str | Path | None = None
    logger: LoggerName | None = None
    keep_perturbations: bool = False

    def __post_init__(self) -> None:
        for name in ("steps", "record_every", "batch_size", "threads"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise DomainwiseError(f"{name} must be a whole number of at least 1, not {value!r}")
        if not 0 <= self.dropout < 1:
            raise DomainwiseError(f"dropout must be at least 0 and below 1, not {self.dropout}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) is not None and getattr(self, name) not in get_args(choices):
                raise unknown(name, str(getattr(self, name)), get_args(choices))
        dataset_builder(self.dataset)
        self.algorithm_class().Hparams.of(**self.hparams)
        if self.network is not None:
            self.network_builder()

    @classmethod
    def of(cls, **values: Any) -> "RunConfig":
        """A config from a mapping that may hold misspelt names."""
        names = [item.name for item in dataclasses.fields(cls)]
        for name in values:
            if name not in names:
                raise unknown("setting", name, names)
        return cls(**values)

    def algorithm_class(self) -> type[Algorithm]:
        return found("algorithm", self.algorithm, ALGORITHMS)

    def network_builder(self) -> NetworkBuilder:
        assert self.network is not None
        weights = str(self.weights or "none")
        if isinstance(self.network, str) and is_backbone(self.network):
            return partial(backbone, self.network, weights=weights, batch_norm=self.batch_norm or "live")
        if weights != "none" or self.batch_norm is not None:
            raise DomainwiseError(f"network {name_of(self.network)} takes no weights and no batch_norm: backbones do")
        shown = f"{', '.join(NETWORKS)}, a torchvision model, timm:NAME, package.module:function"
        return found("network", self.network, NETWORKS, known_backbones(), shown)

    @property
    def dataset_name(self) -> str:
        return dataset_name(self.dataset)

    @property
    def algorithm_name(self) -> str:
        """As in records: a name of the table, or one's own class in lower case."""
        if isinstance(self.algorithm, str) and self.algorithm in ALGORITHMS:
            return self.algorithm
        return self.algorithm_class().__name__.lower()

    def identity(self) -> dict[str, Any]:
        """What the run is, ready for JSON: every setting but those of where and how."""
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        for name in ("data_dir", "device", "threads", "output", "logger", "keep_perturbations"):
            del values[name]
        values["dataset"] = self.dataset_name
        values["algorithm"] = name_of(self.algorithm)
        values["network"] = None if self.network is None else name_of(self.network)
        if self.weights is not None and is_file(str(self.weights)):
            values["weights"] = named_by_content(Path(self.weights))
        values["hparams"] = dict(values["hparams"])
        values["dataset_options"] = dict(values["dataset_options"])
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def folder(self) -> Path:
        """Where the run is kept: `output`, or a name made of what it is."""
        if self.output is not None:
            return Path(self.output)
        name = self.dataset_name.replace(":", ".").replace("/", ".")
        short = f"{seed_hash(sorted(map(str, self.identity().items()))):08x}"
        return Path("runs") / f"{name}-{self.algorithm_name}-trial{self.trial_seed}-{short}"


def build_dataset(config: RunConfig, on_progress: OnProgress = ignore_progress) -> Dataset:
    """The run's dataset, made from its trial seed so that every method sees the same images."""
    return built(
        config.dataset,
        config.dataset_options,
        seed=config.trial_seed,
        data_dir=config.data_dir,
        on_progress=on_progress,
    )


def resolved(config: RunConfig, dataset: Dataset) -> tuple[RunConfig, Roles]:
    """The config with nothing left open: the dataset's defaults and every hyperparameter written out."""
    parts = assign_roles(dataset, config.train_domains, config.test_domains)
    hparams_class = config.algorithm_class().Hparams
    suited = {name: value for name, value in dataset.defaults.items() if name in hparams_class.names()}
    hparams = hparams_class.of(**{**suited, **config.hparams})
    network = config.network if config.network is not None else dataset.network
    weights, batch_norm = _suited_start(config, network, dataset)
    full = dataclasses.replace(
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
        batch_size=config.batch_size or int(dataset.defaults.get("batch_size", 32)),
    )
    return full, parts


def run_seed(config: RunConfig, dataset: Dataset) -> int:
    """The seed of everything random in the run but its data."""
    tested = [dataset.index(name) for name in config.test_domains]
    return seed_hash(config.dataset_name, config.algorithm_name, tested, config.hparams_seed, config.trial_seed)


def _suited_start(
    config: RunConfig, network: str | NetworkBuilder, dataset: Dataset
) -> tuple[str | Path | None, BatchNorm | None]:
    """Weights and batch norm of a backbone where nothing is said: pretrained and frozen, if the dataset wants that."""
    if not isinstance(network, str) or not is_backbone(network):
        return config.weights, config.batch_norm
    suited = "pretrained" if network.startswith(TIMM) and dataset.weights != "none" else dataset.weights
    weights = config.weights or suited
    return weights, config.batch_norm or ("live" if weights == "none" else "frozen")
