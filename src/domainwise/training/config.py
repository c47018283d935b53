"""`RunConfig`: everything that the result of a run depends on, and where and how it runs.

Every setting is one field with its help text, choices and bounds. The options of `domainwise train` and `domainwise
sweep` and the table in docs/training.md are generated from the fields. Imports no torch.
"""

import dataclasses
import math
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from domainwise.errors import DomainwiseError, unknown_choice
from domainwise.hparams.fields import largest
from domainwise.perturbations.radius import split_radius
from domainwise.seeds import seed_hash
from domainwise.selection.metrics import parse_metrics
from domainwise.storage.run_folder import Keep

if TYPE_CHECKING:
    from domainwise.algorithms import Algorithm
    from domainwise.networks import NetworkBuilder

Augment = Literal[True, False, "strong"]
BatchNorm = Literal["frozen", "live"]
Evaluate = Literal["selection", "all"]
Seeding = Literal["common", "domainbed"]
Precision = Literal["fp32", "bf16", "fp16"]
DeviceName = Literal["auto", "cpu", "cuda", "mps"]
LoggerName = Literal["tensorboard", "wandb", "mlflow"]
AverageName = Literal["sma", "ema", "swad"]
LrSchedule = Literal["constant", "plateau", "cosine"]


def setting(
    default: Any,
    help: str,
    *options: str,
    choices: Any = None,
    low: float | None = None,
    below: float | None = None,
    high: int = 2**31 - 1,
    is_shared: bool = False,
    is_identity: bool = True,
    is_option: bool = True,
) -> Any:
    """Define a field of `RunConfig`.

    Args:
        options: its names on the command line, if they are not the field's own name.
        choices: a Literal type.
        low, below: bounds, inclusive and exclusive.
        high: inclusive bound of an integer.
        is_shared: all runs of a sweep have the same value.
        is_identity: False for where and how a run computes, which does not change what it is.
        is_option: False for what only a program sets.
    """
    metadata = {
        "help": help,
        "options": options,
        "choices": get_args(choices),
        "low": low,
        "below": below,
        "high": high,
        "is_shared": is_shared,
        "is_identity": is_identity,
        "is_option": is_option,
    }
    if default is dict:
        return dataclasses.field(default_factory=dict, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class RunConfig:
    """Settings of one training run. None means the dataset's default.

    `dataset`, `algorithm` and `network` also take your own builder or class. The other settings are described by the
    `help` in each field's metadata; `domainwise train --help` and docs/training.md show them.
    """

    dataset: str | Path | Callable[..., Any] = setting(
        "silhouettes",
        "Dataset name (see `domainwise data list`), folder root/domain/class/image, CSV file with columns path, label, "
        "domain, JSON file {domain: {class: [path]}}, hf:owner/name, or package.module:function.",
    )
    algorithm: "str | type[Algorithm]" = setting(
        "mat", "Method name (see `domainwise algorithms`) or package.module:Class."
    )
    network: "str | NetworkBuilder | None" = setting(
        None,
        "torchvision model (resnet18, mobilenet_v2, ...), timm:NAME, small_cnn, mnist_cnn, mlp, or "
        "package.module:function.",
        "--network",
        "--backbone",
        is_shared=True,
    )
    weights: str | Path | None = setting(
        None,
        "Initial weights of a backbone: a file (state dict or safetensors), a torchvision name (IMAGENET1K_V1), "
        "`pretrained` (timm) or `none`.",
        is_shared=True,
    )
    batch_norm: BatchNorm | None = setting(
        None,
        "Batch norm statistics of a backbone: `frozen` (default with weights) or `live`.",
        choices=BatchNorm,
        is_shared=True,
    )
    freeze: tuple[str, ...] = setting(
        (),
        "Do not train this part of the featurizer: the name of a layer or parameter, with * for any characters, or "
        "`all` (train only the classifier). Repeatable.",
        is_shared=True,
    )
    layer_decay: float | None = setting(
        None,
        "Layer-wise learning-rate decay: the learning rate of each stage or transformer block is this factor times "
        "that of the next; the classifier has the full rate.",
        low=0,
        below=1,
        is_shared=True,
    )
    lora: int | None = setting(
        None,
        "Train low-rank adapters of this rank (LoRA) and the classifier instead of the whole network; needs peft.",
        low=1,
        is_shared=True,
    )
    lora_targets: tuple[str, ...] = setting(
        (),
        "Linear layer that gets an adapter, named as for --freeze (default: those of attention). Repeatable.",
        "--lora-target",
        is_shared=True,
    )
    gradient_checkpointing: bool = setting(
        False,
        "Recompute activations in the backward pass instead of keeping them: less memory, more time, the same results.",
        "--gradient-checkpointing",
        is_shared=True,
        is_identity=False,
    )
    compile: bool = setting(
        False, "Compile the network with torch.compile; rounding may differ.", "--compile", is_shared=True
    )
    augment: bool | Literal["strong"] | None = setting(
        None,
        "Augment training images (default for photographs); `--augment strong` for TrivialAugment, `--no-augment` for "
        "none.",
        choices=Augment,
        is_shared=True,
    )
    dataset_options: Mapping[str, Any] = setting(
        dict, "Dataset option as name=value. Repeatable.", "--dataset-option", is_shared=True
    )
    hparams: Mapping[str, Any] = setting(dict, "Hyperparameter as name=value. Repeatable.", "--hparam", "-H")
    train_domains: tuple[str, ...] = setting(
        (), "Train on this domain only. Repeatable.", "--train-domain", is_shared=True
    )
    test_domains: tuple[str, ...] = setting((), "Hold out this domain and test on it. Repeatable.", "--test-domain")
    trial_seed: int = setting(0, "Seed of the trial: splits, batches, initial weights, synthetic data.")
    hparams_seed: int = setting(0, "Hyperparameter sample index (0 = defaults).")
    seeding: Seeding = setting(
        "common",
        "Random numbers of a trial: `common` (methods and draws share initial weights, batches, augmentation and "
        "dropout) or `domainbed` (every run has its own).",
        choices=Seeding,
        is_shared=True,
    )
    steps: int | None = setting(None, "Number of updates.", low=1, is_shared=True)
    record_every: int | None = setting(None, "Number of updates between records.", low=1, is_shared=True)
    record_first: bool = setting(
        False, "Also record after the first update, when there is hardly anything to see.", is_identity=False
    )
    batch_size: int | None = setting(None, "Batch size per domain.", low=1, is_shared=True)
    dropout: float = setting(0.0, "Dropout rate before the classifier.", low=0, below=1, is_shared=True)
    lr_schedule: LrSchedule | None = setting(
        None,
        "Learning rate: `constant` (default), `cosine` (falls to 0 along half a cosine) or `plateau` (divided by 10 "
        "when the holdout loss has not fallen for two records; the third time ends training).",
        choices=LrSchedule,
        is_shared=True,
    )
    lr_warmup: int = setting(
        0, "Number of updates in which the learning rate first rises linearly (warm-up).", low=0, is_shared=True
    )
    average: AverageName | None = setting(
        None,
        "Evaluate, select and keep an average of the weights: `sma`, `ema` or `swad`. Training does not change.",
        choices=AverageName,
        is_shared=True,
    )
    average_options: Mapping[str, Any] = setting(
        dict, "Option of the average as name=value, such as start=200. Repeatable.", "--average-option", is_shared=True
    )
    sam: bool = setting(
        False, "Step with the gradient at the worst weights nearby (SAM); needs two passes.", "--sam", is_shared=True
    )
    sagm: bool = setting(False, "The same with SAGM's rule.", "--sagm", is_shared=True)
    sam_radius: float = setting(0.05, "Radius of SAM and SAGM (rho).", low=0, below=math.inf, is_shared=True)
    sagm_alpha: float = setting(0.001, "alpha of SAGM.", low=0, below=math.inf, is_shared=True)
    probe_steps: int | None = setting(
        None,
        "First fit the classifier on frozen features for this many steps (linear probing, then fine-tuning).",
        low=1,
        is_shared=True,
    )
    probe_lr: float = setting(1e-3, "Learning rate of the probe.", low=0, below=math.inf, is_shared=True)
    shared_start: bool = setting(
        False,
        "Give all runs of a dataset, test domain and trial the same initial weights and keep these, for `domainwise "
        "average`.",
        "--shared-start",
        is_shared=True,
    )
    evaluate: Evaluate = setting(
        "selection",
        "What to evaluate: `selection` (every holdout, and all of the validation and test domains) or `all`.",
        choices=Evaluate,
        is_shared=True,
    )
    attack_radius: float | str | None = setting(
        None,
        "Also evaluate the training domains' holdouts under a domain-wise attack of this l2 radius: a number, or "
        "'2/255 rms' (root mean square per pixel). Training does not change.",
        is_shared=True,
    )
    metrics: tuple[str, ...] = setting(
        (),
        "Also record this metric: macro_f1, balanced_accuracy, worst_class, ece or confusion. Repeatable, or separated "
        "by commas. Training does not change.",
        is_shared=True,
    )
    precision: Precision = setting(
        "fp32",
        "Floating-point precision: fp32, bf16, or fp16 (CUDA only, with a scaled loss).",
        choices=Precision,
        is_shared=True,
    )
    name: str | None = setting(
        None, "Name of your own dataset in records and folders (default: that of its folder, file or function)."
    )
    data_dir: str | Path | None = setting(
        None, "Folder that contains the datasets (default: $DOMAINWISE_DATA or the user cache).", is_identity=False
    )
    device: DeviceName = setting("auto", "Device: auto, cpu, cuda or mps.", choices=DeviceName, is_identity=False)
    threads: int | None = setting(None, "Number of CPU threads.", low=1, high=1024, is_identity=False)
    output: str | Path | None = setting(
        None, "Run folder (default: a new name in runs/).", "--output", "-o", is_identity=False
    )
    logger: LoggerName | None = setting(
        None, "Also log records to tensorboard, wandb or mlflow.", choices=LoggerName, is_identity=False
    )
    keep_perturbations: bool = setting(False, "Save the perturbation at every record.", is_identity=False)
    keep: Keep = setting(
        "both",
        "Files of a finished run to keep: the `best` weights, the `last`, `both`, or `all` (also the checkpoint).",
        choices=Keep,
        is_identity=False,
    )
    refit: str | Path | None = setting(
        None,
        "Run whose learning rates are repeated on all images of the training domains, holdouts included.",
        is_option=False,
    )
    soup: str | None = setting(
        None, "How the weights were averaged from those of other runs, by `domainwise average`.", is_option=False
    )
    stop_after: int | None = setting(
        None, "Pause after this many updates; the run can resume.", low=1, is_identity=False, is_option=False
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            has_limits = field.metadata["choices"] or field.metadata["low"] is not None
            if has_limits and getattr(self, field.name) is not None:
                _check_value(field, getattr(self, field.name))
        if self.attack_radius is not None:
            check_radius("attack_radius", self.attack_radius)
        object.__setattr__(self, "metrics", parse_metrics(self.metrics))
        from domainwise.training import registry

        object.__setattr__(self, "algorithm", lower_method(self.algorithm))
        registry.find_dataset_builder(self.dataset)
        registry.check_name(self.name, self.dataset)
        for name, value in self.dataset_options.items():
            _check_plain(f"dataset option {name}", value)
        self.algorithm_class().Hparams.build(**self.hparams)
        if self.network is not None:
            self.network_builder()
        average = self.average or self.algorithm_class().run_defaults.get("average")
        registry.check_average(average, self.average_options)
        for name in ("freeze", "lora_targets"):
            if isinstance(getattr(self, name), str):
                object.__setattr__(self, name, (getattr(self, name),))
        if self.lora is not None and self.freeze:
            raise DomainwiseError(
                "--lora and --freeze cannot be used together: with adapters, the backbone is frozen anyway"
            )
        if self.lora is None and self.lora_targets:
            raise DomainwiseError("--lora-target needs --lora and a rank, such as --lora 8")
        if "all" in self.freeze and self.layer_decay is not None:
            raise DomainwiseError("--layer-decay has no effect with --freeze all; leave one of them out")
        if self.compile and self.gradient_checkpointing:
            raise DomainwiseError("--compile and --gradient-checkpointing cannot be used together")
        if self.sam and self.sagm:
            raise DomainwiseError("--sam and --sagm cannot be used together")

    @classmethod
    def of(cls, **values: Any) -> "RunConfig":
        """Create a config from settings whose names may be misspelled."""
        names = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            if name not in names:
                raise unknown_choice("setting", name, names)
        return cls(**values)

    def algorithm_class(self) -> "type[Algorithm]":
        from domainwise.training import registry

        return registry.find_algorithm(self.algorithm)

    def network_builder(self) -> "NetworkBuilder":
        from domainwise.training import registry

        assert self.network is not None
        return registry.find_network_builder(self.network, self.weights, self.batch_norm)

    @property
    def dataset_name(self) -> str:
        """The name in records: as given, the dataset's, a folder's or file's, or where a builder is imported from."""
        from domainwise.training import registry

        return self.name or registry.dataset_name(self.dataset)

    @property
    def algorithm_name(self) -> str:
        """The name in records: the method's, or that of your own class in lower case."""
        from domainwise.training import registry

        return registry.algorithm_name(self.algorithm)

    def identity(self) -> dict[str, Any]:
        """Return what the run is, ready for JSON: every setting except where and how it computes."""
        from domainwise.training import registry

        values = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.metadata["is_identity"]
        }
        values["dataset"] = self.dataset_name
        del values["name"]
        values["algorithm"] = registry.import_path(self.algorithm)
        values["network"] = None if self.network is None else registry.import_path(self.network)
        values["weights"] = registry.identify_weights(self.weights)
        values["refit"] = None if self.refit is None else Path(self.refit).resolve().name
        values["hparams"] = dict(self.hparams)
        values["dataset_options"] = dict(self.dataset_options)
        values["average_options"] = dict(self.average_options)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def record_steps(self) -> list[int]:
        """Return the steps of a resolved config that have a record, counted from 0; the last is always among them."""
        assert self.steps is not None
        assert self.record_every is not None
        first = 0 if self.record_first else self.record_every
        return sorted({*range(first, self.steps, self.record_every), self.steps - 1})

    def folder(self) -> Path:
        """Return the run folder: `output`, or a name that depends on what the run is."""
        if self.output is not None:
            return Path(self.output)
        name = self.dataset_name.replace(":", ".").replace("/", ".")
        identity = self.identity()
        # Folders have the names that they had before there were these settings.
        for setting_name, default in {**newer_defaults(), "seeding": "domainbed"}.items():
            if identity[setting_name] == default:
                del identity[setting_name]
        identity["hparams"] = self.algorithm_class().Hparams.without_newer(identity["hparams"])
        short = f"{seed_hash(sorted(map(str, identity.items()))):08x}"
        return Path("runs") / f"{name}-{self.algorithm_name}-trial{self.trial_seed}-{short}"


# The settings that are options on the command line.
OPTION_SETTINGS = tuple(field.name for field in dataclasses.fields(RunConfig) if field.metadata["is_option"])


# Settings that older runs do not have. Their defaults are what these runs did.
_NEWER = (
    *("attack_radius", "average", "average_options", "sam", "sagm", "sam_radius", "sagm_alpha"),
    *("probe_steps", "probe_lr", "shared_start", "lr_schedule", "refit", "soup", "metrics"),
    *("freeze", "layer_decay", "lora", "lora_targets", "compile", "lr_warmup"),
)


def newer_defaults() -> dict[str, Any]:
    """Return the values that settings have in runs from before there were these settings."""
    fields = {field.name: field for field in dataclasses.fields(RunConfig)}
    defaults = {name: fields[name].default for name in _NEWER}
    # Ready for JSON, as an identity is.
    return {
        name: {} if default is dataclasses.MISSING else list(default) if isinstance(default, tuple) else default
        for name, default in defaults.items()
    }


def option_names(field: "dataclasses.Field[Any]") -> tuple[str, ...]:
    """Return a setting's names on the command line."""
    return field.metadata["options"] or (f"--{field.name.replace('_', '-')}",)


def choice_names(field: "dataclasses.Field[Any]") -> list[str]:
    """Return the values that a setting may have as they are on the command line."""
    return [str(choice).lower() for choice in field.metadata["choices"]]


def lower_method(method: Any) -> Any:
    """Return the name of a method in lower case; a class or package.module:Class as it is."""
    return method.lower() if isinstance(method, str) and ":" not in method else method


def check_radius(name: str, value: Any) -> None:
    """Raise an error unless the value is a radius: a number, or a string such as `2/255 rms`."""
    try:
        number, _ = split_radius(value, name)
    except ValueError as error:
        raise DomainwiseError(str(error)) from None
    if number > largest(number):
        raise DomainwiseError(f"{name} must be at most {largest(number):g}, got {value!r}")


def _check_value(field: "dataclasses.Field[Any]", value: Any) -> None:
    choices, low, below = (field.metadata[key] for key in ("choices", "low", "below"))
    if choices and value not in choices:
        raise unknown_choice(field.name, str(value), choice_names(field))
    if low is None:
        return
    is_integer = below is None
    is_number = isinstance(value, int if is_integer else (int, float)) and not isinstance(value, bool)
    # Written so that not a number is out of bounds.
    if not is_number or not value >= low or (below is not None and not value < below):
        kind = "an integer" if is_integer else "a number"
        limit = "" if below is None else f" and below {below:g}"
        raise DomainwiseError(f"{field.name} must be {kind} of at least {low:g}{limit}, got {value!r}")
    high = field.metadata["high"] if is_integer else largest(value)
    if value > high:
        raise DomainwiseError(f"{field.name} must be at most {high:g}, got {value!r}")


_MAX_DEPTH = 10


def _check_plain(name: str, value: Any, depth: int = 0) -> None:
    """Raise an error unless a run folder can store the value: what JSON has, with numbers that are read back equal."""
    if depth > _MAX_DEPTH:
        raise DomainwiseError(f"{name} is nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            _check_plain(name, each, depth + 1)
    elif isinstance(value, int) and abs(value) >= 2**63:
        raise DomainwiseError(f"{name} is an integer of more than 64 bits")
    elif isinstance(value, float) and not math.isfinite(value):
        raise DomainwiseError(f"{name} must be finite, got {value}")
    elif value is not None and not isinstance(value, bool | int | float | str):
        raise DomainwiseError(
            f"{name} must be a number, a string, True or False, or a list of these, got {reprlib.repr(value)}"
        )
