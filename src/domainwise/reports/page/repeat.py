"""The command that repeats a run, from the settings that its folder keeps."""

from collections.abc import Mapping
from typing import Any

from domainwise.train_command import train_command

# As `domainwise train` has them. Settings that a run leaves open are None and need no word either.
_DEFAULTS = {"trial_seed": 0, "hparams_seed": 0, "dropout": 0.0, "evaluate": "selection", "precision": "fp32"}
_CONTENT = " sha256:"


def command_from(settings: Mapping[str, Any]) -> str:
    """What to type for the same run once more, into a folder of its own; empty where the settings do not tell.

    Of data and weights from files only the names are kept, so whoever types it may have to put paths in their place.
    """
    if "dataset" not in settings or "algorithm" not in settings:
        return ""
    changed = {name: value for name, value in settings.items() if _DEFAULTS.get(name) != value}
    plain = {name: value.partition(_CONTENT)[0] if isinstance(value, str) else value for name, value in changed.items()}
    return train_command(plain)
