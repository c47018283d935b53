"""The command that repeats a run, from the settings that its folder keeps."""

import shlex
from collections.abc import Mapping
from typing import Any

# As `domainwise train` has them. Settings that a run leaves open are None and need no word either.
_DEFAULTS = {"trial_seed": 0, "hparams_seed": 0, "dropout": 0.0, "evaluate": "selection", "precision": "fp32"}
_REPEATED = {
    "hparams": "--hparam",
    "dataset_options": "--dataset-option",
    "train_domains": "--train-domain",
    "test_domains": "--test-domain",
}
_CONTENT = " sha256:"


def command_from(settings: Mapping[str, Any]) -> str:
    """What to type for the same run once more, into a folder of its own; empty where the settings do not tell.

    Of data and weights from files only the names are kept, so whoever types it may have to put paths in their place.
    """
    if "dataset" not in settings or "algorithm" not in settings:
        return ""
    words = ["domainwise", "train"]
    for name, value in settings.items():
        option = _REPEATED.get(name, "--" + name.replace("_", "-"))
        if name in _REPEATED:
            given = [f"{key}={each}" for key, each in value.items()] if isinstance(value, Mapping) else value or ()
            words += [word for each in given for word in (option, str(each))]
        elif name == "augment" and value is not None:
            words.append("--augment" if value else "--no-augment")
        elif value is not None and _DEFAULTS.get(name) != value:
            words += [option, str(value).partition(_CONTENT)[0]]
    return shlex.join(words)
