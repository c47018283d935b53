"""What each file of a run or a sweep must contain. Files may come from anywhere, so each is checked where it is read.

A parser returns plain dicts and lists, or raises a ValueError that names the field and what was expected there. The
defaults below only say which keys may be missing.
"""

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from domainwise.escaping import escape_unprintable

SCHEMA = 1
Record = dict[str, Any]

# What a column of integers in a table can hold.
_Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Positive = Annotated[int, Meta(ge=1, le=2**63 - 1)]
_Accuracy = Annotated[float, Meta(ge=0, le=1)]
_Name = Annotated[str, Meta(min_length=1)]
# The largest input that a network is built for when a run is opened: 16,384 x 16,384 pixels.
_MAX_INPUT = 3 * 2**28


class NotJson(ValueError):
    """The content is not JSON, perhaps because it was cut off."""


class _Metrics(Struct, kw_only=True):
    """Metrics of a record besides accuracy, each by domain and part; a confusion matrix has one row per true class."""

    macro_f1: dict[str, dict[str, _Accuracy | None]] = {}
    balanced_accuracy: dict[str, dict[str, _Accuracy | None]] = {}
    worst_class: dict[str, dict[str, _Accuracy | None]] = {}
    ece: dict[str, dict[str, _Accuracy | None]] = {}
    confusion: dict[str, dict[str, list[list[_Natural]]]] = {}


class _Record(Struct, kw_only=True):
    """A line of records.jsonl."""

    schema: Literal[1]
    step: _Natural
    dataset: str
    algorithm: str
    trial_seed: _Integer
    hparams_seed: _Integer
    train_domains: list[str]
    validation_domains: list[str]
    test_domains: list[str]
    accuracy: dict[str, dict[str, _Accuracy | None]]
    metrics: _Metrics = msgspec.field(default_factory=_Metrics)
    roles: str | None = None
    hparams: dict[str, Any] = {}
    loss: float | None = None
    seconds_per_step: float | None = None
    terms: dict[str, float | None] = {}
    lr_factor: float = 1.0
    perturbation: dict[str, Any] = {}


class _Settings(Struct, kw_only=True):
    """The settings of `RunConfig` in a config; those that are not listed are checked when one is built from them."""

    dataset: _Name = "-"
    algorithm: _Name = "-"
    network: _Name | None = None
    weights: str | None = None
    batch_norm: str | None = None
    augment: bool | str | None = None
    hparams: dict[str, Any] = {}
    dataset_options: dict[str, Any] = {}
    train_domains: list[str] = []
    test_domains: list[str] = []
    trial_seed: _Integer = 0
    hparams_seed: _Integer = 0
    seeding: Literal["common", "domainbed"] = "domainbed"
    steps: _Positive | None = None
    record_every: _Positive | None = None
    batch_size: _Positive | None = None
    average: str | None = None
    metrics: list[str] = []
    freeze: list[str] = []
    lora_targets: list[str] = []
    refit: str | None = None
    soup: str | None = None


class _Data(Struct, kw_only=True):
    """What a config says about the data of the run."""

    classes: Annotated[list[str], Meta(min_length=1)] = []
    input_shape: Annotated[list[_Positive], Meta(min_length=1, max_length=4)] = []
    train_domains: list[str] = []
    validation_domains: list[str] = []
    test_domains: list[str] = []
    domain_sizes: list[_Natural] = []
    chance: _Accuracy | None = None
    revision: str | None = None


class _Config(Struct, kw_only=True):
    """config.json."""

    schema: Literal[1] = 1
    config: _Settings
    data: _Data


class _PlanLine(Struct, kw_only=True):
    """A line of plan.jsonl."""

    # The name of a folder, not a way out of the sweep folder.
    run: Annotated[str, Meta(pattern=r"^(?!\.{1,2}$)[^/\\\x00]+$", max_length=255)]
    dataset: str
    algorithm: str
    test_domains: list[str]
    trial_seed: _Integer
    hparams_seed: _Integer


class _Stop(Struct):
    """stopped.json."""

    step: _Natural
    reason: str


class _Spec(Struct, kw_only=True):
    """sweep.toml."""

    datasets: list[str] = []
    algorithms: list[str] = []
    selection: list[str] = []
    draws: _Positive = 1
    trials: _Positive = 1
    space: str = ""
    test_domains: list[str] = []
    hparams: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    grid: dict[str, list[Any]] = {}
    until_decided: bool = False
    search: str = "random"


