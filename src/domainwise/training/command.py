"""The words of `domainwise train` for the settings of a run."""

import shlex
from collections.abc import Mapping
from typing import Any

_REPEATED = {
    "hparams": "--hparam",
    "dataset_options": "--dataset-option",
    "train_domains": "--train-domain",
    "test_domains": "--test-domain",
}


def train_command(settings: Mapping[str, Any]) -> str:
    """What to type for them; None is a setting left open and needs no word."""
    words = ["domainwise", "train"]
    for name, value in settings.items():
        option = _REPEATED.get(name, "--" + name.replace("_", "-"))
        if name in _REPEATED:
            given = [f"{key}={each}" for key, each in value.items()] if isinstance(value, Mapping) else value or ()
            words += [word for each in given for word in (option, str(each))]
        elif name == "augment" and value is not None:
            words.append("--augment" if value else "--no-augment")
        elif value is not None:
            words += [option, str(value)]
    return shlex.join(words)
