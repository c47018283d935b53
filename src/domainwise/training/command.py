"""The `domainwise train` command that repeats a run."""

import dataclasses
import shlex
from collections.abc import Mapping
from typing import Any

from domainwise.training.config import RunConfig, option_names


def train_command(config: RunConfig) -> str:
    """Return the command for a config, with every setting that is not the default."""
    from domainwise.training.registry import import_path

    changed = {
        field.name: value
        for field in dataclasses.fields(config)
        if (value := getattr(config, field.name)) != field.default or field.name in ("dataset", "algorithm")
    }
    return _format_command({name: import_path(value) if callable(value) else value for name, value in changed.items()})


def stored_command(settings: Mapping[str, Any]) -> str:
    """Return the command for the settings in a config.json, into a new folder.

    It is empty if they do not say enough, or if there are some that this version does not have.
    Only the names of data and weights from files are stored, so the reader may have to fill in their paths.
    """
    if "dataset" not in settings or "algorithm" not in settings:
        return ""
    defaults = {field.name: field.default for field in dataclasses.fields(RunConfig)}
    changed = {
        name: value.partition(" sha256:")[0] if isinstance(value, str) else value
        for name, value in settings.items()
        if name in ("dataset", "algorithm") or defaults.get(name) != value
    }
    if not changed.keys() <= defaults.keys():
        return ""
    return _format_command(changed)


def _format_command(settings: Mapping[str, Any]) -> str:
    """Return the command for settings by their names in `RunConfig`; None leaves a setting out."""
    words = ["domainwise", "train"]
    options = {field.name: option_names(field)[0] for field in dataclasses.fields(RunConfig)}
    for name, value in settings.items():
        option = options[name]
        if isinstance(value, bool):
            words += [option] if value else [f"--no-{option.removeprefix('--')}"] if name == "augment" else []
        elif isinstance(value, Mapping):
            words += [word for key, each in value.items() for word in (option, f"{key}={each}")]
        elif isinstance(value, list | tuple):
            words += [word for each in value for word in (option, str(each))]
        elif value is not None:
            words += [option, str(value)]
    return shlex.join(words)
