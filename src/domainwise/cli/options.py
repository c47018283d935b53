"""Command-line options: those generated from `RunConfig`, those that several commands share, and name=value pairs."""

import ast
import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

from domainwise.errors import DomainwiseError
from domainwise.training.config import OPTION_SETTINGS, RunConfig, choice_names, option_names

_HELP = {field.name: field.metadata["help"] for field in dataclasses.fields(RunConfig)}

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DataDir = Annotated[Path | None, typer.Option(help=_HELP["data_dir"])]
Device = Annotated[str, typer.Option(help=_HELP["device"])]
# For commands that open runs: no module that a run folder names is imported.
OwnAlgorithm = Annotated[
    str | None, typer.Option("--algorithm", help="Method of the runs that used package.module:Class.")
]
OwnNetwork = Annotated[
    str | None, typer.Option("--network", help="Network of the runs that used package.module:function.")
]
Budget = Annotated[
    str | None, typer.Option(help="Time for --until-decided, such as 45min, 3h or 1h30min (default: no limit).")
]
Workers = Annotated[int, typer.Option(help="Number of runs at a time.")]
Threads = Annotated[
    int | None,
    typer.Option(
        help="Number of CPU threads per run (default: the CPUs, shared by the workers; at most $OMP_NUM_THREADS)."
    ),
]

# Dataset options that most users need, as options of their own.
_SHORTCUTS = {
    "image_size": Annotated[int | None, typer.Option(help="Side length of the images in pixels.")],
    "skip_broken": Annotated[bool, typer.Option("--skip-broken", help="Skip images that could not be read.")],
}


def add_run_options(names: Sequence[str], *, is_default_none: bool = False) -> Callable[..., Callable[..., None]]:
    """Decorate a command so that its parameter `settings` is filled by one option per setting of `RunConfig`.

    Args:
        names: the settings to offer.
        is_default_none: options that are not given are left out of `settings`, instead of having their default; the
            command's own options come first in its help.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        fields = [field for field in dataclasses.fields(RunConfig) if field.name in names]
        generated = [_option_parameter(field, is_default_none) for field in fields]
        if "dataset_options" in names:
            generated += [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
                for name, annotation in _SHORTCUTS.items()
            ]
        own = [each for each in inspect.signature(command).parameters.values() if each.name != "settings"]
        own = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
        parameters = [*own, *generated] if is_default_none else [*generated, *own]

        def run(**values: Any) -> None:
            settings = {each.name: values.pop(each.name) for each in generated}
            # A sweep has a list of datasets, which is not a setting of its runs.
            datasets = settings.get("dataset") or values.get("dataset") or ()
            datasets = [datasets] if isinstance(datasets, str) else datasets
            command(settings=_collect_settings(settings, is_default_none, datasets), **values)

        run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, command.__module__
        # Typer reads both.
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return run

    return decorate


def write_out_augment(args: Sequence[str]) -> list[str]:
    """Return the arguments with `--augment` and `--no-augment` as `--augment=true` and `--augment=false`.

    The first only if no value follows: typer has no options whose value may be left out.
    """
    written = []
    for word, following in zip_longest(args, args[1:], fillvalue="-"):
        if word == "--augment" and following.startswith("-"):
            word = "--augment=true"
        written.append("--augment=false" if word == "--no-augment" else word)
    return written


def keep_lines(examples: str) -> str:
    """Return examples for the end of a help text: one per line, never wrapped, so that they can be copied."""
    first, *commands = (line for line in examples.splitlines() if line)
    return "\n".join(("\b", first, *(f"  {command}" for command in commands)))  # what click does not wrap


def list_run_settings() -> list[tuple[str, str, str]]:
    """Return option, default and help of the settings of `RunConfig`, for the table in docs/training.md."""
    return [
        (f"`{option_names(field)[0]}`", _format_default(field.default), field.metadata["help"])
        for field in dataclasses.fields(RunConfig)
        if field.name in OPTION_SETTINGS
    ]


def parse_pairs(words: Sequence[str], option: str) -> dict[str, str]:
    """Parse `["epsilon=.5"]` to `{"epsilon": ".5"}`."""
    pairs: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name or not value:
            raise DomainwiseError(f"{option} expects name=value, got {word!r}")
        pairs[name.strip()] = value.strip()
    return pairs


def parse_literals(words: Sequence[str], option: str) -> dict[str, Any]:
    """Parse pairs whose values are Python literals if possible: `image_size=48`, `shifts=0,8`."""
    return {name: _parse_literal(value) for name, value in parse_pairs(words, option).items()}


def parse_dataset_options(words: Sequence[str], *datasets: str) -> dict[str, Any]:
    """Parse the options of datasets as literals, but those that `hf:` declares as strings stay so: `config=2023`."""
    texts = parse_pairs(words, "--dataset-option")
    options = {name: _parse_literal(text) for name, text in texts.items()}
    if not options or not any(name.startswith("hf:") for name in datasets):
        return options
    from domainwise.data.hugging_face import hugging_face_dataset

    parameters = inspect.signature(hugging_face_dataset).parameters
    names = [name for name in texts if name in parameters and parameters[name].annotation is str]
    return options | {name: texts[name] for name in names if not isinstance(options[name], str)}


def _option_parameter(field: "dataclasses.Field[Any]", is_default_none: bool) -> inspect.Parameter:
    kind = _option_type(field)
    default = None if is_default_none or kind == list[str] else field.default
    choices = choice_names(field)
    option = typer.Option(
        *option_names(field),
        help=field.metadata["help"],
        metavar="[strong]" if field.name == "augment" else None,
        autocompletion=(lambda: choices) if choices else None,
    )
    is_optional = default is None or is_default_none
    annotation = Annotated[kind | None if is_optional else kind, option]  # type: ignore[valid-type]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _option_type(field: "dataclasses.Field[Any]") -> Any:
    if isinstance(field.default, tuple) or field.default is dataclasses.MISSING:
        return list[str]
    types = (field.type, *get_args(field.type))
    if str in types or any(get_origin(each) is Literal for each in types):
        return str
    return next((kind for kind in (bool, int, float) if kind in types), str)


def _format_default(default: Any) -> str:
    return "" if default in (None, (), False, dataclasses.MISSING) else f"`{default}`"


def _collect_settings(values: Mapping[str, Any], is_default_none: bool, datasets: Sequence[str]) -> dict[str, Any]:
    """Turn what typer parsed into settings of `RunConfig`; hyperparameters stay pairs of strings."""
    settings = {name: value for name, value in values.items() if name not in _SHORTCUTS}
    if settings.get("attack_radius") is not None:
        settings["attack_radius"] = _parse_literal(settings["attack_radius"])
    if "augment" in settings:
        settings["augment"] = {"true": True, "false": False}.get(settings["augment"], settings["augment"])
    if "hparams" in settings:
        settings["hparams"] = parse_pairs(settings["hparams"] or [], "--hparam")
    if "dataset_options" in settings:
        shortcuts = {name: values[name] for name in _SHORTCUTS if values[name]}
        options = parse_dataset_options(settings["dataset_options"] or [], *datasets)
        settings["dataset_options"] = {**shortcuts, **options}
    if "average_options" in settings:
        settings["average_options"] = parse_literals(settings["average_options"] or [], "--average-option")
    for name in ("train_domains", "test_domains", "metrics", "freeze", "lora_targets"):
        if name in settings:
            settings[name] = tuple(settings[name] or ())
    if is_default_none:
        return {name: value for name, value in settings.items() if value not in (None, {}, ())}
    return settings


def _parse_literal(word: str) -> Any:
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return word