# What opening a run needs. Reports make do without.
_TO_OPEN: Mapping[str, Sequence[str]] = {
    "config": (
        *("dataset", "algorithm", "network", "hparams", "dataset_options"),
        *("train_domains", "test_domains", "trial_seed", "batch_size"),
    ),
    "data": ("classes", "input_shape", "train_domains"),
}


def parse_record(line: bytes) -> Record:
    return check_record(_decode(line))


def check_record(record: Any) -> Record:
    """Return a record that is one, with every domain that it names in its accuracies."""
    checked = _check(record, _Record)
    for role in ("train_domains", "validation_domains", "test_domains"):
        for name in checked[role]:
            if name not in checked["accuracy"]:
                raise ValueError(f"accuracy: missing key {name!r}, which is in {role}")
    for name, parts in checked.get("metrics", {}).get("confusion", {}).items():
        for part, rows in parts.items():
            if any(len(row) != len(rows) for row in rows):
                raise ValueError(f"metrics.confusion.{name}.{part}: expected as many columns as rows")
    return checked


def parse_config(content: bytes) -> dict[str, Any]:
    config = _check(_decode(content), _Config)
    size = math.prod(config["data"].get("input_shape", ()))
    if size > _MAX_INPUT:
        raise ValueError(f"data.input_shape: expected at most {_MAX_INPUT:,} numbers per image, got {size:,}")
    return config


def require_to_open(config: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise a ValueError unless a config has everything that opening its run needs."""
    for part, names in _TO_OPEN.items():
        for name in names:
            if config[part].get(name) is None:
                raise ValueError(f"{part}: missing key {name!r}")


def parse_plan_line(line: bytes) -> dict[str, Any]:
    return _check(_decode(line), _PlanLine)


def parse_stop(content: bytes) -> dict[str, Any]:
    return _check(_decode(content), _Stop)


def parse_spec(content: bytes) -> dict[str, Any]:
    try:
        return _check(tomllib.loads(content.decode()), _Spec)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def parse_domainbed_line(line: bytes) -> dict[str, Any]:
    """Parse a line of DomainBed's `results.jsonl`, which is JSON with NaN; what it must contain is checked later."""
    try:
        content = json.loads(line.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError as error:
        raise NotJson(str(error)) from None
    if not isinstance(content, dict):
        raise ValueError(f"expected an object, got {type(content).__name__}")
    return content


def _decode(content: bytes) -> Any:
    try:
        return msgspec.json.decode(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except msgspec.MsgspecError as error:
        if rb"\ud" not in content:
            raise NotJson(str(error)) from None
    return _decode_surrogates(content)


def _decode_surrogates(content: bytes) -> Any:
    """Decode JSON with lone surrogates, which stand for the bytes of a name that is not UTF-8, and escape these.

    msgspec cannot, and neither can tables hold them.
    """

    def escape(value: Any) -> Any:
        if isinstance(value, dict):
            return {escape_unprintable(key): escape(each) for key, each in value.items()}
        if isinstance(value, list):
            return [escape(each) for each in value]
        return escape_unprintable(value) if isinstance(value, str) else value

    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    try:
        return escape(json.loads(content.decode(), parse_constant=refuse))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError as error:
        raise NotJson(str(error)) from None


def _check(content: Any, schema: type[Struct]) -> dict[str, Any]:
    """Return the content itself, unknown keys included, if it fits the schema."""
    if isinstance(content, dict) and content.get("schema", SCHEMA) != SCHEMA:
        raise ValueError(f"unsupported schema {content['schema']!r:.20}; expected {SCHEMA}")
    try:
        msgspec.convert(content, schema)
    except msgspec.ValidationError as error:
        raise ValueError(_rephrase(str(error))) from None
    assert isinstance(content, dict)
    return content


def _rephrase(message: str) -> str:
    """Turn "Expected `int`, got `str` - at `$.step`" into "step: expected int, got str"."""
    what, _, place = message.replace("`", "").partition(" - at $")
    what = re.sub(r"^Object missing required field (.*)$", r"missing key '\1'", what)
    what = what.replace(" | null", " or null").replace("float", "a number")
    place = place.replace("[...]", ".*").lstrip(".")
    return (f"{place}: " if place else "") + what[:1].lower() + what[1:]
