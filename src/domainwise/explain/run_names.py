"""Names for runs in tables and pictures: the method, and only those settings in which its runs differ."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Which domains trained and tested is for a table to say, and not part of a name.
_SETTINGS = ("network", "weights", "steps", "batch_size", "dropout", "augment", "dataset_options")


def labels(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """A label a run, `mat` or `mat, epsilon 0.5`, the same for runs that differ in their seeds or domains alone.

    Args:
        settings: of each run, as its config.json says. Hyperparameters that a search drew go by the number of the draw.
    """
    telling = [_telling(each) for each in settings]
    made = []
    for each, own in zip(settings, telling, strict=True):
        method = str(each["algorithm"])
        alike = [other for given, other in zip(settings, telling, strict=True) if given["algorithm"] == method]
        differing = [name for name in own if any(other.get(name, own[name]) != own[name] for other in alike)]
        made.append(", ".join([method.rpartition(":")[2], *(f"{name} {own[name]}" for name in differing)]))
    return made


def run_names(folders: Sequence[Path]) -> list[str]:
    """A name a folder, of as many of its last parts as tell it from the others."""
    parts = [folder.resolve().parts for folder in folders]
    for length in range(1, max(map(len, parts), default=0) + 1):
        names = ["-".join(part.strip("/") for part in each[-length:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]


def _telling(settings: Mapping[str, Any]) -> dict[str, Any]:
    draw = settings.get("hparams_seed", 0)
    drawn = {"draw": draw, **({} if draw else settings.get("hparams", {}))}
    return {**drawn, **{name: settings.get(name) for name in _SETTINGS}}
